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

H = 0 is BR-0 and needs no forecast: the loads of the next step are known. This is the published form, the policy
``br_h_published``; ``br_h`` replaces F by a convex price (``endcast.router.levelling``).

Choosing the best of all (request, worker) pairs for every slot would be costly, so there are two stages: first the
worker, the one with a free slot and the largest discounted margin Σ γ^h m_g(h), which is the one with the smallest
discounted load; then the best request for it among the N oldest waiting ones. Every free slot is filled while
anything that fits is waiting. After a placement only that worker's window, M and the margins change, and they are
updated in O(H).

*Prefix caches*: a placement may pay a toll for what it loses in them (``endcast.router.prefix_loss``), which is taken off F_H.
A request that would pay one on the worker chosen goes where F_H less its toll is best.

*Bounded overtaking*: choosing by fit alone could pass over a request for ever. A request that ``max_overtakes`` later
arrivals have passed is placed next. The oldest waiting request is always among the most overtaken, so it alone has to
be looked at. Where KV memory binds, it may fit nowhere; then the worker with the most room is kept for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, keep_for_oldest, take
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
def discounted_load(load: Float32Array | FloatArray, weight: FloatArray) -> float:
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
    gain: FloatArray,
    waiting_load: Float32Array,
    waiting_row: IntArray,
    margin: FloatArray,
    weight: FloatArray,
    workers: int,
    gate: Gate,
    g: int,
    toll: FloatArray,
) -> int:
    """Index into ``candidate``, oldest first, of the best F_H that fits worker g, ties to the older; −1 if none fits.

    ``gain[j]`` is the discounted load Σ γ^h d(h) of the j-th oldest request; F_H is that less G times its overflow, and
    less its ``toll`` (n, G) on g, if there are tolls.
    """
    best, best_score = -1, 0.0
    for i in range(candidate.shape[0]):
        j = candidate[i]
        if fits(gate, g, j):
            score = gain[j] - workers * discounted_overflow(waiting_load[waiting_row[j]], margin, weight)
            if toll.shape[0] > 0:
                score -= toll[j, g]
            if best < 0 or score > best_score:
                best, best_score = i, score
    return best


@njit(cache=True)
def worker_by_toll(
    j: int, added: Float32Array, load: FloatArray, heaviest: FloatArray, free: IntArray, open_: BoolArray,
    weight: FloatArray, gate: Gate, g: int, toll: FloatArray,
) -> int:  # fmt: skip
    """The worker where the j-th oldest request has the best F_H less its toll, ties to ``g``: F_H differs by overflow alone."""
    best, least = g, np.inf
    for w in range(load.shape[0]):
        if w != g and (not open_[w] or free[w] == 0 or not fits(gate, w, j)):
            continue
        cost = load.shape[0] * discounted_overflow(added, heaviest - load[w], weight) + toll[j, w]
        if cost < least or (cost == least and w == g):
            best, least = w, cost
    return best


@njit(cache=True)
def take_candidate(candidate: IntArray, overtaken: IntArray, index: int) -> None:
    """Take entry ``index`` out of ``candidate``, keeping order; the older ones before it are overtaken once more."""
    for i in range(index):
        overtaken[candidate[i]] += 1
    for i in range(index, candidate.shape[0] - 1):
        candidate[i] = candidate[i + 1]


@njit(cache=True)
def place_on(load: FloatArray, heaviest: FloatArray, worker: int, added: Float32Array, weight: FloatArray) -> float:
    """Add a window to a worker's, raise M where it becomes the heaviest; the worker's new discounted load."""
    for h in range(weight.shape[0]):
        load[worker, h] += added[h]
        heaviest[h] = max(heaviest[h], load[worker, h])
    total: float = discounted_load(load[worker], weight)
    return total


@njit(cache=True)
def heaviest_load(load: FloatArray) -> FloatArray:
    """(H+1,): M(h) = max_g L̂_g(h)."""
    heaviest: FloatArray = load[0].copy()
    for g in range(1, load.shape[0]):
        for h in range(load.shape[1]):
            heaviest[h] = max(heaviest[h], load[g, h])
    return heaviest


@njit(cache=True)
def discounted_loads(load: FloatArray, weight: FloatArray) -> FloatArray:
    """(G,): Σ_h γ^h L̂_g(h)."""
    discounted = np.empty(load.shape[0])
    for g in range(load.shape[0]):
        discounted[g] = discounted_load(load[g], weight)
    return discounted


@njit(cache=True)
def balance_route(
    load: FloatArray,
    waiting_load: Float32Array,
    waiting_row: IntArray,
    waiting_overtaken: IntArray,
    free: IntArray,
    gate: Gate,
    accepting: BoolArray,
    key: FloatArray,
    weight: FloatArray,
    candidates: int,
    max_overtakes: int,
    toll: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Fill free slots: waiting positions and workers, in the order placed. No argument but the gate is changed.

    ``load`` (G, H+1) expected loads; row ``waiting_row[i]`` of ``waiting_load`` (rows, H+1) is the expected load of the
    i-th oldest of n waiting requests; ``free`` (G,) slots; ``gate`` says who has KV room; ``key`` (G,) breaks ties between
    workers; ``weight`` (H+1,) is γ^h. ``toll`` (m, G) is what the m oldest lose on each worker, as many as ``candidates`` and
    free slots together or all, in tokens of F_H; (0, G) where there is none.
    """
    workers, waiting, steps = load.shape[0], waiting_row.shape[0], weight.shape[0]
    load, free, open_ = load.copy(), free.copy(), accepting.copy()
    overtaken, gain = waiting_overtaken.copy(), np.empty(waiting)
    heaviest, margin, discounted = heaviest_load(load), np.empty(steps), discounted_loads(load, weight)
    position, worker = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    candidate, count, upcoming, placed = np.empty(min(candidates, waiting), dtype=np.int64), 0, 0, 0
    if gate.bounded and waiting > 0 and overtaken[0] >= max_overtakes:
        keep_for_oldest(gate, open_, free)
    g = choose_worker(discounted, free, open_, key)
    while g >= 0 and placed < waiting:
        while count < candidate.shape[0] and upcoming < waiting:
            candidate[count], gain[upcoming] = upcoming, discounted_load(waiting_load[waiting_row[upcoming]], weight)
            count, upcoming = count + 1, upcoming + 1
        for h in range(steps):
            margin[h] = heaviest[h] - load[g, h]
        index, oldest = 0, candidate[0]
        if overtaken[oldest] < max_overtakes or not fits(gate, g, oldest):
            index = choose_candidate(
                candidate[:count], gain, waiting_load, waiting_row, margin, weight, workers, gate, g, toll
            )
        if index < 0:
            open_[g] = False
        else:
            j = candidate[index]
            if toll.shape[0] > 0 and toll[j, g] > 0.0:
                g = worker_by_toll(j, waiting_load[waiting_row[j]], load, heaviest, free, open_, weight, gate, g, toll)
            position[placed], worker[placed] = j, g
            discounted[g] = place_on(load, heaviest, g, waiting_load[waiting_row[j]], weight)
            free[g] -= 1
            take(gate, g, j)
            take_candidate(candidate[:count], overtaken, index)
            count, placed = count - 1, placed + 1
        g = choose_worker(discounted, free, open_, key)
    return position[:placed].copy(), worker[:placed].copy()
