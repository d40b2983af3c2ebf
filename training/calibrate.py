"""The calibration that a bundle carries: how far its validation part says to trust the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from endcast.datasets.trace import BoolArray, IntArray
from endcast.predictors.calibration import Calibration, fit_calibration, log_loss
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray

#: Standard errors of gain that a calibration must show on requests that it was not fitted on.
DOUBT = 2.0


def calibrate(data: TrainingData, fitted: FittedModel) -> tuple[Calibration, dict[str, Any]]:
    """A slope fitted on the validation part, kept if one fitted on its first two thirds helps on the last beyond doubt;
    and figures of the validation part for the manifest."""
    grid, index = data.grid, data.validation
    rows = data.rows(index)
    position = np.searchsorted(index, rows.request)
    logits = fitted.logits(data.vectors(index))[position, rows.interval]

    def fitted_on(mask: BoolArray) -> Calibration:
        interval, event, weight = rows.interval[mask], rows.event[mask], rows.weight[mask]
        return fit_calibration(grid.base_logit, grid.base_hazard, logits[mask], interval, event, weight, shifts=False)

    def loss(slope: float) -> FloatArray:
        base = grid.base_logit[rows.interval]
        return log_loss(base + slope * (logits - base), rows.event, rows.weight)

    late = _is_late(data.block[index])[position]
    plain = loss(1.0)
    gain = np.where(late, plain - loss(fitted_on(~late).slope), 0.0)
    total, error = _sum_and_error(gain, data.block[rows.request])
    kept = total > DOUBT * error
    calibration = fitted_on(np.ones(len(rows), dtype=bool)) if kept else Calibration.identity(grid.base_logit)
    report = {
        "requests": len(index),
        "log_loss_a_request": float(plain.sum()) / len(index),
        "log_loss_a_request_kaplan_meier": float(loss(0.0).sum()) / len(index),
        "calibration_kept": bool(kept),
        "calibration_gain_nats": total,
        "calibration_gain_standard_error": error,
    }
    return calibration, report


def _is_late(block: IntArray) -> BoolArray:
    """(n,), whether each validation request is of the last third of blocks."""
    late: BoolArray = block >= np.quantile(block, 2 / 3)
    return late


def _sum_and_error(values: FloatArray, block: IntArray) -> tuple[float, float]:
    """Sum of ``values`` (r,) and its standard error, rows of one block being dependent."""
    _, number = np.unique(block, return_inverse=True)
    sums = np.bincount(number, weights=values)
    return float(sums.sum()), float(np.std(sums) * np.sqrt(len(sums)))
