"""Levelling: BalanceRoute's placement with a convex price, so that it also holds where the pool is short of large requests.

F (``endcast.router.balance_route``) is linear below the margin: a thousand tokens are worth as much on a worker that is
nearly the heaviest as on the lightest one. Filled greedily, every worker takes the largest request that fits, large
ones are used up where they are hardly needed, and what is left in the pool is too small to lift the workers that have
just lost one. Here each worker has a *level* to reach, and a deviation from it costs its square,

    Φ = Σ_g Σ_h γ^h·ψ(x_g(h)),    x_g(h) = L̂_g(h) − T(h),    ψ(x) = x² below the level, A·x² above it:

above it all others wait. The level lies between what the mean worker will hold once the free slots are filled, each
by the candidates' mean d̄, and the heaviest load:

    T(h) = (1 − μ)·T̄(h) + μ·max(T̄(h), M(h)),    T̄(h) = (Σ_g L̂_g(h) + k·d̄(h))/G,    k slots to fill.

Φ is a sum over workers, so the stages of BalanceRoute stay: the worker with the least discounted load first, then, of
the N oldest requests that fit, the one after which Φ is least. What one worker takes another lacks; therefore requests
placed in the same round are exchanged between workers as long as that lowers Φ. A request that ``max_overtakes`` later
arrivals have passed is placed next, on the worker where it raises Φ least.

*Prefix caches*: what a placement loses in them (``endcast.router.prefix_loss``) is a toll beside Φ, at every stage. A request
that would pay one on the worker chosen goes where Φ and its toll are least.

Workers may differ: with loads and requests in KV tokens over a worker's speed, what is levelled is the time that each
needs for a step.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, keep_for_oldest, take
from endcast.router.balance_route import choose_worker, discounted_load, discounted_loads, heaviest_load, take_candidate
from endcast.router.deviation import MEAN, OVERLOAD, SPREAD, deviation, least_deviation, moments, moments_of
from endcast.router.policy import BoolArray
from endcast.survival import Float32Array, FloatArray, IntArray

#: μ: how far the level lies from the mean towards the heaviest worker.
TOWARDS_HEAVIEST = 0.25
#: So much of a window is what forecasts say; the rest is the present carried on, as if nothing ended.
FORECAST_SHARE = 0.3
#: Exchanges are sought this often, among so many of a round's placements.
_PASSES, EXCHANGED = 2, 32
#: An exchange must lower Φ by more than this share: sums differ by rounding.
_LEAST_GAIN = 1e-6
#: A fleet none of whose workers accepts anything has no level; it needs none.
_STANDSTILL = 1e-9
_REASSOCIATE = {"reassoc", "contract", "nsz"}


@njit(cache=True)
def soften_loads(load: FloatArray, active: IntArray, share: float) -> FloatArray:
    """Windows (G, H+1) of the workers: ``share`` of what is forecast, ``load`` (G, H+1), and for the rest as if none of the
    ``active`` (G,) requests ended."""
    still, softened = 1.0 - share, np.empty_like(load)
    for g in range(load.shape[0]):
        for h in range(load.shape[1]):
            softened[g, h] = share * load[g, h] + still * (load[g, 0] + active[g] * h)
    return softened


@njit(cache=True)
def soften_waiting(out: Float32Array, expected: Float32Array, prompt: int, share: float) -> None:
    """The same of a waiting request of ``prompt`` tokens: ``out`` and ``expected`` (H+1,)."""
    still = 1.0 - share
    for h in range(out.shape[0]):
        out[h] = share * expected[h] + still * (prompt + h)


@njit(cache=True)
def soften_oldest(waiting_load: Float32Array, waiting_row: IntArray, prompt: IntArray, share: float) -> Float32Array:
    """The same (n, H+1) of the n oldest, whose forecasts are the rows ``waiting_row`` (n,) of ``waiting_load``; ``prompt`` (≥ n,)."""
    waiting = np.empty((waiting_row.shape[0], waiting_load.shape[1]), dtype=np.float32)
    for i in range(waiting_row.shape[0]):
        soften_waiting(waiting[i], waiting_load[waiting_row[i]], prompt[i], share)
    return waiting


@njit(cache=True)
def excess_over_level(
    load: FloatArray, mean: FloatArray, free: IntArray, accepting: BoolArray, speed: FloatArray, waiting: int
) -> FloatArray:
    """(G, H+1): x_g(h), loads (G, H+1) in KV tokens over ``speed`` (G,), less the level T(h).

    ``waiting`` requests of ``mean`` (H+1,) load fill what is ``free`` (G,) on workers that are ``accepting`` (G,).
    """
    excess, tokens, rate, slots = np.empty_like(load), np.zeros(load.shape[1]), 0.0, 0
    for g in range(load.shape[0]):
        excess[g] = load[g] / speed[g]
        if accepting[g]:
            tokens, rate, slots = tokens + load[g], rate + speed[g], slots + free[g]
    heaviest = heaviest_load(excess)
    for h in range(load.shape[1]):
        level = (tokens[h] + min(slots, waiting) * mean[h]) / max(rate, _STANDSTILL)
        excess[:, h] -= level + TOWARDS_HEAVIEST * max(heaviest[h] - level, 0.0)
    return excess


@njit(cache=True)
def choose_levelling(
    candidate: IntArray, waiting_load: Float32Array, moment: FloatArray, excess: FloatArray, scale: float,
    weight: FloatArray, gate: Gate, g: int, toll: FloatArray,
) -> int:  # fmt: skip
    """Index into ``candidate``, oldest first, of what fits worker g and leaves the least deviation and ``toll``; −1 if
    nothing fits. ``moment`` (n, 2) of ``waiting_load``.

    What is likely best is looked at first, and then only what could be better (``endcast.router.deviation``).
    """
    bound, likely = np.empty(candidate.shape[0]), -1
    total, (mean, spread) = weight.sum(), moments(excess, weight)
    for i in range(candidate.shape[0]):
        j = candidate[i]
        rest = abs(spread - scale * moment[j, SPREAD])
        bound[i] = least_deviation(mean + scale * moment[j, MEAN], rest, total)
        if toll.shape[0] > 0:
            bound[i] += toll[j, g]
        if likely < 0 or bound[i] < bound[likely]:
            likely = i
    best, least = -1, np.inf
    for n in range(-1, candidate.shape[0]):
        i = likely if n < 0 else n
        if i < 0 or (n == likely) or bound[i] > least:
            continue
        j = candidate[i]
        cost = deviation(excess, waiting_load[j], scale, weight)
        if toll.shape[0] > 0:
            cost += toll[j, g]
        if (cost < least or (cost == least and i < best)) and fits(gate, g, j):
            best, least = i, cost
    return best


@njit(cache=True)
def worker_for(
    j: int, added: Float32Array, excess: FloatArray, free: IntArray, open_: BoolArray, speed: FloatArray,
    key: FloatArray, weight: FloatArray, gate: Gate, toll: FloatArray,
) -> int:  # fmt: skip
    """The open worker with a free slot and room on which the j-th oldest request raises Φ, and its ``toll`` (G,) or (0,),
    least; −1 if it fits none."""
    best, least = -1, np.inf
    for g in range(excess.shape[0]):
        if not open_[g] or free[g] == 0 or not fits(gate, g, j):
            continue
        rise = deviation(excess[g], added, 1.0 / speed[g], weight) - deviation(excess[g], added, 0.0, weight)
        if toll.shape[0] > 0:
            rise += toll[g]
        if rise < least or (rise == least and key[g] < key[best]):
            best, least = g, rise
    return best


@njit(cache=True)
def worker_by_toll(
    j: int, added: Float32Array, mean: FloatArray, excess: FloatArray, free: IntArray, open_: BoolArray,
    speed: FloatArray, weight: FloatArray, gate: Gate, g: int, others: int, toll: FloatArray,
) -> int:  # fmt: skip
    """The worker where the j-th oldest request leaves the least Φ and ``toll`` (G,), ties to ``g``, which it fits.

    ``others`` still wait, of ``mean`` (H+1,) load: each other free slot has its share of them, and so would this one.
    """
    best, least, slots = g, np.inf, 0
    for w in range(excess.shape[0]):
        slots += free[w] if open_[w] else 0
    share = min(1.0, others / max(slots - 1, 1)) * mean
    for w in range(excess.shape[0]):
        if w != g and (not open_[w] or free[w] == 0 or not fits(gate, w, j)):
            continue
        scale = 1.0 / speed[w]
        filled = excess[w] + (free[w] - 1) * scale * share
        rise = deviation(filled, added, scale, weight) - deviation(filled + scale * share, added, 0.0, weight)
        if rise + toll[w] < least or (rise + toll[w] == least and w == g):
            best, least = w, rise + toll[w]
    return best


@njit(cache=True, fastmath=_REASSOCIATE)
def _exchanged(excess: FloatArray, takes: Float32Array, gives: Float32Array, scale: float, weight: FloatArray) -> float:
    """What a worker's deviation costs if it gives one request for another: their windows ``gives``, ``takes``."""
    total = 0.0
    for h in range(weight.shape[0]):
        x = excess[h] + scale * (takes[h] - gives[h])
        total += weight[h] * x * (max(x, 0.0) * OVERLOAD + min(x, 0.0))
    return total


@njit(cache=True)
def _least_exchanged(own: FloatArray, takes: FloatArray, gives: FloatArray, scale: float, total: float) -> float:
    """The least that it could cost, by moments (2,) alone."""
    off, between = scale * (takes[SPREAD] + gives[SPREAD]), scale * abs(takes[SPREAD] - gives[SPREAD])
    spread = max(own[SPREAD] - off, between - own[SPREAD], 0.0)
    least: float = least_deviation(own[MEAN] + scale * (takes[MEAN] - gives[MEAN]), spread, total)
    return least


@njit(cache=True)
def exchange(
    placed: IntArray, worker: IntArray, waiting_load: Float32Array, moment: FloatArray, who: IntArray, excess: FloatArray,
    speed: FloatArray, weight: FloatArray, gate: Gate, toll: FloatArray,
) -> int:  # fmt: skip
    """Swap requests on different workers while that lowers Φ and ``toll``; how many swaps. Changes ``placed``, ``excess``.

    ``placed`` (k,) are rows of ``waiting_load``, ``moment`` (n, 2) and ``toll``, the ``who[row]``-th oldest waiting requests.

    Where KV memory is bounded each must fit its new worker beside all that was placed there, the other one too.
    """
    swaps, total, nothing = 0, weight.sum(), np.zeros(weight.shape[0], dtype=np.float32)
    own, cost = np.empty((excess.shape[0], 2)), np.empty(excess.shape[0])
    for g in worker:
        own[g, MEAN], own[g, SPREAD] = moments(excess[g], weight)
        cost[g] = deviation(excess[g], nothing, 0.0, weight)
    for _ in range(_PASSES):
        before = swaps
        for p in range(placed.shape[0]):
            for q in range(p):
                a, b, one, other = worker[p], worker[q], placed[p], placed[q]
                if a == b:
                    continue
                to_a, to_b, now, paid = 1.0 / speed[a], 1.0 / speed[b], cost[a] + cost[b], 0.0
                if toll.shape[0] > 0:
                    now += toll[one, a] + toll[other, b]
                    paid = toll[other, a] + toll[one, b]
                enough = now - _LEAST_GAIN * abs(now) - paid
                at_a = _least_exchanged(own[a], moment[other], moment[one], to_a, total)
                if at_a + _least_exchanged(own[b], moment[one], moment[other], to_b, total) >= enough:
                    continue
                gives, takes = waiting_load[one], waiting_load[other]
                at_a = _exchanged(excess[a], takes, gives, to_a, weight)
                at_b = _exchanged(excess[b], gives, takes, to_b, weight)
                if at_a + at_b < enough and fits(gate, a, who[other]) and fits(gate, b, who[one]):
                    take(gate, a, who[other])
                    take(gate, b, who[one])
                    for h in range(weight.shape[0]):
                        excess[a, h] += to_a * (takes[h] - gives[h])
                        excess[b, h] -= to_b * (takes[h] - gives[h])
                    for g in (a, b):
                        own[g, MEAN], own[g, SPREAD] = moments(excess[g], weight)
                    placed[p], placed[q], cost[a], cost[b] = other, one, at_a, at_b
                    swaps += 1
        if swaps == before:
            break
    return swaps


@njit(cache=True)
def mean_of_oldest(waiting_load: Float32Array, count: int) -> FloatArray:
    """(H+1,): mean load of the ``count`` oldest waiting requests."""
    mean = np.zeros(waiting_load.shape[1])
    for i in range(count):
        for h in range(mean.shape[0]):
            mean[h] += waiting_load[i, h]
    return mean / max(count, 1)


@njit(cache=True)
def levelling(
    load: FloatArray, waiting_load: Float32Array, waiting_overtaken: IntArray, free: IntArray,
    gate: Gate, accepting: BoolArray, speed: FloatArray, key: FloatArray, weight: FloatArray, candidates: int,
    max_overtakes: int, lost: FloatArray,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """Fill free slots: waiting positions and workers, in the order placed. No argument but the gate is changed.

    ``waiting_load`` (n, H+1) of the n oldest waiting requests, at least as many as ``candidates`` and free slots
    together, or all; ``speed`` (G,) > 0 of the workers; the others as ``endcast.router.balance_route.balance_route``
    has them. ``lost`` (n, G) is what each loses on each worker, in KV tokens of deviation a mean request's load away from the
    level, where Φ rises by 2·d̄ a token; (0, G) where nothing is lost.
    """
    waiting, free, open_, overtaken = waiting_load.shape[0], free.copy(), accepting.copy(), waiting_overtaken.copy()
    candidate, position, worker, placed = np.arange(min(candidates, waiting)), np.arange(waiting), np.arange(waiting), 0
    count = upcoming = candidate.shape[0]
    mean, moment = mean_of_oldest(waiting_load, count), moments_of(waiting_load, waiting, weight)
    toll = lost * (2.0 * discounted_load(mean, weight))
    excess = excess_over_level(load, mean, free, accepting, speed, waiting)
    discounted = discounted_loads(excess, weight)
    if gate.bounded and waiting > 0 and overtaken[0] >= max_overtakes:
        keep_for_oldest(gate, open_, free)
    g = choose_worker(discounted, free, open_, key)
    while g >= 0 and placed < waiting:
        if count < candidate.shape[0] and upcoming < waiting:
            candidate[count], count, upcoming = upcoming, count + 1, upcoming + 1
        index, due, oldest = 0, -1, candidate[0]
        if overtaken[oldest] >= max_overtakes:
            added = waiting_load[oldest]
            own = toll[oldest] if toll.shape[0] > 0 else discounted[:0]
            due = worker_for(oldest, added, excess, free, open_, speed, key, weight, gate, own)
        if due >= 0:
            g = due
        else:  # the worker's other free slots will get the mean
            filled = excess[g] + (free[g] - 1) / speed[g] * mean
            among, scale = candidate[:count], 1.0 / speed[g]
            index = choose_levelling(among, waiting_load, moment, filled, scale, weight, gate, g, toll)
            if toll.shape[0] > 0 and index >= 0 and toll[among[index], g] > 0.0:
                j = among[index]
                others = waiting - placed - 1
                added = waiting_load[j]
                g = worker_by_toll(j, added, mean, excess, free, open_, speed, weight, gate, g, others, toll[j])
        if index < 0:
            open_[g] = False
        else:
            position[placed], worker[placed] = candidate[index], g
            excess[g] += waiting_load[candidate[index]] / speed[g]
            discounted[g], free[g] = discounted_load(excess[g], weight), free[g] - 1
            take(gate, g, candidate[index])
            take_candidate(candidate[:count], overtaken, index)
            count, placed = count - 1, placed + 1
        g = choose_worker(discounted, free, open_, key)
    last = min(placed, EXCHANGED)
    who = np.arange(waiting)
    exchange(position[:last], worker[:last], waiting_load, moment, who, excess, speed, weight, gate, toll)
    return position[:placed].copy(), worker[:placed].copy()
