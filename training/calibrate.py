"""The calibration that a bundle carries: how far its validation part says to trust the model.

A slope pulls the model's log-odds towards those that it corrects: log-odds → base + slope · (log-odds − base). Shifts follow
the drift of a log and are fitted online (``predictors.recalibration``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from endcast.datasets.trace import BoolArray, IntArray
from endcast.predictors.calibration import log_loss
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray

#: Standard errors of gain that a slope must show on requests that it was not fitted on.
DOUBT = 2.0
#: The weight (in events) that pulls the slope to 1; Newton's steps at most, and the size of one that is none.
PENALTY, MOST_STEPS, SMALLEST_STEP = 50.0, 25, 1e-9


def fit_slope(base: FloatArray, away: FloatArray, event: Float32Array, weight: Float32Array) -> float:
    """The slope ≥ 0 of greatest penalised likelihood: ``base`` and ``away`` = log-odds − base, each (r,)."""

    def cost(slope: float) -> float:
        return float(log_loss(base + slope * away, event, weight).sum() + PENALTY * (slope - 1.0) ** 2 / 2.0)

    slope, least = 1.0, cost(1.0)
    for _ in range(MOST_STEPS):
        chance = np.exp(-np.logaddexp(0.0, -(base + slope * away)))
        gradient = float(np.sum(weight * away * (chance - event))) + PENALTY * (slope - 1.0)
        curvature = float(np.sum(weight * away**2 * chance * (1.0 - chance))) + PENALTY
        step = gradient / curvature
        while (reached := cost(slope - step)) > least and abs(step) >= SMALLEST_STEP:
            step /= 2.0  # where forecasts are far off, a whole step overshoots
        if abs(step) < SMALLEST_STEP or not reached < least:
            break
        slope, least = slope - step, reached
    return max(slope, 0.0)


def calibrate(data: TrainingData, fitted: FittedModel) -> tuple[float, dict[str, Any]]:
    """A slope fitted on the validation part, kept if one fitted on its first two thirds helps on the last beyond doubt,
    else 1; and figures of the validation part for the manifest."""
    index = data.validation
    rows = data.rows(index)
    position = np.searchsorted(index, rows.request)
    base = data.base_logits(rows.request, rows.interval)
    away = fitted.logits(data.vectors(index))[position, rows.interval] - base

    def fitted_on(mask: BoolArray) -> float:
        return fit_slope(base[mask], away[mask], rows.event[mask], rows.weight[mask])

    def loss(slope: float) -> FloatArray:
        return log_loss(base + slope * away, rows.event, rows.weight)

    late = _is_late(data.block[index])[position]
    plain = loss(1.0)
    gain = np.where(late, plain - loss(fitted_on(~late)), 0.0)
    total, error = _sum_and_error(gain, data.block[rows.request])
    kept = total > DOUBT * error
    report = {
        "requests": len(index),
        "log_loss_a_request": float(plain.sum()) / len(index),
        "log_loss_a_request_uncorrected": float(loss(0.0).sum()) / len(index),
        "calibration_kept": bool(kept),
        "calibration_gain_nats": total,
        "calibration_gain_standard_error": error,
    }
    return fitted_on(np.ones(len(rows), dtype=bool)) if kept else 1.0, report


def _is_late(block: IntArray) -> BoolArray:
    """(n,), whether each validation request is of the last third of blocks."""
    late: BoolArray = block >= np.quantile(block, 2 / 3)
    return late


def _sum_and_error(values: FloatArray, block: IntArray) -> tuple[float, float]:
    """Sum of ``values`` (r,) and its standard error, rows of one block being dependent."""
    _, number = np.unique(block, return_inverse=True)
    sums = np.bincount(number, weights=values)
    return float(sums.sum()), float(np.std(sums) * np.sqrt(len(sums)))
