"""Shortest expected output first: an order of admission, with bounded overtaking.

Not a policy to route by: it balances nothing but the present load. It is here to measure what an order alone gives
(``endcast.training.value_studies``), so it takes the order as numbers and is not registered.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, keep_for_oldest, take
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
            view.gate,
            view.accepting,
            rng.random(len(view.load)),
            self._settings.candidates,
            self._settings.max_overtakes,
        )
        return Decisions(position, worker)


@njit(cache=True)
def _shortest_first(
    key: FloatArray, prompt: IntArray, overtaken: IntArray, load: FloatArray, free: IntArray, gate: Gate,
    accepting: BoolArray, tie: FloatArray, candidates: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """Waiting positions and workers, in the order placed; ``key`` (n,), oldest first, ``load`` (G,) tokens. No argument
    but the gate is changed."""
    waiting = key.shape[0]
    load, free = load.copy(), free.copy()
    open_, overtaken = accepting.copy(), overtaken.copy()
    position, worker = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    candidate, count, upcoming, placed = np.empty(min(candidates, waiting), dtype=np.int64), 0, 0, 0
    if gate.bounded and waiting > 0 and overtaken[0] >= max_overtakes:
        keep_for_oldest(gate, open_, free)
    g = choose_worker(load, free, open_, tie)
    while g >= 0 and placed < waiting:
        while count < candidate.shape[0] and upcoming < waiting:
            candidate[count] = upcoming
            count, upcoming = count + 1, upcoming + 1
        index, oldest = 0, candidate[0]
        if overtaken[oldest] < max_overtakes or not fits(gate, g, oldest):
            index = _least_that_fits(candidate[:count], key, gate, g)
        if index < 0:
            open_[g] = False
        else:
            j = candidate[index]
            position[placed], worker[placed] = j, g
            load[g], free[g] = load[g] + prompt[j], free[g] - 1
            take(gate, g, j)
            take_candidate(candidate[:count], overtaken, index)
            count, placed = count - 1, placed + 1
        g = choose_worker(load, free, open_, tie)
    return position[:placed].copy(), worker[:placed].copy()


@njit(cache=True)
def _least_that_fits(candidate: IntArray, key: FloatArray, gate: Gate, g: int) -> int:
    """Index into ``candidate``, oldest first, ties to the older; −1 if none fits."""
    best = -1
    for i in range(candidate.shape[0]):
        if fits(gate, g, candidate[i]) and (best < 0 or key[candidate[i]] < key[candidate[best]]):
            best = i
    return best
