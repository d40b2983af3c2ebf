"""BalanceRoute: place requests so that lockstep workers stay equally loaded (arXiv 2605.06113).

In lockstep decode every worker waits for the one that holds the most KV tokens. With loads L_g and M = max_g L_g the
idle work of a step is the *imbalance* I = Σ_g (M − L_g). Worker g has the *margin* m = M − L_g: so much can be added to
it before it becomes the heaviest. A request of load d placed on it fills min(d, m) of the idle work; the *overflow*
(d − m)^+ raises M, and all other G − 1 workers wait for it. So placing it lowers the imbalance by

    F(d, m) = min(d, m) − (G − 1)·(d − m)^+  =  d − G·(d − m)^+ .

An assignment is final, and a request that runs for hundreds of steps matters beyond the present one. With forecasts
we know the expected load of each worker over the next H steps,

    L̂_g(h) = Σ_{i on g} (s_i + e_i + h)·P(R_i > h),    M(h) = max_g L̂_g(h),    m_g(h) = M(h) − L̂_g(h),

and that of a candidate, d(h) = (s + h)·P(o > h): it may end inside the window, and others end beside it. The score of
a candidate is then discounted over the window, because far steps are less certain and can still be repaired:

    F_H = Σ_{h=0..H} γ^h · F(d(h), m_g(h)).

H = 0 is BR-0 and needs no forecast: the loads of the next step are known.

Choosing the best of all (request, worker) pairs for every slot would be costly, so there are two stages: first the
worker, the one with a free slot and the largest discounted margin Σ γ^h m_g(h), which is the one with the smallest
discounted load; then the best request for it among the N oldest waiting ones. Every free slot is filled while
anything that fits is waiting. After a placement only that worker's window, M and the margins change, and they are
updated in O(H).

*Bounded overtaking*: choosing by fit alone could pass over a request for ever. A request that ``max_overtakes`` later
arrivals have passed is placed next. The oldest waiting request is always among the most overtaken, so it alone has to
be looked at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from endcast.router.policy import BoolArray
from endcast.survival import Float32Array, FloatArray, IntArray

#: Sums may be reordered so that they use the machine's vector unit; no other liberty is taken.
_REASSOCIATE = {"reassoc", "contract", "nsz"}


def placement_gain(load: npt.ArrayLike, margin: npt.ArrayLike, workers: int) -> FloatArray:
    """F(d, m): by how much placing ``load`` on a worker with ``margin`` lowers the imbalance of ``workers``, in tokens."""
    d, m = np.asarray(load, dtype=np.float64), np.asarray(margin, dtype=np.float64)
    gain: FloatArray = np.minimum(d, m) - (workers - 1) * np.maximum(d - m, 0.0)
    return gain


def discounts(horizon: int, discount: float) -> FloatArray:
    """(H+1,): γ^h."""
    weights: FloatArray = np.power(discount, np.arange(horizon + 1, dtype=np.float64))
    return weights


@njit(cache=True, fastmath=_REASSOCIATE)
def discounted_overflow(load: Float32Array, margin: FloatArray, weight: FloatArray) -> float:
    """Σ_h γ^h (d(h) − m(h))^+."""
    total = 0.0
    for h in range(weight.shape[0]):
        total += weight[h] * max(load[h] - margin[h], 0.0)
    return total


@njit(cache=True, fastmath=_REASSOCIATE)
def discounted_load(load: Float32Array, weight: FloatArray) -> float:
    """Σ_h γ^h d(h)."""
    total = 0.0
    for h in range(weight.shape[0]):
        total += weight[h] * load[h]
    return total


@njit(cache=True)
def choose_worker(discounted: FloatArray, free: IntArray, open_: BoolArray, key: FloatArray) -> int:
    """The open worker with a free slot and the least discounted load, ties to the smallest key; −1 if there is none."""
    best = -1
    for g in range(discounted.shape[0]):
        if not open_[g] or free[g] == 0:
            continue
        lighter = best < 0 or discounted[g] < discounted[best]
        if lighter or (discounted[g] == discounted[best] and key[g] < key[best]):
            best = g
    return best


@njit(cache=True)
def choose_candidate(
    candidate: IntArray,
    count: int,
    gain: FloatArray,
    waiting_load: Float32Array,
    waiting_row: IntArray,
    waiting_prompt: IntArray,
    margin: FloatArray,
    weight: FloatArray,
    workers: int,
    room: int,
) -> int:
    """Index into ``candidate[:count]`` (oldest first) of the best F_H that fits ``room``, ties to the older; else −1.

    ``gain`` holds each candidate's Σ γ^h d(h); F_H is that less G times its discounted overflow.
    """
    best, best_score = -1, 0.0
    for i in range(count):
        j = candidate[i]
        if waiting_prompt[j] + 1 <= room:
            overflow = discounted_overflow(waiting_load[waiting_row[j]], margin, weight)
            score = gain[i] - workers * overflow
            if best < 0 or score > best_score:
                best, best_score = i, score
    return best


@njit(cache=True)
def take_candidate(candidate: IntArray, gain: FloatArray, overtaken: IntArray, count: int, index: int) -> int:
    """Remove entry ``index`` keeping order; those before it, older ones, are overtaken once more. The new count."""
    for i in range(index):
        overtaken[i] += 1
    for i in range(index, count - 1):
        candidate[i] = candidate[i + 1]
        gain[i] = gain[i + 1]
        overtaken[i] = overtaken[i + 1]
    return count - 1


@njit(cache=True)
def place_on(load: FloatArray, heaviest: FloatArray, worker: int, added: Float32Array, weight: FloatArray) -> float:
    """Add a window to a worker's, raise M where it becomes the heaviest; the worker's new discounted load."""
    total = 0.0
    for h in range(weight.shape[0]):
        load[worker, h] += added[h]
        heaviest[h] = max(heaviest[h], load[worker, h])
        total += weight[h] * load[worker, h]
    return total


@njit(cache=True)
def balance_route(
    load: FloatArray,
    waiting_load: Float32Array,
    waiting_row: IntArray,
    waiting_prompt: IntArray,
    waiting_overtaken: IntArray,
    free: IntArray,
    room: IntArray,
    accepting: BoolArray,
    key: FloatArray,
    weight: FloatArray,
    candidates: int,
    max_overtakes: int,
) -> tuple[IntArray, IntArray]:
    """Fill free slots: waiting positions and workers, in the order placed.

    ``load`` (G, H+1) expected loads; row ``waiting_row[i]`` of ``waiting_load`` (rows, H+1) is the expected load of the
    i-th oldest of n waiting requests; ``free`` (G,) slots; ``room`` (G,) KV tokens; ``key`` (G,) breaks ties between
    workers. Of these, the loads are copied and nothing is changed.
    """
    workers, waiting = load.shape[0], waiting_row.shape[0]
    load, free, room, open_ = load.copy(), free.copy(), room.copy(), accepting.copy()
    heaviest, discounted = load[0].copy(), np.empty(workers)
    for g in range(workers):
        discounted[g] = 0.0
        for h in range(weight.shape[0]):
            heaviest[h] = max(heaviest[h], load[g, h])
            discounted[g] += weight[h] * load[g, h]
    most = min(waiting, free[open_].sum())
    position, worker = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    size = min(candidates, waiting)
    candidate, gain, overtaken = np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64)
    count, upcoming, placed = 0, 0, 0
    margin = np.empty(weight.shape[0])
    while placed < most:
        while count < size and upcoming < waiting:
            candidate[count], overtaken[count] = upcoming, waiting_overtaken[upcoming]
            gain[count] = discounted_load(waiting_load[waiting_row[upcoming]], weight)
            count, upcoming = count + 1, upcoming + 1
        g = choose_worker(discounted, free, open_, key)
        if g < 0 or count == 0:
            break
        for h in range(weight.shape[0]):
            margin[h] = heaviest[h] - load[g, h]
        if overtaken[0] >= max_overtakes and waiting_prompt[candidate[0]] + 1 <= room[g]:
            index = 0
        else:
            index = choose_candidate(
                candidate, count, gain, waiting_load, waiting_row, waiting_prompt, margin, weight, workers, room[g]
            )
        if index < 0:
            open_[g] = False
            continue
        j = candidate[index]
        position[placed], worker[placed] = j, g
        placed += 1
        discounted[g] = place_on(load, heaviest, g, waiting_load[waiting_row[j]], weight)
        free[g] -= 1
        room[g] -= waiting_prompt[j] + 1
        count = take_candidate(candidate, gain, overtaken, count, index)
    return position[:placed], worker[:placed]
