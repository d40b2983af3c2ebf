"""Surplus orders, levelling places: the two scores that one free slot is filled by (pure, on arrays).

Prices and rewards know nothing of lockstep: what they start first may leave one worker far heavier than the others, and
all wait for it. BR-H knows nothing of urgency. So the worker is chosen as BR-H does, the one with a free slot and the
least discounted load, and of the N waiting requests with the highest surplus it gets the one with the least

    Φ  −  2·Σ γ^h d̄(h) · L̄₁ · μ · surplus / r̄ .

The first term is the deviation that the placement leaves (``endcast.router.levelling``). The second is what it is worth more
than others, in mean rewards of what waits, and turned into deviation: where a worker lies a mean candidate's load d̄ away
from its level, a token more or less changes Φ by 2·Σ γ^h d̄(h), and one mean reward counts as μ mean requests' KV of those.
So μ is a pure number: 0 leaves the order to the cut at N alone, a large one places in order of surplus whatever the loads.

*Prices that differ between workers* and *prefix caches* are tolls beside Φ, as in levelling: what a request loses on a worker
against the one where it loses least. One that would pay for its prefix on the worker chosen goes where Φ and its toll are
least.

Bounded overtaking is that of ``endcast.router.olp.release``. Where none of the N fits the worker, the next in order of
surplus that does is taken: a slot is not left empty while something fits.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, take
from endcast.router.balance_route import choose_worker, discounted_load, discounted_loads
from endcast.router.levelling import (
    EXCHANGED,
    deviation,
    excess_over_level,
    exchange,
    mean_of_oldest,
    soften_waiting,
    worker_by_toll,
    worker_for,
)
from endcast.router.olp.release import open_workers, queue_by_surplus
from endcast.router.policy import BoolArray, ClusterView
from endcast.survival import Float32Array, FloatArray, IntArray


def release_balanced(
    surplus: FloatArray,
    row: IntArray,
    view: ClusterView,
    load: FloatArray,
    share: float,
    key: FloatArray,
    weight: FloatArray,
    *,
    lost: FloatArray,
    lost_by: IntArray,
    worth: float,
    candidates: int,
    first: int,
    max_overtakes: int,
    kept: int,
) -> tuple[IntArray, IntArray]:
    """Waiting positions and workers, in the order placed.

    ``surplus`` (rows, n), ``row`` (G,), ``key``, ``weight``, ``first`` and ``kept`` as ``release`` has them; ``load`` (G, H+1)
    windows of the workers of which ``share`` is what is forecast; ``worth`` KV tokens a step that a unit of surplus counts;
    ``candidates`` N. ``lost`` (m, G) is what the waiting requests ``lost_by`` (m,) lose in prefix caches, in KV tokens a
    step. The view's gate is used up.
    """
    assert view.forecast is not None
    forecast = view.forecast
    return _release_balanced(  # type: ignore[no-any-return]
        surplus, row, worth, lost, lost_by, load, forecast.waiting_load, forecast.waiting_row, view.waiting_prompt,
        share, view.waiting_overtaken, view.free, view.gate, view.accepting, open_workers(view, kept), view.speed, key,
        weight, candidates, first, max_overtakes,
    )  # fmt: skip


@njit(cache=True)
def _tolls(
    surplus: FloatArray, row: IntArray, worth: float, lost: FloatArray, lost_by: IntArray, unit: float
) -> FloatArray:
    """(n, G): what each request costs on each worker beyond where it costs least, deviation of prices and of prefixes
    together; (0, G) where neither tells workers apart."""
    if surplus.shape[0] == 1 and lost.shape[0] == 0:
        return np.zeros((0, row.shape[0]))
    toll = np.empty((surplus.shape[1], row.shape[0]))
    for j in range(toll.shape[0]):
        best = surplus[:, j].max()
        for g in range(toll.shape[1]):
            toll[j, g] = worth * (best - surplus[row[g], j])
    for i in range(lost.shape[0]):
        toll[lost_by[i]] += unit * lost[i]
    return toll


@njit(cache=True)
def _best_candidate(
    candidate: IntArray, window: Float32Array, who: IntArray, best: FloatArray, worth: float, toll: FloatArray,
    excess: FloatArray, scale: float, weight: FloatArray, gate: Gate, g: int,
) -> int:  # fmt: skip
    """Index into ``candidate`` of what leaves the least deviation and ``toll`` less ``worth`` its surplus where that is
    ``best`` (n,), and fits worker ``g``; ties to the higher surplus; −1 if none fits."""
    index, least = -1, np.inf
    for i in range(candidate.shape[0]):
        j = who[candidate[i]]
        cost = deviation(excess, window[candidate[i]], scale, weight) - worth * best[j]
        if toll.shape[0] > 0:
            cost += toll[j, g]
        if cost < least and fits(gate, g, j):
            index, least = i, cost
    return index


@njit(cache=True)
def _next_that_fits(queue: IntArray, gone: BoolArray, upcoming: int, gate: Gate, g: int) -> int:
    """The first in ``queue`` from ``upcoming`` on that fits worker ``g``; −1 if none does."""
    for i in range(upcoming, queue.shape[0]):
        if not gone[queue[i]] and fits(gate, g, queue[i]):
            return queue[i]  # type: ignore[no-any-return]
    return -1


@njit(cache=True)
def _best_surplus(surplus: FloatArray) -> FloatArray:
    """(n,) of each request, on the row where it is highest."""
    best: FloatArray = surplus[0].copy()
    for r in range(1, surplus.shape[0]):
        for j in range(best.shape[0]):
            best[j] = max(best[j], surplus[r, j])
    return best


@njit(cache=True)
def _look(
    j: int, window: Float32Array, who: IntArray, place: IntArray, looked: int, waiting_load: Float32Array,
    waiting_row: IntArray, prompt: IntArray, share: float,
) -> int:  # fmt: skip
    """Row of the j-th oldest request's ``window``, in the next one, ``looked``, if it has none yet."""
    if place[j] < 0:
        soften_waiting(window[looked], waiting_load[waiting_row[j]], prompt[j], share)
        place[j], who[looked] = looked, j
    return place[j]  # type: ignore[no-any-return]


@njit(cache=True)
def _release_balanced(
    surplus: FloatArray, row: IntArray, worth: float, lost: FloatArray, lost_by: IntArray, load: FloatArray,
    waiting_load: Float32Array, waiting_row: IntArray, prompt: IntArray, share: float, waiting_overtaken: IntArray,
    free: IntArray, gate: Gate, accepting: BoolArray, open_: BoolArray, speed: FloatArray, key: FloatArray,
    weight: FloatArray, candidates: int, first: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    waiting, free, detour = waiting_row.shape[0], free.copy(), np.full(waiting_row.shape[0], -1)
    # Each placement brings one more candidate, and may be of one that is none.
    most = min(waiting, candidates + 2 * free.sum())
    window, who = np.empty((most, weight.shape[0]), dtype=np.float32), np.empty(most, dtype=np.int64)
    place, looked, gone = np.full(waiting, -1), 0, np.zeros(waiting, dtype=np.bool_)
    queue, upcoming, placed, older = queue_by_surplus(surplus, row, free, open_), 0, 0, 0
    candidate, count = np.empty(min(candidates, waiting), dtype=np.int64), 0
    chosen, worker = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    while count < candidate.shape[0]:
        candidate[count] = _look(queue[count], window, who, place, count, waiting_load, waiting_row, prompt, share)
        count += 1
    looked, upcoming, mean = count, count, mean_of_oldest(window, count)
    unit = 2.0 * discounted_load(mean, weight)
    toll, best = _tolls(surplus, row, worth * unit, lost, lost_by, unit), _best_surplus(surplus)
    for i in range(lost.shape[0]):
        detour[lost_by[i]] = i
    excess = excess_over_level(load, mean, free, accepting, speed, waiting)
    discounted = discounted_loads(excess, weight)
    g = choose_worker(discounted, free, open_, key)
    while g >= 0 and placed < waiting:
        while count < candidate.shape[0] and upcoming < waiting:
            j, upcoming = queue[upcoming], upcoming + 1
            if not gone[j]:
                candidate[count] = _look(j, window, who, place, looked, waiting_load, waiting_row, prompt, share)
                looked, count = max(looked, candidate[count] + 1), count + 1
        while 0 <= first < waiting and gone[first]:
            first, older = first + 1, older + 1
        r = -1
        if 0 <= first < waiting and waiting_overtaken[first] + placed - older >= max_overtakes:
            due = _look(first, window, who, place, looked, waiting_load, waiting_row, prompt, share)
            looked = max(looked, due + 1)
            own = toll[first] if toll.shape[0] > 0 else discounted[:0]
            to = worker_for(first, window[due], excess, free, open_, speed, key, weight, gate, own)
            if to >= 0:
                r, g = due, to
        if r < 0:  # the worker's other free slots will get the mean
            among, filled = candidate[:count], excess[g] + (free[g] - 1) / speed[g] * mean
            index = _best_candidate(
                among, window, who, best, worth * unit, toll, filled, 1.0 / speed[g], weight, gate, g
            )
            j = who[candidate[index]] if index >= 0 else _next_that_fits(queue, gone, upcoming, gate, g)
            if j >= 0:
                r = _look(j, window, who, place, looked, waiting_load, waiting_row, prompt, share)
                looked = max(looked, r + 1)
                if detour[j] >= 0 and lost[detour[j], g] > 0.0:
                    others, own = waiting - placed - 1, toll[j]
                    g = worker_by_toll(j, window[r], mean, excess, free, open_, speed, weight, gate, g, others, own)
        if r < 0:
            open_[g] = False
        else:
            gone[who[r]], chosen[placed], worker[placed] = True, r, g
            excess[g] += window[r] / speed[g]
            discounted[g], free[g] = discounted_load(excess[g], weight), free[g] - 1
            take(gate, g, who[r])
            placed += 1
            count = _without_gone(candidate, count, gone, who)
        g = choose_worker(discounted, free, open_, key)
    last = min(placed, EXCHANGED)
    own_tolls = toll[who[:looked]] if toll.shape[0] > 0 else toll
    exchange(chosen[:last], worker[:last], window, who, excess, speed, weight, gate, own_tolls)
    return who[chosen[:placed]], worker[:placed].copy()


@njit(cache=True)
def _without_gone(candidate: IntArray, count: int, gone: BoolArray, who: IntArray) -> int:
    """Close the gap that a placed request has left in the first ``count``; how many there are now."""
    kept = 0
    for i in range(count):
        if not gone[who[candidate[i]]]:
            candidate[kept] = candidate[i]
            kept += 1
    return kept
