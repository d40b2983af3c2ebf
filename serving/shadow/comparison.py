"""A shadow bundle against the served one, on the same forecasts: mean differences of scores, with intervals that hold however
often one looks.

One generation gives D = Σ (shadow's score − the served one's) over its N forecasts; the difference is μ = ΣD/ΣN. The
forecasts of a generation are not independent, generations nearly are: the variance is that of D − μN (the ratio
estimator's). The interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", 2021):

    μ ± σ/N̄ · √( 2·(tρ² + 1)/(t²ρ²) · log( √(tρ² + 1)/α ) )        t generations

It covers at all times together with chance 1 − α, so that stopping when it looks good is no mistake; ρ makes it
narrowest at ``BEST_AT`` generations, where it is 1.55 times as wide as one for a single look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from endcast.curves import FloatArray

ALPHA = 0.05
#: Generations at which the interval is narrowest, and before which none is given.
BEST_AT, LEAST = 1_000, 50
_RHO = math.sqrt((-2.0 * math.log(ALPHA) + math.log(-2.0 * math.log(ALPHA) + 1.0)) / BEST_AT)


@dataclass(frozen=True)
class Interval:
    """A mean and an interval around it; infinite before ``LEAST`` generations."""

    mean: float
    low: float
    high: float


class Difference:
    """Mean differences of ``width`` scores at once, in constant memory."""

    def __init__(self, width: int) -> None:
        self.generations = 0
        self.served = np.zeros(width)  #: sums of scores
        self.shadow = np.zeros(width)
        self.counts = np.zeros(width)  #: ΣN
        self._d = np.zeros(width)  #: ΣD
        self._dd, self._dn, self._nn = np.zeros(width), np.zeros(width), np.zeros(width)

    def add(self, served: FloatArray, shadow: FloatArray, counts: FloatArray) -> None:
        """Sums (width,) of one generation's scores, over ``counts`` (width,) forecasts."""
        d = shadow - served
        self.generations += 1
        self.served += served
        self.shadow += shadow
        self.counts += counts
        self._d += d
        self._dd += d * d
        self._dn += d * counts
        self._nn += counts * counts

    def interval(self, column: int) -> Interval:
        """Shadow − served."""
        t, total = self.generations, float(self.counts[column])
        if total == 0.0:
            return Interval(math.nan, -math.inf, math.inf)
        mean = float(self._d[column]) / total
        if t < LEAST:
            return Interval(mean, -math.inf, math.inf)
        square = float(self._dd[column] - 2.0 * mean * self._dn[column] + mean * mean * self._nn[column])
        deviation = math.sqrt(max(square, 0.0) / (t - 1))
        half = deviation * t / total * half_width(t)
        return Interval(mean, mean - half, mean + half)


def half_width(t: int, alpha: float = ALPHA) -> float:
    """Of the interval around the mean of ``t`` numbers of deviation 1."""
    scaled = t * _RHO**2 + 1.0
    return math.sqrt(2.0 * scaled / (t * _RHO) ** 2 * math.log(math.sqrt(scaled) / alpha))
