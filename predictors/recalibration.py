"""Online recalibration: a slope and a shift for each stretch of the grid, from the latest outcomes, in constant memory.

The log likelihood of an outcome, as a function of the slopes and shifts, is kept to second order around those that it met
(one step of Newton's method), and added to the sum of the earlier ones, which fade by 1/``MEMORY`` at each outcome. What
is served is where that sum and a penalty that pulls to "change nothing" balance: a calibrated forecaster is left (nearly)
alone. It is a Kalman filter with forgetting for logistic regression (West and Harrison, "Bayesian forecasting and dynamic
models", 1997, chapter 14): 5 numbers a stretch, O(K) an outcome.

A generation that was first forecast after some tokens tells of the intervals after them only: that it got there was no
news to that forecast (left truncation).
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.predictors.calibration import STRETCHES, Calibration, stretches
from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid, logit
from endcast.predictors.recalibration_kernel import add_outcome, optimum
from endcast.survival import FloatArray

#: Outcomes after which one counts 1/e, and outcomes before anything is changed.
MEMORY, LEAST = 700, 100
#: Weights, in events, of the penalties: on the mean slope's distance from 1, on a slope's from the others, on shifts.
SLOPE_PENALTY, SPREAD_PENALTY, SHIFT_PENALTY = 50.0, 50.0, 10.0
#: A slope and shifts, in log-odds, stay within these whatever happens.
SLOPE_BOUNDS, LARGEST_SHIFT = (0.25, 2.0), 1.5

#: (2, S): slopes, then shifts, of S stretches.
Parameters = npt.NDArray[np.float64]
_NONE: Parameters = np.stack([np.ones(STRETCHES), np.zeros(STRETCHES)])
_LOW: Parameters = np.stack([np.full(STRETCHES, SLOPE_BOUNDS[0]), np.full(STRETCHES, -LARGEST_SHIFT)])
_HIGH: Parameters = np.stack([np.full(STRETCHES, SLOPE_BOUNDS[1]), np.full(STRETCHES, LARGEST_SHIFT)])


def _prior_precision() -> FloatArray:
    """(2S, 2S). Slopes share a deviation of variance 1/``SLOPE_PENALTY`` and have each their own of 1/``SPREAD_PENALTY``."""
    spread = np.full((STRETCHES, STRETCHES), 1.0 / SLOPE_PENALTY) + np.eye(STRETCHES) / SPREAD_PENALTY
    precision = np.zeros((2 * STRETCHES, 2 * STRETCHES))
    precision[:STRETCHES, :STRETCHES] = np.linalg.inv(spread)
    precision[STRETCHES:, STRETCHES:] = np.eye(STRETCHES) * SHIFT_PENALTY
    return precision


_PRIOR = _prior_precision()
_PRIOR_PULL: FloatArray = _PRIOR @ _NONE.ravel()


class Recalibration:
    """What to do to log-odds, from the latest outcomes; at first nothing."""

    def __init__(self, grid: IntervalGrid) -> None:
        self._grid = grid
        self._edges: list[int] = grid.edges.tolist()
        self._stretch = stretches(grid.base_hazard)
        self._curvature = np.zeros((3, STRETCHES))  #: of slope with slope, slope with shift, shift with shift
        self._pull = np.zeros((2, STRETCHES))  #: curvature · optimum
        self._parameters = _NONE.copy()
        self._observed = 0
        self._made: Calibration | None = None

    @property
    def calibration(self) -> Calibration:
        """The slopes and shifts, one an interval."""
        if self._made is None:
            slope, shift = self._parameters[:, self._stretch]
            self._made = Calibration(self._grid.base_logit, slope, shift)
        return self._made

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self._observed >= LEAST

    def apply(self, hazard: FloatArray) -> FloatArray:
        """(n, K) hazards, recalibrated."""
        if not self.active:
            return hazard
        recalibrated: FloatArray = 1.0 / (1.0 + np.exp(-self.calibration.apply(logit(hazard))))
        return recalibrated

    def observe(self, hazard: FloatArray, tokens: int, ended: bool, entered: int = 0) -> None:
        """Take in one outcome: ``hazard`` (K,) before recalibration, ``tokens`` ≥ 1 generated, an event or censored;
        first forecast when it had ``entered`` ≥ 0 of them."""
        last = min(max(bisect_left(self._edges, tokens), 1), len(self._grid)) - 1
        first = bisect_left(self._edges, entered)
        if first > last:
            return  # it was first forecast in the interval where it ended
        start, stop = self._edges[last], self._edges[last + 1]
        beyond = tokens > stop  # past the last edge nothing is at risk
        seen = 1.0 if ended or beyond else (tokens - start) / (stop - start)
        add_outcome(
            *(self._curvature, self._pull, self._parameters, 1.0 - 1.0 / MEMORY),
            *(np.asarray(hazard, dtype=np.float64), self._grid.base_logit, self._stretch),
            *(first, last, ended and not beyond, seen, Q_MIN, Q_MAX),
        )
        self._observed = min(self._observed + 1, LEAST)
        if self.active:
            self._parameters = optimum(self._curvature, self._pull, _PRIOR, _PRIOR_PULL, _LOW, _HIGH)
            self._made = None

    def dump(self) -> object:
        """Its memory as plain values."""
        parts = (self._curvature, self._pull, self._parameters)
        return [self._observed, *(part.tolist() for part in parts)]

    def load(self, memory: object) -> None:
        """Take over a dumped memory."""
        try:
            observed, *parts = msgspec.convert(memory, _Memory)
            curvature, pull, parameters = (
                np.array(part, dtype=np.float64).reshape(height, STRETCHES)
                for part, height in zip(parts, (3, 2, 2), strict=True)
            )
        except (msgspec.ValidationError, ValueError) as error:
            raise BundleError(f"the recalibration state is damaged: {error}") from None
        finite = all(np.isfinite(part).all() for part in (curvature, pull, parameters))
        bounded = (parameters >= _LOW).all() and (parameters <= _HIGH).all()
        if not finite or not bounded or (curvature[[0, 2]] < 0.0).any() or not 0 <= observed <= LEAST:
            raise BundleError("the recalibration state is damaged")
        self._observed, self._curvature, self._pull, self._parameters = observed, curvature, pull, parameters
        self._made = None


_Memory = tuple[int, list[list[float]], list[list[float]], list[list[float]]]
