"""The arithmetic of ``landmarks``, compiled: one landmark alone would spend its time between array operations."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.predictors.features.protocol import Float32Array
from endcast.survival import FloatArray, IntArray


@njit(cache=True)
def condition(
    out: FloatArray, edges: IntArray, curve: FloatArray, log_tail: float, elapsed: int, fine: IntArray, fall: float
) -> None:
    """out[j] = log of the chance to survive ``fine[j]`` tokens more of one who has reached ``elapsed`` on ``curve``, log
    survival at ``edges``; every token costs ``fall`` < 0 besides. Added up from there, so that small hazards after large
    ones keep their precision."""
    last, k, position, log = edges.shape[0] - 1, 0, elapsed, 0.0
    while k < last and edges[k + 1] <= elapsed:
        k += 1
    for j in range(fine.shape[0]):
        target = elapsed + fine[j]
        while position < target:
            slope, stop = log_tail, target
            if k < last:
                slope = (curve[k + 1] - curve[k]) / (edges[k + 1] - edges[k])
                stop = min(target, edges[k + 1])
            log += (slope + fall) * (stop - position)
            position = stop
            if k < last and position == edges[k + 1]:
                k += 1
        out[j] = log


@njit(cache=True)
def condition_rows(
    out: FloatArray,
    edges: IntArray,
    log_survival: FloatArray,
    log_tail: FloatArray,
    row: IntArray,
    elapsed: IntArray,
    fine: IntArray,
    fall: float,
) -> None:
    """``condition`` for each of ``row`` (n,)."""
    for i in range(row.shape[0]):
        condition(out[i], edges, log_survival[row[i]], log_tail[row[i]], elapsed[i], fine, fall)


@njit(cache=True)
def log_odds(out: FloatArray, log_survival: FloatArray, at: IntArray, least: float, most: float) -> None:
    """out[i, k] = log-odds to end between edges at[k] and at[k + 1] for one who reached the first; the log of the chance
    not to is kept within [``least``, ``most``], both < 0."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            stays = min(max(log_survival[i, at[k + 1]] - log_survival[i, at[k]], least), most)
            out[i, k] = np.log(-np.expm1(stays)) - stays


@njit(cache=True)
def scale_hazards(
    out: FloatArray,
    out_tail: FloatArray,
    log_survival: FloatArray,
    log_tail: FloatArray,
    at: IntArray,
    hazard: Float32Array,
    least: float,
    most: float,
    tail_least: float,
    tail_most: float,
) -> None:
    """out[i]: the curve i that ends in each interval with probability hazard[i, k], kept within [``least``, ``most``], and
    inside it in proportion to ``log_survival``; ``out_tail`` goes on with the last interval's proportion, kept within
    [``tail_least``, ``tail_most``]."""
    for i in range(out.shape[0]):
        before, out[i, 0], scale = log_survival[i], 0.0, 1.0
        for k in range(hazard.shape[1]):
            corrected = np.log1p(-min(max(np.float64(hazard[i, k]), least), most))
            scale = corrected / (before[at[k + 1]] - before[at[k]])
            for j in range(at[k], at[k + 1]):
                out[i, j + 1] = out[i, j] + scale * (before[j + 1] - before[j])
        out_tail[i] = min(max(scale * log_tail[i], tail_least), tail_most)
