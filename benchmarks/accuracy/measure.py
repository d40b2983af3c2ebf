"""What the accuracy page reports, section by section: each a function of the data's folder that returns plain values."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from benchmarks.accuracy.data import (
    CONVERSATION,
    LOGS,
    MOONCAKE,
    TEXT,
    Parted,
    Tell,
    answered_before,
    chosen_on,
    final,
    trained,
)

from endcast import Landmark
from endcast.predictors.bundle import Bundle
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.predictors.output_columns import NAMES, SCORE_HORIZONS, output_columns
from endcast.predictors.text import code_blocks, outline, phrases, prose, repetition, tags
from endcast.predictors.text.output_reader import END_COLUMNS, LEFT_COLUMNS
from endcast.survival import FloatArray, IntArray
from endcast.training import output_part
from endcast.training.evaluate import Evaluation, evaluate
from endcast.training.rolling import rolling
from endcast.training.train import Settings

HORIZONS = (16, 32, 64, 80, 128)
#: Person-period rows of the models in ablations: enough to rank them, in a third of the time.
ABLATION_ROWS = 300_000
#: Families of columns of the text so far.
FAMILIES: dict[str, tuple[str, ...]] = {
    "what the prompt asks for, less what is written": LEFT_COLUMNS,
    "sentences, lines, paragraphs": prose.COLUMNS,
    "lists, headings, tables": outline.COLUMNS,
    "closing phrases": phrases.COLUMNS,
    "code and JSON": code_blocks.COLUMNS,
    "quotes, brackets, tags, thinking, tools": tags.COLUMNS,
    "repetition": repetition.COLUMNS,
    "last character": END_COLUMNS,
    "score of the last words": tuple(f"tail_score_{horizon}" for horizon in SCORE_HORIZONS),
}
Section = Callable[[Path, Tell], dict[str, Any]]


def plain(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation's figures without its curves."""
    values: dict[str, Any] = msgspec.to_builtins(evaluation)
    for figures in (values, *values["baselines"].values()):
        for one in figures["horizons"].values():
            del one["reliability"]
    del values["survival"], values["bundle"]
    return values


def measured(parted: Parted, bundle: Bundle, **more: Any) -> Evaluation:
    """On the part to be measured on."""
    return evaluate(bundle, parted.test, split=parted.split, population=parted.population, horizons=HORIZONS, **more)


def accuracy(folder: Path, tell: Tell) -> dict[str, Any]:
    """Each log's test part, and what a forecast costs there."""
    found = {}
    for name, file in LOGS.items():
        parted = final(folder, file)
        with trained(parted, Settings(split=parted.split), tell) as (bundle, seconds):
            tell(f"{name}: trained in {seconds:.0f} CPU s")
            found[name] = {
                **plain(measured(parted, bundle)),
                "training_cpu_s": seconds,
                "training_requests": bundle.manifest.training["requests"],
                "bytes": sum(len(graph.model) for graph in (bundle.admission, bundle.output) if graph is not None),
                **costs(bundle, parted),
            }
    return found


def costs(bundle: Bundle, parted: Parted, batch: int = 64, repeats: int = 15) -> dict[str, float]:
    """Median CPU milliseconds of one request of a batch of ``batch``: at admission, and with 256 tokens of text read anew."""
    rows = np.flatnonzero(parted.test.output_tokens > 256)[:batch]
    requests = list(parted.test.take(rows).requests())
    forecaster = OnnxForecaster(bundle)
    texts = parted.test.table.column("output").take(rows).to_pylist()
    landmarks = {"admission_ms": [Landmark(request=request) for request in requests]}
    if bundle.output is not None:
        landmarks["text_ms"] = [
            Landmark(request=request, generated_tokens=256, output=text[:1000])
            for request, text in zip(requests, texts, strict=True)
        ]
    found = {}
    for name, some in landmarks.items():
        taken = []
        for _ in range(repeats):
            began = time.process_time()
            _ = forecaster.forecast_batch(some, 80).survival
            taken.append((time.process_time() - began) * 1e3 / len(some))
        found[name] = float(np.median(taken))
    return found


def ceiling(folder: Path, tell: Tell) -> dict[str, Any]:
    """AlpacaEval with the lengths of other answers to the same prompt known, without and with the text so far."""
    parted = final(folder, TEXT)
    known = Parted(answered_before(parted.train, 0), answered_before(parted.test, 1), "all", "checkpoints")
    with trained(known, Settings(split="all"), tell) as (bundle, _):
        return plain(measured(known, bundle, recalibrate=False))


def over_time(folder: Path, tell: Tell) -> dict[str, Any]:
    """Calibration with and without online recalibration, and what chance alone would show."""
    found = {}
    for name, file, split in (
        ("Azure 2023 conversation, first 30 % train", CONVERSATION, "last:0.7"),
        ("Azure 2023 conversation, first 70 % train", CONVERSATION, "last:0.3"),
        ("Mooncake conversation, first 70 % train", MOONCAKE, "last:0.3"),
    ):
        parted = final(folder, file)
        with trained(parted, Settings(split=split), tell) as (bundle, _):
            pooled = rolling(bundle, parted.test, horizons=(64,), windows=7, split=split).pooled
            found[name] = msgspec.to_builtins(pooled.horizons["64"])
    return found


def ablation(folder: Path, tell: Tell) -> dict[str, Any]:
    """What is lost without a group of features, on validation parts: Brier skill by horizon, and the median's error."""
    found: dict[str, Any] = {}
    for name, file in (("Azure 2023 conversation", CONVERSATION), ("Mooncake conversation", MOONCAKE)):
        found[name] = _without_groups(chosen_on(folder, file), Settings(split="last:0.3"), tell)
    text = chosen_on(folder, TEXT)
    admission = Settings(split="all", read_outputs=False)
    found["AlpacaEval outputs, at admission"] = _without_groups(text, admission, tell)
    return found


def text_ablation(folder: Path, tell: Tell) -> dict[str, Any]:
    """What is lost without a family of columns of the text so far, on a validation part."""
    return {"AlpacaEval outputs, text so far": _without_columns(chosen_on(folder, TEXT), tell)}


def _skills(evaluation: Evaluation) -> dict[str, float]:
    skills = {horizon: figures.brier_skill for horizon, figures in evaluation.horizons.items()}
    return {**skills, "mae_median": evaluation.admission.mae_median}


def _without_groups(parted: Parted, settings: Settings, tell: Tell) -> dict[str, Any]:
    with trained(parted, settings, tell) as (bundle, _):
        groups = bundle.manifest.feature_groups
        found = {"all": _skills(measured(parted, bundle))}
    for left_out in groups:
        rest = [group for group in groups if group != left_out]
        with trained(parted, _changed(settings, features=rest), tell) as (bundle, _):
            found[f"without {left_out}"] = _skills(measured(parted, bundle))
            tell(f"without {left_out}: {found[f'without {left_out}']['64']:.4f}")
    return found


def _changed(settings: Settings, **changes: Any) -> Settings:
    """The settings with some changed."""
    return Settings(**{**vars(settings), **changes})


def _without_columns(parted: Parted, tell: Tell) -> dict[str, Any]:
    settings = Settings(split="all", most_rows=ABLATION_ROWS)
    with trained(parted, settings, tell) as (bundle, _):
        evaluation = measured(parted, bundle)
        found = {"all": _skills(evaluation)}
        unread = evaluation.baselines["admission"]["horizons"]
        found["at admission alone"] = {horizon: figures.brier_skill for horizon, figures in unread.items()}
    for name, columns in FAMILIES.items():
        place = np.array([NAMES.index(f"output.{column}") for column in columns])

        def blind(text: Float32Array, generated: IntArray, base: FloatArray, place: IntArray = place) -> Columns:
            hidden = text.copy()
            hidden[:, place] = np.nan
            return output_columns(hidden, generated, base)

        # trees that never saw a column do not look at it when they forecast
        with mock.patch.object(output_part, "output_columns", blind), trained(parted, settings, tell) as (bundle, _):
            found[f"without {name}"] = _skills(measured(parted, bundle))
            tell(f"without {name}: {found[f'without {name}']['64']:.4f}")
    return found
