"""Calibration of hazards: a slope and a shift for each stretch of the grid.

log-odds → base + shift + slope · (log-odds − base), ``base`` the pooled curve's: a slope below 1 trusts the model less, a
shift above 0 says that more end there than the model thinks. Both are fitted online, to the latest outcomes
(``recalibration``); what training fits is a slope alone (a shift that held on its validation part has often turned round
by the next day).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.survival import FloatArray, IntArray

#: Stretches of the grid that have a slope and a shift each.
STRETCHES = 6


@dataclass(frozen=True, eq=False)
class Calibration:
    """``base`` (K,) pooled log-odds, ``slope`` (K,) ≥ 0, ``shift`` (K,) in log-odds."""

    base: FloatArray
    slope: FloatArray
    shift: FloatArray

    @classmethod
    def identity(cls, base: FloatArray) -> Calibration:
        """Changes nothing."""
        return cls(base, np.ones_like(base), np.zeros_like(base))

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
