"""Shortest expected output first: an order of admission, with bounded overtaking.

Not a policy to route by: it balances nothing but the present load. It is here to measure what an order alone gives
(``endcast.training.value_studies``), so it takes the order as numbers and is not registered.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from endcast.router.balance_route import choose_worker, take_candidate
from endcast.router.policy import BoolArray, ClusterView, Decisions, PolicySettings
from endcast.survival import FloatArray, IntArray


class ShortestFirst:
    """Of the N oldest waiting requests the one with the least ``key`` starts, on the worker that holds the least KV.

    ``key`` (n,) by the request's number in the workload. A request that ``max_overtakes`` later arrivals have passed is
    next, whatever its key.
    """

    needs_forecast = False
    needs_prefix = False
    immediate_dispatch = False
    horizon = 0

    def __init__(self, key: FloatArray, settings: PolicySettings) -> None:
        """Reads ``candidates`` and ``max_overtakes``."""
        self._key, self._settings = key, settings

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits."""
        position, worker = _shortest_first(
            self._key[view.waiting],
            view.waiting_prompt,
            view.waiting_overtaken,
            view.load.astype(np.float64),
            view.free,
            view.room,
            view.accepting,
            rng.random(len(view.load)),
            self._settings.candidates,
            self._settings.max_overtakes,
        )
        return Decisions(position, worker)


@njit(cache=True)
def _shortest_first(
    key: FloatArray, prompt: IntArray, overtaken: IntArray, load: FloatArray, free: IntArray, room: IntArray,
    accepting: BoolArray, tie: FloatArray, candidates: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """Waiting positions and workers, in the order placed; ``key`` (n,), oldest first, ``load`` (G,) tokens. No argument
    is changed."""
    waiting = key.shape[0]
    load, free, room = load.copy(), free.copy(), room.copy()
    open_, overtaken = accepting.copy(), overtaken.copy()
    position, worker = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    candidate, count, upcoming, placed = np.empty(min(candidates, waiting), dtype=np.int64), 0, 0, 0
    g = choose_worker(load, free, open_, tie)
    while g >= 0 and placed < waiting:
        while count < candidate.shape[0] and upcoming < waiting:
            candidate[count] = upcoming
            count, upcoming = count + 1, upcoming + 1
        index, oldest = 0, candidate[0]
        if overtaken[oldest] < max_overtakes or prompt[oldest] + 1 > room[g]:
            index = _least_that_fits(candidate[:count], key, prompt, room[g])
        if index < 0:
            open_[g] = False
        else:
            j = candidate[index]
            position[placed], worker[placed] = j, g
            load[g], free[g], room[g] = load[g] + prompt[j], free[g] - 1, room[g] - prompt[j] - 1
            take_candidate(candidate[:count], overtaken, index)
            count, placed = count - 1, placed + 1
        g = choose_worker(load, free, open_, tie)
    return position[:placed].copy(), worker[:placed].copy()


@njit(cache=True)
def _least_that_fits(candidate: IntArray, key: FloatArray, prompt: IntArray, room: int) -> int:
    """Index into ``candidate``, oldest first, ties to the older; −1 if none fits."""
    best = -1
    for i in range(candidate.shape[0]):
        fits = prompt[candidate[i]] + 1 <= room
        if fits and (best < 0 or key[candidate[i]] < key[candidate[best]]):
            best = i
    return best
