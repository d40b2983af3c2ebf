"""The arithmetic of ``recalibration``, compiled: one outcome is so little work that array operations would cost most of it."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.survival import FloatArray, IntArray


@njit(cache=True)
def add_outcome(
    curvature: FloatArray,
    pull: FloatArray,
    parameters: FloatArray,
    fade: float,
    hazard: FloatArray,
    base: FloatArray,
    stretch: IntArray,
    first: int,
    last: int,
    event: bool,
    weight: float,
    least: float,
    most: float,
) -> None:
    """Fade ``curvature`` (3, S) and ``pull`` (2, S), and add one outcome that was at risk in the intervals ``first`` to
    ``last``: an ``event`` in the last one or not, of which the share ``weight`` was seen. ``hazard`` (K,) is kept within
    [``least``, ``most``]; ``base`` (K,) log-odds, ``stretch`` (K,), ``parameters`` (2, S) slopes and shifts."""
    for i in range(curvature.shape[0]):
        for s in range(curvature.shape[1]):
            curvature[i, s] *= fade
    for i in range(pull.shape[0]):
        for s in range(pull.shape[1]):
            pull[i, s] *= fade
    for k in range(first, last + 1):
        s = stretch[k]
        slope, shift = parameters[0, s], parameters[1, s]
        told = min(max(hazard[k], least), most)
        away = np.log(told) - np.log1p(-told) - base[k]
        chance = 1.0 / (1.0 + np.exp(-(base[k] + shift + slope * away)))
        seen = weight if k == last else 1.0
        happened = 1.0 if event and k == last else 0.0
        bend, uphill = seen * chance * (1.0 - chance), seen * (happened - chance)
        curvature[0, s] += bend * away * away
        curvature[1, s] += bend * away
        curvature[2, s] += bend
        pull[0, s] += uphill * away + bend * away * (away * slope + shift)
        pull[1, s] += uphill + bend * (away * slope + shift)


@njit(cache=True)
def optimum(
    curvature: FloatArray,
    pull: FloatArray,
    prior: FloatArray,
    prior_pull: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> FloatArray:
    """(2, S), where what was observed and the prior (precision ``prior`` (2S, 2S), ``prior_pull`` (2S,)) balance, within
    [``low``, ``high``]: by Cholesky's factors, the precision being positive definite."""
    count = curvature.shape[1]
    size = 2 * count
    factor = prior.copy()
    for s in range(count):
        factor[s, s] += curvature[0, s]
        factor[s + count, s] += curvature[1, s]
        factor[s + count, s + count] += curvature[2, s]
    x = pull.ravel() + prior_pull
    for j in range(size):  # the factor replaces the lower triangle, the forward solution x
        for m in range(j):
            factor[j, j] -= factor[j, m] * factor[j, m]
        factor[j, j] = np.sqrt(factor[j, j])
        for i in range(j + 1, size):
            for m in range(j):
                factor[i, j] -= factor[i, m] * factor[j, m]
            factor[i, j] /= factor[j, j]
        for m in range(j):
            x[j] -= factor[j, m] * x[m]
        x[j] /= factor[j, j]
    for j in range(size - 1, -1, -1):
        for m in range(j + 1, size):
            x[j] -= factor[m, j] * x[m]
        x[j] /= factor[j, j]
    found = x.reshape(2, count)
    return np.minimum(np.maximum(found, low), high)
