"""Calibration of hazards: a slope that trusts the model more or less, a shift a stretch of the grid.

log-odds → base + shift + slope · (log-odds − base), ``base`` the pooled curve's, fitted by penalised maximum likelihood.
Training fits the slope alone, on its validation part; shifts follow the drift of a log and are fitted online, to the
latest outcomes (``recalibration``): a shift that held on the validation part has often turned round by the next day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.survival import FloatArray, IntArray

#: Stretches of the grid that have a shift each, and the weight (in events) that pulls it to zero.
STRETCHES, SHIFT_PENALTY, SLOPE_PENALTY = 6, 50.0, 50.0
#: A penalty that leaves nothing to fit.
FIXED = 1e12
#: Newton's steps at most, and the size of a step that is none.
MOST_STEPS, SMALLEST_STEP = 25, 1e-9


@dataclass(frozen=True, eq=False)
class Calibration:
    """``base`` (K,) pooled log-odds, ``slope`` ≥ 0, ``shift`` (K,) in log-odds."""

    base: FloatArray
    slope: float
    shift: FloatArray

    @classmethod
    def identity(cls, base: FloatArray) -> Calibration:
        """Changes nothing."""
        return cls(base, 1.0, np.zeros_like(base))

    def apply(self, logits: FloatArray) -> FloatArray:
        """(n, K) calibrated log-odds."""
        return self.base + self.shift + self.slope * (logits - self.base)


def stretches(base_hazard: FloatArray, count: int = STRETCHES) -> IntArray:
    """(K,), the stretch of each interval: about equal shares of all ends in each."""
    survival = np.concatenate([[1.0], np.cumprod(1.0 - base_hazard)[:-1]])
    ends = np.cumsum(survival * base_hazard)
    stretch: IntArray = np.minimum((ends - 1e-12) / ends[-1] * count, count - 1).astype(np.int64)
    return stretch


def log_loss(logits: FloatArray, event: npt.NDArray[np.floating], weight: npt.NDArray[np.floating]) -> FloatArray:
    """(r,), each row's weighted loss −w·(y·log q + (1 − y)·log(1 − q)), log q = −log(1 + e^−z)."""
    loss: FloatArray = weight * (np.logaddexp(0.0, logits) - event * logits)
    return loss


def fit_calibration(
    base: FloatArray,
    base_hazard: FloatArray,
    logits: FloatArray,
    interval: IntArray,
    event: npt.NDArray[np.floating],
    weight: npt.NDArray[np.floating],
    *,
    shifts: bool = True,
) -> Calibration:
    """The calibration of person-period rows: ``logits``, ``interval``, ``event``, ``weight`` each (r,). Without
    ``shifts`` only the slope is fitted."""
    stretch = stretches(base_hazard)
    design = np.zeros((len(logits), 1 + STRETCHES))
    design[:, 0] = logits - base[interval]
    design[np.arange(len(logits)), 1 + stretch[interval]] = 1.0
    prior = np.array([1.0] + [0.0] * STRETCHES)
    penalty = np.array([SLOPE_PENALTY] + [SHIFT_PENALTY if shifts else FIXED] * STRETCHES)

    def cost(at: FloatArray) -> float:
        return float(log_loss(base[interval] + design @ at, event, weight).sum() + penalty @ (at - prior) ** 2 / 2.0)

    theta, least = prior.copy(), cost(prior)
    for _ in range(MOST_STEPS):
        chance = np.exp(-np.logaddexp(0.0, -(base[interval] + design @ theta)))
        gradient = design.T @ (weight * (chance - event)) + penalty * (theta - prior)
        curvature = (design * (weight * chance * (1.0 - chance))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        if np.abs(step).max() < SMALLEST_STEP:
            break
        while (reached := cost(theta - step)) > least and np.abs(step).max() >= SMALLEST_STEP:
            step = step / 2.0  # where forecasts are far off, a whole step overshoots
        if not reached < least:
            break
        theta, least = theta - step, reached
    return Calibration(base, float(max(theta[0], 0.0)), theta[1:][stretch])
