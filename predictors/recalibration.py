"""Online recalibration: the training's calibration, fitted anew on the latest outcomes.

The last ``WINDOW`` outcomes are kept with the log-odds that they had been given. Every ``EVERY`` outcomes a slope and a
shift for each stretch of the grid are fitted to them, pulled to "change nothing" by the same penalty as in training: a
calibrated forecaster is left (nearly) alone, and memory is bounded.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.datasets.person_period import person_periods
from endcast.errors import BundleError
from endcast.predictors.calibration import Calibration, fit_calibration
from endcast.predictors.grid import IntervalGrid, logit
from endcast.survival import FloatArray

#: Outcomes that are remembered, outcomes between fits, outcomes before the first.
WINDOW, EVERY, LEAST = 1_000, 25, 100
#: A slope and shifts, in log-odds, stay within these whatever happens.
SLOPE_BOUNDS, LARGEST_SHIFT = (0.25, 2.0), 1.5

Float32Array = npt.NDArray[np.float32]


class Recalibration:
    """What to do to log-odds, from the latest outcomes; at first nothing."""

    def __init__(self, grid: IntervalGrid) -> None:
        self._grid = grid
        self._logits: deque[Float32Array] = deque(maxlen=WINDOW)
        self._outcomes: deque[tuple[int, bool]] = deque(maxlen=WINDOW)
        self._since = 0
        self.calibration = Calibration.identity(grid.base_logit)

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self.calibration.slope != 1.0 or bool(self.calibration.shift.any())

    def apply(self, hazard: FloatArray) -> FloatArray:
        """(n, K) hazards, recalibrated."""
        if not self.active:
            return hazard
        recalibrated: FloatArray = 1.0 / (1.0 + np.exp(-self.calibration.apply(logit(hazard))))
        return recalibrated

    def observe(self, hazard: FloatArray, tokens: int, ended: bool) -> None:
        """Take in one outcome: ``hazard`` (K,) before recalibration, ``tokens`` ≥ 1 generated, an event or censored."""
        self._logits.append(logit(hazard).astype(np.float32))
        self._outcomes.append((tokens, ended))
        self._since += 1
        if self._since >= EVERY and len(self._outcomes) >= LEAST:
            self._fit()

    def _fit(self) -> None:
        tokens, ended = (np.array(values) for values in zip(*self._outcomes, strict=True))
        rows = person_periods(tokens, ended, self._grid.edges)
        logits = np.stack(list(self._logits))[rows.request, rows.interval].astype(np.float64)
        base, hazard = self._grid.base_logit, self._grid.base_hazard
        fitted = fit_calibration(base, hazard, logits, rows.interval, rows.event, rows.weight)
        slope = float(np.clip(fitted.slope, *SLOPE_BOUNDS))
        self.calibration = Calibration(base, slope, np.clip(fitted.shift, -LARGEST_SHIFT, LARGEST_SHIFT))
        self._since = 0

    def dump(self) -> object:
        """Its memory as plain values."""
        stacked = np.stack(list(self._logits)) if self._logits else np.empty((0, len(self._grid)), np.float32)
        fitted = [self.calibration.slope, self.calibration.shift.tolist()]
        return [stacked.tobytes(), [list(outcome) for outcome in self._outcomes], self._since, fitted]

    def load(self, memory: object) -> None:
        """Take over a dumped memory, with what was fitted to it."""
        try:
            data, outcomes, since, (slope, shift) = msgspec.convert(memory, _Memory)
            logits = np.frombuffer(data, dtype=np.float32).reshape(len(outcomes), len(self._grid))
            calibration = Calibration(self._grid.base_logit, slope, np.array(shift).reshape(len(self._grid)))
        except (msgspec.ValidationError, ValueError) as error:
            raise BundleError(f"the recalibration state is damaged: {error}") from None
        numbers = (logits, calibration.slope, calibration.shift)
        if not all(np.isfinite(part).all() for part in numbers) or any(tokens < 1 for tokens, _ in outcomes):
            raise BundleError("the recalibration state is damaged")
        self._logits = deque(logits, maxlen=WINDOW)
        self._outcomes = deque(outcomes, maxlen=WINDOW)
        self._since, self.calibration = since, calibration


_Memory = tuple[bytes, list[tuple[int, bool]], int, tuple[float, list[float]]]
