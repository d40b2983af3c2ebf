"""What forecasts say far ahead: expected lengths, and what of a fleet is taken when, step by step.

Windows of a routing round are short and kept up to date for every slot. Prices look hundreds of steps ahead and are
updated now and then: what they need is read off the curves when asked for.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, PROMPT, ROW
from endcast.router.windows import CAP, CURVE, POSITION
from endcast.survival import NO_CAP, FloatArray, IntArray

#: Chances to survive a token closer to 1 than this count as 1.
_FLAT = 1e-12
#: What less than this survives adds nothing that could be seen, not even with a tail of a billion tokens.
_LEAST_SURVIVAL = 1e-16


@njit(cache=True)
def _geometric_sum(ratio: float, terms: float) -> float:
    """Σ_{i < terms} ratioⁱ, 0 ≤ ratio ≤ 1."""
    if ratio > 1.0 - _FLAT:
        return terms
    total: float = (1.0 - ratio**terms) / (1.0 - ratio)
    return total


@njit(cache=True)
def expected_remaining(edges: IntArray, step: FloatArray, beyond: FloatArray, position: int, cap: int) -> float:
    """E[R] of one that has reached ``position`` on the curve of ``step`` (K+1,), R ≤ ``cap``; at least 1.

    ``beyond`` (K+1,) tokens that remain at each edge, or (0,): then intervals are summed up to the end of the curve.
    """
    last, left = edges.shape[0] - 1, max(cap, 1)
    k = np.searchsorted(edges, position, side="right") - 1
    survival, total = 1.0, 0.0
    while left > 0 and survival > _LEAST_SURVIVAL:
        terms = left if k == last else min(left, edges[k + 1] - position)
        total += survival * _geometric_sum(step[k], terms)
        survival *= step[k] ** terms
        left, position, k = left - terms, position + terms, k + 1
        if beyond.shape[0] > 0 and cap >= NO_CAP // 2 and k <= last:
            total += survival * float(beyond[k])
            break
    return total


@njit(cache=True)
def expected_tokens(
    known: FloatArray, row: IntArray, edges: IntArray, step: FloatArray, beyond: FloatArray, where: IntArray
) -> FloatArray:
    """(k,) expected output tokens of what waits in ``row`` (k,); ``known`` (rows,), < 0 where not known yet, is filled."""
    out = np.empty(row.shape[0])
    for i in range(row.shape[0]):
        r = row[i]
        if known[r] < 0.0:
            curve = where[CURVE, r]
            rest = beyond[curve] if beyond.shape[0] > 0 else np.zeros(0)
            known[r] = expected_remaining(edges, step[curve], rest, where[POSITION, r], where[CAP, r])
        out[i] = known[r]
    return out


@njit(cache=True)
def _fill_survival(alive: FloatArray, edges: IntArray, step: FloatArray, position: int, cap: int) -> int:
    """alive[i] = P(R > i) of one that has reached ``position`` on the curve of ``step``; how many i have a say.

    Arguments as ``fill_load_curve`` has them.
    """
    last, reach = edges.shape[0] - 1, min(alive.shape[0], max(cap, 1))
    k = np.searchsorted(edges, position, side="right") - 1
    survival, i = 1.0, 0
    while i < reach and survival > _LEAST_SURVIVAL:
        if k + 4 <= last and i + 4 <= reach and edges[k + 4] == position + i + 4:  # intervals of one token each
            chance, twice = step[k], step[k] * step[k + 1]
            alive[i], alive[i + 1] = survival, survival * chance
            alive[i + 2], alive[i + 3] = survival * twice, survival * (twice * step[k + 2])
            survival *= twice * (step[k + 2] * step[k + 3])
            i, k = i + 4, k + 4
            continue
        stop = reach if k == last else min(reach, edges[k + 1] - position)
        chance = step[k]
        twice = chance * chance
        while i + 4 <= stop:  # four at a time: each waits for one product, not for the three before it
            alive[i], alive[i + 1] = survival, survival * chance
            alive[i + 2], alive[i + 3] = survival * twice, survival * twice * chance
            survival *= twice * twice
            i += 4
        while i < stop:
            alive[i] = survival
            survival *= chance
            i += 1
        k += 1
    return i


@njit(cache=True, fastmath={"contract"})
def _add_survivor(
    requests: FloatArray, tokens: FloatArray, alive: FloatArray, ahead: FloatArray, count: int, held: float
) -> None:
    """One request that holds ``held`` KV tokens in the next step and is there in ``count`` steps, ``ahead`` 0, 1, …, with
    chances ``alive``."""
    for i in range(count):
        requests[i] += alive[i]
        tokens[i] += alive[i] * (held + ahead[i])


@njit(cache=True)
def running_occupancy(
    requests: FloatArray, tokens: FloatArray, worker: IntArray, start: IntArray, slot_entries: IntArray,
    slot_generated: IntArray, edges: IntArray, step: FloatArray, where: IntArray,
) -> None:  # fmt: skip
    """Add to (k, steps): Σ P(R > i) and Σ (s + e + i + 1)·P(R > i) over what runs on each of ``worker`` (k,)."""
    alive, ahead = np.empty(requests.shape[1]), np.arange(float(requests.shape[1]))
    for n in range(worker.shape[0]):
        for slot in range(start[worker[n]], start[worker[n] + 1]):
            row, now = slot_entries[ROW, slot], slot_generated[slot]
            if row == NOTHING:
                continue
            curve, position, cap = where[CURVE, row], where[POSITION, row] + now, where[CAP, row] - now
            count = _fill_survival(alive, edges, step[curve], position, cap)
            _add_survivor(requests[n], tokens[n], alive, ahead, count, float(slot_entries[PROMPT, slot] + now + 1))
