"""Every model family on every log: skill, ranking, routing, cost and size, on the test parts, all with their defaults.

Each is kept as soon as it is measured, so that an interrupted run goes on with what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.accuracy.data import LOGS, TEXT, Parted, Tell, final, trained
from benchmarks.accuracy.family_routing import RoutingBench
from benchmarks.accuracy.measure import measured

from endcast.errors import TrainingError
from endcast.predictors.bundle import Bundle, Graph
from endcast.predictors.hazard_graph import evaluator
from endcast.predictors.models import MODELS
from endcast.training.train import Settings

#: Person-period rows that each family has of each log, and of the log with texts, of which every fifth model's answers
#: are measured: enough to tell families apart.
ROWS, ROWS_OF_TEXT, MODELS_APART = 300_000, 150_000, 5
_BATCH, _TIMED = 64, 50
#: Name on the page → file, and whether outputs are read where the log has them.
PARTS = {
    **{name: (file, False) for name, file in LOGS.items() if file != TEXT},
    "AlpacaEval outputs, at admission": (TEXT, False),
    "AlpacaEval outputs, text so far": (TEXT, True),
}
Keep = Callable[[dict[str, Any]], None]


def families(
    folder: Path, tell: Tell, *, known: dict[str, Any], wanted: Sequence[str] = tuple(MODELS), keep: Keep
) -> dict[str, Any]:
    """Log → family → figures: those ``wanted`` measured on logs that ``known`` has no figures of them for; ``keep`` is
    given all of them after each."""
    bench = cache(lambda: RoutingBench(folder, fewer(final(folder, TEXT), TEXT)))
    found = {name: dict(known.get(name, {})) for name in PARTS}
    for name, (file, reads) in PARTS.items():
        parted = cache(lambda file=file: fewer(final(folder, file), file))
        for family in wanted:
            if family in found[name]:
                continue
            found[name][family] = _measured(parted(), family, reads, bench() if file == TEXT else None, tell)
            found[name] = {one: found[name][one] for one in MODELS if one in found[name]}
            keep(found)
            tell(f"{name}, {family}: {found[name][family].get('skill')}")
    return found


def fewer(parted: Parted, file: str) -> Parted:
    """Of the log with texts the answers of every fifth model are measured."""
    if file != TEXT:
        return parted
    models = np.array(parted.test.table.column("model").to_pylist())
    some = np.isin(models, np.unique(models)[::MODELS_APART])
    return replace(parted, test=parted.test.take(np.flatnonzero(some)))


def _measured(parted: Parted, family: str, reads: bool, bench: RoutingBench | None, tell: Tell) -> dict[str, Any]:
    """Figures; of a family that cannot learn from this log, why not."""
    rows = ROWS if bench is None else ROWS_OF_TEXT
    settings = Settings(model=family, split=parted.split, most_rows=rows, read_outputs=reads, device="cpu")
    try:
        return _figures(parted, settings, bench, tell)
    except TrainingError as error:
        return {"refused": error.message}


def _figures(parted: Parted, settings: Settings, bench: RoutingBench | None, tell: Tell) -> dict[str, Any]:
    with trained(parted, settings, tell) as (bundle, seconds):
        evaluation = measured(parted, bundle)
        pooled = evaluation.baselines["kaplan_meier"]["horizons"]
        return {
            "skill": {horizon: one.brier_skill for horizon, one in evaluation.horizons.items()},
            "interval": {horizon: one.intervals["brier_skill"] for horizon, one in evaluation.horizons.items()},
            "nats": {h: pooled[h].log_loss - one.log_loss for h, one in evaluation.horizons.items()},
            "auc_64": evaluation.horizons["64"].auc,
            "ece_64": evaluation.horizons["64"].ece,
            "c_index": evaluation.admission.c_index,
            "mae_median": evaluation.admission.mae_median,
            "training_cpu_s": seconds,
            "graph": cost(bundle.admission),
            "output_graph": None if bundle.output is None else cost(bundle.output),
            "bytes": _size(bundle),
            "routing": None if bench is None else bench.of(bundle),
        }


def _size(bundle: Bundle) -> int:
    graphs = [graph.model for graph in (bundle.admission, bundle.output) if graph is not None]
    return sum(map(len, [*graphs, *bundle.encoder.values()]))


def cost(graph: Graph) -> float:
    """CPU microseconds a landmark for its curve's hazards, one thread, batches of 64, the median batch."""
    run, features = evaluator(graph.model), np.resize(graph.golden_features, (_BATCH, graph.golden_features.shape[1]))
    run.hazards(features)
    times = []
    for _ in range(_TIMED):
        began = time.process_time()
        run.hazards(features)
        times.append(time.process_time() - began)
    return float(np.median(times)) / _BATCH * 1e6
