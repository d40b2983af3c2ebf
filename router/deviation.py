"""What it costs that a worker lies off its level, and what it costs at least: a bound that needs no look at the window.

With x(h) a worker's excess over the level and d(h) what it takes, a deviation costs Σ_h γ^h ψ(x(h) + d(h)), ψ(x) = x² below the
level, A·x² above it (``endcast.router.levelling``). Of a window let the *mean* and the *spread* be those under the weights γ^h,
W their sum. Then

    Σ γ^h ψ(x + d)  ≥  W·( m² + s² + (A − 1)·(m⁺)² ),    m = x̄ + d̄,    s = |σ_x − σ_d|,

since Σ γ^h y² = W·(ȳ² + σ_y²), spreads obey the triangle inequality, and (y⁺)² is convex (Jensen). Most requests are so much too
large or too small for a worker that this bound, four numbers, already says that another one is better.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.survival import Float32Array, FloatArray

#: A: how much more a token above the level costs than one below it.
OVERLOAD = 4.0
#: A bound must exceed what it is compared with by this share: sums differ by rounding.
_ROUNDING = 1e-9
#: Columns of moments: mean and spread of a window.
MEAN, SPREAD = range(2)
#: Sums may be reordered so that they use the machine's vector unit; no other liberty is taken.
_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=_REASSOCIATE)
def deviation(excess: FloatArray, added: Float32Array, scale: float, weight: FloatArray) -> float:
    """Σ_h γ^h ψ(x(h) + ``scale``·d(h)): what a worker's deviation from the level costs once it has taken d."""
    total = 0.0
    for h in range(weight.shape[0]):
        x = excess[h] + scale * added[h]
        total += weight[h] * x * (max(x, 0.0) * OVERLOAD + min(x, 0.0))
    return total


@njit(cache=True, fastmath=_REASSOCIATE)
def moments(window: FloatArray | Float32Array, weight: FloatArray) -> tuple[float, float]:
    """Mean and spread of a window (H+1,) under ``weight`` (H+1,)."""
    total, first = 0.0, 0.0
    for h in range(weight.shape[0]):
        total += weight[h]
        first += weight[h] * window[h]
    mean, second = first / total, 0.0
    for h in range(weight.shape[0]):
        second += weight[h] * (window[h] - mean) * (window[h] - mean)
    return mean, np.sqrt(second / total)


@njit(cache=True)
def moments_of(windows: FloatArray | Float32Array, count: int, weight: FloatArray) -> FloatArray:
    """(n, 2): of the first ``count`` of windows (n, H+1); the others' are not set."""
    found = np.empty((windows.shape[0], 2))
    for i in range(count):
        found[i, MEAN], found[i, SPREAD] = moments(windows[i], weight)
    return found


@njit(cache=True)
def least_deviation(mean: float, spread: float, total: float) -> float:
    """What windows of this mean and at least this spread cost at least; ``total`` W."""
    above = max(mean, 0.0)
    return total * (1.0 - _ROUNDING) * (mean * mean + spread * spread + (OVERLOAD - 1.0) * above * above)
