"""When running requests end, as a fleet has seen it: a hazard by age, counted as it happens.

A request that has just started hardly ends within the next steps, one that has generated as many tokens as answers mostly
have ends soon. Ages are tokens generated, in intervals of 16 up to 128 and an eighth of their age wide from there; each
has the tokens that were generated at that age and the ends seen there. Tokens of what still runs count as well as those of
what has ended, or the first ends of a fleet, which are the short ones, would make outputs look short. Old counts fade, so
that the figures follow what is asked of the fleet.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, REQUEST
from endcast.router.slots import Slots
from endcast.survival import FloatArray, IntArray

#: An observed end counts e^-1 after so many further ends.
_MEMORY = 2000.0
#: Counted as one end before anything was seen.
_PRIOR_TOKENS = 500.0
#: So many ends with the hazard of the whole fleet are counted at each age beside those seen.
_PRIOR_ENDS = 5.0
#: What a request is expected to do follows its age by so much, and all requests alike for the rest. That the same answers
#: come again is never certain; and a hazard that misses an age's ends would keep the whole memory free.
_BY_AGE = 0.5


def _edges() -> IntArray:
    found = [*range(0, 128, 16)]
    while found[-1] < 1 << 15:
        found.append(found[-1] + max(found[-1] // 8, 16))
    return np.array(found, dtype=np.int64)


#: Where intervals of age begin; the last one has no end.
_EDGES = _edges()
#: The interval of each age below the last edge.
_INTERVAL: IntArray = np.searchsorted(_EDGES, np.arange(_EDGES[-1]), side="right") - 1


class EndRate:
    """Counts of one fleet."""

    def __init__(self) -> None:
        self._tokens, self._ends = np.zeros(len(_EDGES)), np.zeros(len(_EDGES))

    def saw(self, slots: Slots, tokens: IntArray, ended: IntArray) -> None:
        """What runs in the ``slots`` generates ``tokens`` (S,) more in a step, after which those in ``ended`` (k,), distinct, end."""
        _count(_INTERVAL, slots.entries[REQUEST], slots.generated, tokens, ended, self._tokens, self._ends)

    @property
    def tokens_per_end(self) -> float:
        """Tokens that the fleet generates for each end, > 0: 1 over the hazard of all ages."""
        return float((self._tokens.sum() + _PRIOR_TOKENS) / (self._ends.sum() + 1.0))

    def expected(self, slots: Slots, steps: FloatArray) -> FloatArray:
        """(2, G): ends expected in each of the next ``steps`` (G,), ≥ 1, of what runs on a worker; and of one more request."""
        hazard, cumulative = _hazards(_EDGES, self._tokens, self._ends, self.tokens_per_end)
        found: FloatArray = _expected(
            _INTERVAL, _EDGES, hazard, cumulative, slots.entries[REQUEST], slots.generated, slots.start, steps
        )
        return found


@njit(cache=True)
def _count(
    interval: IntArray, request: IntArray, generated: IntArray, tokens: IntArray, ended: IntArray, made: FloatArray,
    ends: FloatArray,
) -> None:  # fmt: skip
    last, gone = made.shape[0] - 1, 0
    for slot in ended:
        gone += 1 if request[slot] != NOTHING else 0
    if gone > 0:
        kept = (1.0 - 1.0 / _MEMORY) ** gone
        for k in range(last + 1):
            made[k] *= kept
            ends[k] *= kept
    for slot in range(request.shape[0]):
        if request[slot] != NOTHING:
            made[interval[generated[slot]] if generated[slot] < interval.shape[0] else last] += tokens[slot]
    for slot in ended:
        if request[slot] != NOTHING:
            ends[interval[generated[slot]] if generated[slot] < interval.shape[0] else last] += 1.0


@njit(cache=True)
def _hazards(edges: IntArray, made: FloatArray, ends: FloatArray, per_end: float) -> tuple[FloatArray, FloatArray]:
    """(K,) of each interval, and (K,) added up over all ages before it."""
    hazard, cumulative = np.empty(made.shape[0]), np.zeros(made.shape[0])
    for k in range(made.shape[0]):
        seen = (ends[k] + _PRIOR_ENDS) / (made[k] + _PRIOR_ENDS * per_end)
        hazard[k] = _BY_AGE * seen + (1.0 - _BY_AGE) / per_end
        if k > 0:
            cumulative[k] = cumulative[k - 1] + (edges[k] - edges[k - 1]) * hazard[k - 1]
    return hazard, cumulative


@njit(cache=True)
def _up_to(age: int, interval: IntArray, edges: IntArray, hazard: FloatArray, cumulative: FloatArray) -> float:
    k = interval[age] if age < interval.shape[0] else hazard.shape[0] - 1
    total: float = cumulative[k] + (age - edges[k]) * hazard[k]
    return total


@njit(cache=True)
def _expected(
    interval: IntArray, edges: IntArray, hazard: FloatArray, cumulative: FloatArray, request: IntArray,
    generated: IntArray, start: IntArray, steps: FloatArray,
) -> FloatArray:  # fmt: skip
    found = np.zeros((2, steps.shape[0]))
    for g in range(steps.shape[0]):
        ahead = int(steps[g])
        for slot in range(start[g], start[g + 1]):
            if request[slot] != NOTHING:
                age = generated[slot]
                now = _up_to(age, interval, edges, hazard, cumulative)
                found[0, g] += _up_to(age + ahead, interval, edges, hazard, cumulative) - now
        found[1, g] = _up_to(ahead, interval, edges, hazard, cumulative)
        found[:, g] /= ahead
    return found
