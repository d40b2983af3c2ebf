"""The floors of accuracy with outputs read, on answers to prompts that training had not seen: by hand, through streams.

Every fifth test answer is measured, at all checkpoints e = 0, 32, … < min(output, 4096), equally weighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import endcast
from endcast.datasets.read import read
from endcast.survival import FloatArray, SurvivalBatch
from endcast.training.train import Settings, train

FILE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "alpaca_eval_outputs.parquet"
HORIZONS = (16, 32, 64, 80)
EVERY = 32


@dataclass(frozen=True)
class Checkpoints:
    """(r,) or (r, horizons) at each checkpoint: what was forecast with the text so far, at admission alone, and by
    Kaplan-Meier; E[min(R, 80)] with the text; what came."""

    text: FloatArray
    admission: FloatArray
    pooled: FloatArray
    within: FloatArray
    remaining: FloatArray

    def ended(self, horizon: int) -> FloatArray:
        return (self.remaining <= horizon).astype(np.float64)

    def brier(self, chances: FloatArray, horizon: int) -> float:
        return float(((chances[:, HORIZONS.index(horizon)] - self.ended(horizon)) ** 2).mean())

    def skill(self, chances: FloatArray, horizon: int) -> float:
        return 1.0 - self.brier(chances, horizon) / self.brier(self.pooled, horizon)


def chances(batch: SurvivalBatch) -> FloatArray:
    return np.stack([1.0 - batch.survival_at(horizon) for horizon in HORIZONS], axis=1)


def pooled_chances(lengths: np.ndarray, elapsed: np.ndarray) -> FloatArray:
    """Of S(t), the share of training answers longer than t, where every length is an end."""
    survival = 1.0 - np.cumsum(np.bincount(lengths)) / len(lengths)
    at = np.minimum(elapsed[:, None] + np.array((0, *HORIZONS)), len(survival) - 1)
    with np.errstate(invalid="ignore"):
        pooled: FloatArray = np.nan_to_num(1.0 - survival[at[:, 1:]] / survival[at[:, :1]], nan=1.0)
    return pooled


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    if not FILE.exists():
        pytest.skip(f"{FILE.name} is not here")
    trace = read(FILE).trace
    tested = np.isin(np.array(trace.attribute("prompt_id")) % 10, (0, 3, 7))
    training = trace.take(np.flatnonzero(~tested))
    bundle = train(training, Settings(split="all"), tmp_path_factory.mktemp("text") / "bundle")
    forecaster = endcast.load_forecaster(bundle.path, aborts=False)
    test = trace.take(np.flatnonzero(tested)[::5])
    outputs = test.table.column("output").to_pylist()
    streams = [forecaster.open(request) for request in test.requests()]
    lengths = test.output_tokens
    text, admission, within, elapsed, remaining = [], [], [], [], []
    at_admission = forecaster.forecast_batch(streams, 0)
    for e in range(0, int(min(lengths.max(), 4096)), EVERY):
        running = np.flatnonzero(lengths > e)
        for i in running.tolist() if e else ():
            before, now = (round(len(outputs[i]) * tokens / lengths[i]) for tokens in (e - EVERY, e))
            streams[i].append(outputs[i][before:now], e)
        batch = forecaster.forecast_batch([streams[i] for i in running], 0)
        text.append(chances(batch))
        within.append(batch.within(80))
        admission.append(chances(at_admission.take(running).advance(e)))
        elapsed.append(np.full(len(running), e))
        remaining.append(lengths[running] - e)
    tokens = np.concatenate(elapsed)
    return Checkpoints(
        np.concatenate(text),
        np.concatenate(admission),
        pooled_chances(training.output_tokens, tokens),
        np.concatenate(within),
        np.concatenate(remaining).astype(np.float64),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("horizon", "skill", "auc"), [(16, 0.235, 0.91), (32, 0.33, 0.91), (64, 0.36, 0.885), (80, 0.355, 0.88)]
)
def test_the_text_so_far_tells_of_the_end(checkpoints: Checkpoints, horizon: int, skill: float, auc: float) -> None:
    assert checkpoints.skill(checkpoints.text, horizon) >= skill
    told = checkpoints.text[:, HORIZONS.index(horizon)]
    assert roc_auc_score(checkpoints.ended(horizon), told) >= auc


@pytest.mark.slow
def test_chances_can_be_taken_at_their_word(checkpoints: Checkpoints) -> None:
    told, ended = checkpoints.text[:, HORIZONS.index(64)], checkpoints.ended(64)
    bins = np.array_split(np.argsort(told), 15)
    assert sum(len(some) * abs(told[some].mean() - ended[some].mean()) for some in bins) / len(told) <= 0.02


@pytest.mark.slow
def test_reading_beats_a_static_model_that_is_no_straw_man(checkpoints: Checkpoints) -> None:
    assert checkpoints.skill(checkpoints.admission, 64) >= 0.10
    static, text = (checkpoints.brier(some, 64) for some in (checkpoints.admission, checkpoints.text))
    assert text <= 0.72 * static


@pytest.mark.slow
def test_time_left_in_a_window(checkpoints: Checkpoints) -> None:
    error = checkpoints.within - np.minimum(checkpoints.remaining, 80)
    assert float(np.sqrt((error**2).mean())) <= 15.0
