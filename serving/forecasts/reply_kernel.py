"""The figures and the curve of a reply, compiled: row by row what ``SurvivalBatch`` says of whole batches.

``SurvivalBatch`` is the definition; this follows its formulas, and shares what its methods compute anew for each figure. A
test compares the two.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.curves import FLAT
from endcast.serving.quantile_kernel import interval_that_falls_to
from endcast.survival import FloatArray, IntArray

Int32Array = npt.NDArray[np.int32]

#: Above this a short series gives exp(x) to the last bits, in a fifth of the time.
_SMALL = -0.03
_C2, _C3, _C4, _C5, _C6, _C7 = (1.0 / math.factorial(n) for n in range(2, 8))


@njit(cache=True, nogil=True)
def _slope(k: int, log_survival: FloatArray, widths: FloatArray, log_tail: float) -> float:
    if k == log_survival.shape[0] - 1:
        return log_tail
    slope: float = (log_survival[k + 1] - log_survival[k]) / widths[k]
    return slope


@njit(cache=True, nogil=True)
def _expm1(x: float) -> float:
    """exp(x) - 1 of x ≤ 0."""
    if x > _SMALL:
        return x * (1.0 + x * (_C2 + x * (_C3 + x * (_C4 + x * (_C5 + x * (_C6 + x * _C7))))))
    large: float = np.expm1(x)
    return large


@njit(cache=True, nogil=True)
def _terms(log_ratio: float, terms: float) -> float:
    """Σ_{i < terms} exp(i · log_ratio)."""
    if log_ratio > FLAT or terms <= 1.0:
        return terms
    total: float = _expm1(terms * log_ratio) / _expm1(log_ratio)
    return total


@njit(cache=True, nogil=True)
def _remaining(
    at: int, k: int, edges: IntArray, log_survival: FloatArray, widths: FloatArray, log_tail: float, beyond: FloatArray
) -> float:
    """Expected tokens of one that has reached ``at``, in interval k; ``beyond`` (K+1,) those at each edge."""
    if k == edges.shape[0] - 1:
        return beyond[k]  # type: ignore[no-any-return]
    slope = _slope(k, log_survival, widths, log_tail)
    left = widths[k] - (at - edges[k])
    here: float = _terms(slope, left) + np.exp(slope * left) * beyond[k + 1]
    return here


@njit(cache=True, nogil=True)
def figures(
    out: FloatArray, curve: FloatArray,
    edges: IntArray, log_survival: FloatArray, log_tail: FloatArray, widths: FloatArray,
    interval_of: Int32Array, row: IntArray, position: IntArray, cap: IntArray,
    generated: IntArray, horizons: IntArray, quantiles: FloatArray, tokens: IntArray,
) -> None:  # fmt: skip
    """Fill ``out`` (n, 2H + 2 + Q): chances to end within each of ``horizons`` (H,), tokens expected within each, those
    expected to remain, those with the ``generated`` (n,) ones, and where each of ``quantiles`` (Q,) lies. And ``curve``
    (n, C): log survival at each of ``tokens`` (C,), -inf from the cap on. Horizons and quantiles ascend, and so do their
    figures."""
    last, windows = edges.shape[0] - 1, horizons.shape[0]
    beyond = np.empty(last + 1)
    for i in range(row.shape[0]):
        log, tail, at, most = log_survival[row[i]], log_tail[row[i]], position[i], cap[i]
        start = interval_of[min(at, edges[last])]
        slope = _slope(start, log, widths, tail)
        here = log[start] + slope * (at - edges[start])
        beyond[last] = -1.0 / np.expm1(tail)
        for k in range(last - 1, start - 1, -1):
            lost, inside = log[k + 1] - log[k], widths[k]
            ends = _expm1(lost)
            if inside > 1.0 and lost / inside <= FLAT:
                inside = ends / _expm1(lost / inside)
            beyond[k] = inside + (1.0 + ends) * beyond[k + 1]
        rest = _remaining(at, start, edges, log, widths, tail, beyond)
        low_p, low_within = 0.0, 0.0
        for j in range(windows + 1):
            far = j == windows
            reach = most if far else min(horizons[j], most)
            there = at + reach
            k = interval_of[min(there, edges[last])]
            fall = slope * reach if k == start else log[k] + _slope(k, log, widths, tail) * (there - edges[k]) - here
            survives = np.exp(fall)
            expected = rest - survives * _remaining(there, k, edges, log, widths, tail, beyond)
            expected = min(max(expected, 0.0), np.float64(reach))
            if far:
                out[i, 2 * windows], out[i, 2 * windows + 1] = expected, generated[i] + expected
                continue
            low_p = max(low_p, 1.0 if horizons[j] >= most else 1.0 - survives)
            low_within = max(low_within, expected)
            out[i, j], out[i, windows + j] = low_p, low_within
        least = 0.0
        for j in range(quantiles.shape[0]):
            target = here + np.log1p(-quantiles[j])
            k = interval_that_falls_to(target, log)
            steps = np.ceil((target - log[k]) / _slope(k, log, widths, tail) - 1e-9)
            further = min(max(edges[k] + steps - at, min(1.0, np.float64(most))), np.float64(most))
            least = max(least, further)
            out[i, 2 * windows + 2 + j] = least
        for j in range(curve.shape[1]):
            if tokens[j] >= most:
                curve[i, j] = -np.inf
                continue
            there = at + tokens[j]
            k = interval_of[min(there, edges[last])]
            curve[i, j] = log[k] + _slope(k, log, widths, tail) * (there - edges[k]) - here
