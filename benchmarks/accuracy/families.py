"""Every model family on every log: skill, ranking, cost and size, on the test parts, all with their defaults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.accuracy.data import LOGS, TEXT, Tell, final, trained
from benchmarks.accuracy.measure import measured

from endcast.predictors.bundle import Bundle, Graph
from endcast.predictors.hazard_graph import evaluator
from endcast.predictors.models import MODELS
from endcast.training.train import Settings

#: Person-period rows that each family has of each log: enough to tell them apart.
ROWS = 300_000
_BATCH, _TIMED = 64, 50


def families(folder: Path, tell: Tell) -> dict[str, Any]:
    """Log → family → figures."""
    found: dict[str, Any] = {}
    for name, file in LOGS.items():
        parted, own = final(folder, file), found.setdefault(name, {})
        for family in MODELS:
            settings = Settings(model=family, split=parted.split, most_rows=ROWS, device="cpu")
            with trained(parted, settings, tell) as (bundle, seconds):
                evaluation = measured(parted, bundle)
                own[family] = {
                    "skill": {horizon: one.brier_skill for horizon, one in evaluation.horizons.items()},
                    "auc_64": evaluation.horizons["64"].auc,
                    "ece_64": evaluation.horizons["64"].ece,
                    "c_index": evaluation.admission.c_index,
                    "mae_median": evaluation.admission.mae_median,
                    "training_cpu_s": seconds,
                    "graph": _cost(bundle.admission),
                    "output_graph": None if bundle.output is None else _cost(bundle.output),
                    "bytes": _size(bundle),
                }
            tell(f"{name}, {family}: {own[family]['skill']['64']:.4f}")
        tell(f"{name}: done" + (" (the text so far is read)" if file == TEXT else ""))
    return found


def _size(bundle: Bundle) -> int:
    return len(bundle.admission.model) + (0 if bundle.output is None else len(bundle.output.model))


def _cost(graph: Graph) -> float:
    """Microseconds a landmark for its curve's hazards, one thread, batches of 64, the median batch."""
    run, features = evaluator(graph.model), np.resize(graph.golden_features, (_BATCH, graph.golden_features.shape[1]))
    run.hazards(features)
    times = []
    for _ in range(_TIMED):
        began = time.perf_counter()
        run.hazards(features)
        times.append(time.perf_counter() - began)
    return float(np.median(times)) / _BATCH * 1e6
