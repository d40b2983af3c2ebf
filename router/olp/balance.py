"""Surplus orders, BalanceRoute places: the two scores that one free slot is filled by (pure, on arrays).

Prices and rewards know nothing of lockstep: what they start first may leave one worker far heavier than the others, and
all wait for it. BalanceRoute knows nothing of urgency. So the worker is chosen as BalanceRoute does, the one with a free
slot and the least discounted load, and of the N waiting requests with the highest surplus it gets the one with the best

    F_H / (L̄₁·Σ γ^h)  +  μ · surplus / r̄ .

The first term is the imbalance that the placement fills, in mean requests' KV over the window; the second is what it is
worth more than others, in mean rewards of what waits. Both are pure numbers of order 1, and so is μ: 0 leaves the order
to the cut at N alone, a large one places in order of surplus whatever the loads.

Bounded overtaking is that of ``endcast.router.olp.release``. Where none of the N fits the worker, the next in order of
surplus that does is taken: a slot is not left empty while something fits.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, take
from endcast.router.balance_route import (
    choose_worker,
    discounted_load,
    discounted_loads,
    discounted_overflow,
    heaviest_load,
    place_on,
)
from endcast.router.olp.release import open_workers, queue_by_surplus
from endcast.router.policy import BoolArray, ClusterView
from endcast.survival import Float32Array, FloatArray, IntArray


def release_balanced(
    surplus: FloatArray,
    row: IntArray,
    view: ClusterView,
    key: FloatArray,
    weight: FloatArray,
    *,
    worth: float,
    candidates: int,
    first: int,
    max_overtakes: int,
    kept: int,
) -> tuple[IntArray, IntArray]:
    """Waiting positions and workers, in the order placed.

    ``surplus`` (rows, n), ``row`` (G,), ``key``, ``weight``, ``first`` and ``kept`` as ``release`` has them; ``worth`` KV
    tokens of F_H that a unit of surplus counts; ``candidates`` N. The view's gate is used up.
    """
    assert view.forecast is not None
    forecast = view.forecast
    return _release_balanced(  # type: ignore[no-any-return]
        surplus, row, worth, forecast.load, forecast.waiting_load, forecast.waiting_row, view.waiting_overtaken,
        view.free, view.gate, open_workers(view, kept), key, weight, candidates, first, max_overtakes,
    )  # fmt: skip


@njit(cache=True)
def _best_candidate(
    shortlist: IntArray, bonus: FloatArray, gain: FloatArray, waiting_load: Float32Array, waiting_row: IntArray,
    margin: FloatArray, weight: FloatArray, workers: int, gate: Gate, g: int,
) -> int:  # fmt: skip
    """Index into ``shortlist`` of the best score that fits worker ``g``, ties to the higher surplus; −1 if none fits.

    ``bonus`` (n,) what each one's surplus on ``g`` counts, ``gain`` (n,) its discounted load, KV tokens.
    """
    best, best_score = -1, -np.inf
    for i in range(shortlist.shape[0]):
        j = shortlist[i]
        if bonus[j] + gain[j] <= best_score or not fits(gate, g, j):  # overflow can only lower it
            continue
        score = bonus[j] + gain[j] - workers * discounted_overflow(waiting_load[waiting_row[j]], margin, weight)
        if best < 0 or score > best_score:
            best, best_score = i, score
    return best


@njit(cache=True)
def _next_that_fits(queue: IntArray, gone: BoolArray, upcoming: int, gate: Gate, g: int) -> int:
    """Place in ``queue`` from ``upcoming`` on of the first that fits worker ``g``; −1 if none does."""
    for i in range(upcoming, queue.shape[0]):
        if not gone[queue[i]] and fits(gate, g, queue[i]):
            return i
    return -1


@njit(cache=True)
def _lightest_that_fits(
    discounted: FloatArray, free: IntArray, open_: BoolArray, key: FloatArray, gate: Gate, j: int
) -> int:
    """The open worker with the least discounted load on which j may start; −1 if there is none."""
    may = np.zeros(free.shape[0], dtype=np.bool_)
    for g in range(free.shape[0]):
        may[g] = open_[g] and free[g] > 0 and fits(gate, g, j)
    chosen: int = choose_worker(discounted, free, may, key)
    return chosen


@njit(cache=True)
def _release_balanced(
    surplus: FloatArray, row: IntArray, worth: float, load: FloatArray, waiting_load: Float32Array,
    waiting_row: IntArray, waiting_overtaken: IntArray, free: IntArray, gate: Gate, open_: BoolArray, key: FloatArray,
    weight: FloatArray, candidates: int, first: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    workers, waiting, steps = load.shape[0], waiting_row.shape[0], weight.shape[0]
    load, free = load.copy(), free.copy()
    heaviest, margin, discounted = heaviest_load(load), np.empty(steps), discounted_loads(load, weight)
    gain, gone = np.empty(waiting), np.zeros(waiting, dtype=np.bool_)
    position, worker = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    queue, upcoming, placed, older = queue_by_surplus(surplus, row, free, open_), 0, 0, 0
    shortlist, count = np.empty(min(candidates, waiting), dtype=np.int64), 0
    g = choose_worker(discounted, free, open_, key)
    while g >= 0 and placed < waiting:
        while count < shortlist.shape[0] and upcoming < waiting:
            j, upcoming = queue[upcoming], upcoming + 1
            if not gone[j]:
                shortlist[count], gain[j] = j, discounted_load(waiting_load[waiting_row[j]], weight)
                count += 1
        while 0 <= first < waiting and gone[first]:
            first, older = first + 1, older + 1
        j = -1
        if 0 <= first < waiting and waiting_overtaken[first] + placed - older >= max_overtakes:
            due = _lightest_that_fits(discounted, free, open_, key, gate, first)
            if due >= 0:
                j, g = first, due
        if j < 0:
            for h in range(steps):
                margin[h] = heaviest[h] - load[g, h]
            index = _best_candidate(
                shortlist[:count], worth * surplus[row[g]], gain, waiting_load, waiting_row, margin, weight, workers,
                gate, g,
            )  # fmt: skip
            if index >= 0:
                j = shortlist[index]
            else:
                index = _next_that_fits(queue, gone, upcoming, gate, g)
                j = queue[index] if index >= 0 else -1
        if j < 0:
            open_[g] = False
        else:
            gone[j], position[placed], worker[placed] = True, j, g
            discounted[g] = place_on(load, heaviest, g, waiting_load[waiting_row[j]], weight)
            free[g] -= 1
            take(gate, g, j)
            placed += 1
            count = _without_gone(shortlist, count, gone)
        g = choose_worker(discounted, free, open_, key)
    return position[:placed].copy(), worker[:placed].copy()


@njit(cache=True)
def _without_gone(shortlist: IntArray, count: int, gone: BoolArray) -> int:
    """Close the gap that a placed request has left in the first ``count``; how many there are now."""
    kept = 0
    for i in range(count):
        if not gone[shortlist[i]]:
            shortlist[kept] = shortlist[i]
            kept += 1
    return kept
