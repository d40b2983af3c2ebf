"""Online recalibration: what was forecast against what happened, stretch by stretch of the grid.

Events that the served hazards expected and events that came are summed with forgetting. Where the two differ by more than
chance explains, the log-odds of that stretch are shifted by the log of their ratio, shrunk towards no shift by its own
uncertainty (the positive part of a James-Stein estimate): a calibrated forecaster is left alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from endcast.errors import BundleError
from endcast.predictors.calibration import stretches
from endcast.predictors.grid import IntervalGrid
from endcast.survival import FloatArray

#: Completions after which an observation counts half; stretches; squared standard errors that a shift must exceed.
HALF_LIFE, STRETCHES, DOUBT = 1_000.0, 6, 4.0
#: Shifts stay within this, in log-odds, whatever happens.
LARGEST_SHIFT = 1.5


class Recalibration:
    """Decayed sums of expected and observed events, (S,) each; ``shift`` is what they say."""

    def __init__(self, grid: IntervalGrid) -> None:
        self._grid = grid
        self._stretch = stretches(grid.base_hazard, STRETCHES)
        self._decay = 0.5 ** (1.0 / HALF_LIFE)
        self.expected = np.zeros(STRETCHES)
        self.observed = np.zeros(STRETCHES)
        self._shift = np.zeros(len(grid))

    @property
    def shift(self) -> FloatArray:
        """(K,), to add to log-odds."""
        return self._shift

    def observe(self, hazard: FloatArray, tokens: int, ended: bool) -> None:
        """Take in one outcome: ``hazard`` (K,) as it was before any shift, ``tokens`` ≥ 1 generated, event or not."""
        edges = self._grid.edges
        last = int(self._grid.interval_of(np.array([tokens]))[0])
        seen = hazard[: last + 1].copy()
        if not ended and tokens < edges[last + 1]:
            seen[last] *= (tokens - edges[last]) / (edges[last + 1] - edges[last])
        self.expected = self._decay * self.expected + np.bincount(
            self._stretch[: last + 1], weights=seen, minlength=STRETCHES
        )
        self.observed *= self._decay
        if ended:
            self.observed[self._stretch[last]] += 1.0
        self._shift = self._estimate()[self._stretch]

    def _estimate(self) -> FloatArray:
        """(S,), shrunk log ratios: first the pooled one, then each stretch's difference from it."""
        pooled = _shrink(self.observed.sum(), self.expected.sum())
        each = [
            pooled + _shrink(observed, expected * np.exp(pooled))
            for observed, expected in zip(self.observed, self.expected, strict=True)
        ]
        clipped: FloatArray = np.clip(np.array(each), -LARGEST_SHIFT, LARGEST_SHIFT)
        return clipped

    def dump(self) -> dict[str, Any]:
        """The sums as plain lists."""
        return {"expected": self.expected.tolist(), "observed": self.observed.tolist()}

    def load(self, sums: object) -> None:
        """Take over dumped sums."""
        try:
            decoded = msgspec.convert(sums, _Sums)
        except msgspec.ValidationError as error:
            raise BundleError(f"the recalibration state is damaged: {error}") from None
        expected, observed = np.array(decoded.expected), np.array(decoded.observed)
        for values in (expected, observed):
            if values.shape != (STRETCHES,) or not np.isfinite(values).all() or (values < 0).any():
                raise BundleError("the recalibration state is damaged")
        self.expected, self.observed = expected, observed
        self._shift = self._estimate()[self._stretch]


class _Sums(msgspec.Struct):
    expected: list[float]
    observed: list[float]


def _shrink(observed: float, expected: float) -> float:
    """log(observed/expected), shrunk by how uncertain it is; 0 where little was seen."""
    if observed < 1.0 or expected <= 0.0:
        return 0.0
    log_ratio = float(np.log(observed / expected))
    kept = 1.0 - DOUBT / (observed * log_ratio * log_ratio) if log_ratio else 0.0
    return log_ratio * max(kept, 0.0)
