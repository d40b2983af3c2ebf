"""The calibration that a bundle carries: kept where it helps beyond doubt, on requests that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.graph import LogitGraph
from endcast.predictors.models.protocol import TrainingData
from endcast.survival import FloatArray
from endcast.training.calibrate import calibrate

EDGES = np.array([0, 5, 10, 20, 40, 80, 160, 320, 640])
GRID = IntervalGrid(EDGES, np.log1p(-0.012) * np.arange(641))
REQUESTS = 4_000


@dataclass(frozen=True)
class Told:
    """A model whose log-odds are ``trust`` times what the one feature says, beside the pooled ones."""

    trust: float

    @property
    def card(self) -> Mapping[str, Any]:
        return {}

    def logits(self, features: Float32Array) -> FloatArray:
        return np.asarray(GRID.base_logit + self.trust * features[:, :1].astype(np.float64))

    def graph(self) -> LogitGraph:
        raise NotImplementedError


def data_of(seed: int) -> TrainingData:
    """Requests whose log-odds are just what the feature says; the last quarter validates."""
    rng = np.random.default_rng(seed)
    feature = rng.normal(0.0, 1.0, size=(REQUESTS, 1)).astype(np.float32)
    ends = rng.random((REQUESTS, len(GRID))) < 1.0 / (1.0 + np.exp(-Told(1.0).logits(feature)))
    ended = np.asarray(ends.any(axis=1))
    index = np.arange(REQUESTS)
    return TrainingData(
        grid=GRID,
        columns=("feature",),
        interval_columns=(),
        features=Columns(feature, np.empty((REQUESTS, len(GRID), 0), dtype=np.float32)),
        lengths=EDGES[np.where(ended, ends.argmax(axis=1), len(GRID) - 1) + 1],
        ended=ended,
        fit=index[: 3 * REQUESTS // 4],
        validation=index[3 * REQUESTS // 4 :],
        block=index // 20,
    )


@pytest.mark.parametrize("trust", [0.5, 2.0])
def test_too_little_and_too_much_trust_are_set_right(trust: float) -> None:
    found, report = calibrate(data_of(0), Told(trust))
    assert report["calibration_kept"]
    assert found == pytest.approx(1.0 / trust, rel=0.25)  # the penalty pulls it to 1
    assert report["calibration_gain_nats"] > 2.0 * report["calibration_gain_standard_error"] > 0.0


def test_a_model_that_is_right_is_left_alone() -> None:
    kept = 0
    for seed in range(12):
        found, report = calibrate(data_of(seed), Told(1.0))
        kept += report["calibration_kept"]
        assert report["calibration_kept"] or found == 1.0
    assert kept <= 2  # two standard errors


def test_the_report_is_of_the_validation_part() -> None:
    data = data_of(1)
    _, report = calibrate(data, Told(1.0))
    rows = data.rows(data.validation)
    p = 1.0 / (1.0 + np.exp(-Told(1.0).logits(data.features.values)))[rows.request, rows.interval]
    loss = -np.where(rows.event > 0, np.log(p), np.log1p(-p)) * rows.weight
    assert report["requests"] == len(data.validation)
    assert report["log_loss_a_request"] == pytest.approx(loss.sum() / len(data.validation))
    assert report["log_loss_a_request"] < report["log_loss_a_request_uncorrected"] - 0.1
