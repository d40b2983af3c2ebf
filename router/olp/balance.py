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

from typing import NamedTuple

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, take
from endcast.router.balance_route import choose_worker, discounted_load, discounted_loads
from endcast.router.deviation import MEAN, SPREAD, deviation, least_deviation, moments
from endcast.router.levelling import EXCHANGED, excess_over_level, exchange, mean_of_oldest, worker_by_toll, worker_for
from endcast.router.olp.release import best_usable, highest, open_workers
from endcast.router.olp.shortlist import COUNT, LOOKED, Shortlist, Waiting, fill_up, look, shortlist_of, take_out
from endcast.router.policy import BoolArray, ClusterView
from endcast.survival import Float32Array, FloatArray, IntArray


class Worth(NamedTuple):
    """What requests are worth and cost, turned into deviation: ``surplus`` (rows, n), the ``row`` (G,) of each worker, the
    ``usable`` (n,) surplus that orders the queue; deviation that a ``unit`` of surplus and a lost ``token`` count; who is the i-th to
    lose prefixes, or −1, in ``detour`` (n,), and what it loses, ``lost`` (m, G). By row of the shortlist: ``value`` (m,), and
    ``toll`` (m, G), what each worker costs beyond the best one; (0, G) where workers cannot be told apart."""

    surplus: FloatArray
    row: IntArray
    usable: FloatArray
    unit: float
    token: float
    detour: IntArray
    lost: FloatArray
    value: FloatArray
    toll: FloatArray


class Workers(NamedTuple):
    """The fleet as a round fills it: ``excess`` (G, H+1) over the level and its ``discounted`` (G,) sum, ``free`` slots,
    ``open_``; ``speed``, ``key`` (G,); ``mean`` (H+1,) load of a candidate; the ``gate``."""

    excess: FloatArray
    discounted: FloatArray
    free: IntArray
    open_: BoolArray
    speed: FloatArray
    key: FloatArray
    mean: FloatArray
    gate: Gate


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
def _price(worth: Worth, short: Shortlist, first: int) -> int:
    """Value and tolls of the rows from ``first`` on that are new; the next row."""
    for r in range(first, short.at[LOOKED]):
        j = short.who[r]
        best = worth.surplus[:, j].max()
        worth.value[r] = worth.unit * best
        for g in range(worth.toll.shape[1] if worth.toll.shape[0] > 0 else 0):
            worth.toll[r, g] = worth.unit * (best - worth.surplus[worth.row[g], j])
            if worth.detour[j] >= 0:
                worth.toll[r, g] += worth.token * worth.lost[worth.detour[j], g]
    looked: int = short.at[LOOKED]
    return looked


@njit(cache=True)
def _toll_of(worth: Worth, r: int) -> FloatArray:
    """(G,) of a row; (0,) without tolls."""
    return worth.toll[r] if worth.toll.shape[0] > 0 else worth.value[:0]


@njit(cache=True)
def _best_candidate(
    short: Shortlist, worth: Worth, excess: FloatArray, scale: float, weight: FloatArray, gate: Gate, g: int
) -> int:
    """Row of the candidate that leaves the least deviation and toll less its value, and fits worker ``g``; ties to the higher
    surplus; −1 if none fits. As in ``levelling.choose_levelling``, only what could be best is looked at closely."""
    count, likely = short.at[COUNT], -1
    bound, own = np.empty(count), np.empty(count)
    total, (mean, spread) = weight.sum(), moments(excess, weight)
    for i in range(count):
        r = short.candidate[i]
        own[i] = (worth.toll[r, g] if worth.toll.shape[0] > 0 else 0.0) - worth.value[r]
        rest = abs(spread - scale * short.moment[r, SPREAD])
        bound[i] = least_deviation(mean + scale * short.moment[r, MEAN], rest, total) + own[i]
        if likely < 0 or bound[i] < bound[likely]:
            likely = i
    best, least = -1, np.inf
    for n in range(-1, count):
        i = likely if n < 0 else n
        if i < 0 or n == likely or bound[i] > least:
            continue
        r = short.candidate[i]
        cost = deviation(excess, short.window[r], scale, weight) + own[i]
        if (cost < least or (cost == least and i < best)) and fits(gate, g, short.who[r]):
            best, least = i, cost
    return short.candidate[best] if best >= 0 else -1


@njit(cache=True)
def _next_that_fits(usable: FloatArray, gone: BoolArray, gate: Gate, g: int) -> int:
    """Of what is still there and fits worker ``g``, that with the highest surplus; −1 if nothing does."""
    best = -1
    for j in range(usable.shape[0]):
        if not gone[j] and (best < 0 or usable[j] > usable[best]) and fits(gate, g, j):
            best = j
    return best


@njit(cache=True)
def _choose(short: Shortlist, waiting: Waiting, worth: Worth, fleet: Workers, g: int, others: int) -> tuple[int, int]:
    """Row and worker of the next placement, on ``g`` unless prefixes say otherwise; −1 if nothing fits ``g``.

    The worker's other free slots will get the mean; ``others`` will still wait.
    """
    filled, scale = fleet.excess[g] + (fleet.free[g] - 1) / fleet.speed[g] * fleet.mean, 1.0 / fleet.speed[g]
    r = _best_candidate(short, worth, filled, scale, waiting.weight, fleet.gate, g)
    if r < 0:
        j = _next_that_fits(worth.usable, short.gone, fleet.gate, g)
        if j < 0:
            return -1, g
        before = short.at[LOOKED]
        r = look(short, waiting, j)
        _price(worth, short, before)
    j = short.who[r]
    if worth.detour[j] >= 0 and worth.lost[worth.detour[j], g] > 0.0:
        g = worker_by_toll(
            j, short.window[r], fleet.mean, fleet.excess, fleet.free, fleet.open_, fleet.speed, waiting.weight, fleet.gate,
            g, others, worth.toll[r],
        )  # fmt: skip
    return r, g


@njit(cache=True)
def _overdue(short: Shortlist, waiting: Waiting, worth: Worth, fleet: Workers, first: int) -> tuple[int, int]:
    """Row and worker of the request that is past its bound, if it fits anywhere; else −1."""
    before = short.at[LOOKED]
    r = look(short, waiting, first)
    _price(worth, short, before)
    g = worker_for(
        first, short.window[r], fleet.excess, fleet.free, fleet.open_, fleet.speed, fleet.key, waiting.weight, fleet.gate,
        _toll_of(worth, r),
    )  # fmt: skip
    return (r, g) if g >= 0 else (-1, -1)


@njit(cache=True)
def _place(short: Shortlist, fleet: Workers, weight: FloatArray, r: int, g: int) -> None:
    fleet.excess[g] += short.window[r] / fleet.speed[g]
    fleet.discounted[g] = discounted_load(fleet.excess[g], weight)
    fleet.free[g] -= 1
    take(fleet.gate, g, short.who[r])
    take_out(short, r)


@njit(cache=True)
def _opening(
    surplus: FloatArray, row: IntArray, worth_tokens: float, lost: FloatArray, lost_by: IntArray, load: FloatArray,
    waiting: Waiting, free: IntArray, gate: Gate, accepting: BoolArray, open_: BoolArray, speed: FloatArray,
    key: FloatArray, candidates: int,
) -> tuple[Shortlist, Worth, Workers]:  # fmt: skip
    """The round before anything is placed."""
    count, weight = waiting.row.shape[0], waiting.weight
    # Each placement brings one more candidate, and may be of one that is none.
    most = min(count, candidates + 2 * free.sum())
    usable = best_usable(surplus, row, free, open_)
    short = shortlist_of(highest(usable, most), waiting, candidates, most)
    mean = mean_of_oldest(short.window, short.at[COUNT])
    token = 2.0 * discounted_load(mean, weight)
    detour = np.full(count, -1)
    for i in range(lost.shape[0]):
        detour[lost_by[i]] = i
    told_apart = surplus.shape[0] > 1 or lost.shape[0] > 0
    toll = np.empty((most if told_apart else 0, row.shape[0]))
    worth = Worth(surplus, row, usable, worth_tokens * token, token, detour, lost, np.empty(most), toll)
    excess = excess_over_level(load, mean, free, accepting, speed, count)
    fleet = Workers(excess, discounted_loads(excess, weight), free.copy(), open_, speed, key, mean, gate)
    return short, worth, fleet


@njit(cache=True)
def _release_balanced(
    surplus: FloatArray, row: IntArray, worth_tokens: float, lost: FloatArray, lost_by: IntArray, load: FloatArray,
    waiting_load: Float32Array, waiting_row: IntArray, prompt: IntArray, share: float, overtaken: IntArray,
    free: IntArray, gate: Gate, accepting: BoolArray, open_: BoolArray, speed: FloatArray, key: FloatArray,
    weight: FloatArray, candidates: int, first: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    count, waiting = waiting_row.shape[0], Waiting(waiting_load, waiting_row, prompt, share, weight)
    short, worth, fleet = _opening(
        surplus, row, worth_tokens, lost, lost_by, load, waiting, free, gate, accepting, open_, speed, key, candidates
    )
    most = len(short.who)
    chosen, worker = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    placed, older, priced = 0, 0, _price(worth, short, 0)
    g = choose_worker(fleet.discounted, fleet.free, open_, key)
    while g >= 0 and placed < count:
        fill_up(short, waiting)
        priced = _price(worth, short, priced)
        while 0 <= first < count and short.gone[first]:
            first, older = first + 1, older + 1
        r, to = -1, g
        if 0 <= first < count and overtaken[first] + placed - older >= max_overtakes:
            r, to = _overdue(short, waiting, worth, fleet, first)
        if r < 0:
            r, to = _choose(short, waiting, worth, fleet, g, count - placed - 1)
        if r < 0:
            open_[g] = False
        else:
            _place(short, fleet, weight, r, to)
            chosen[placed], worker[placed], placed = r, to, placed + 1
        g = choose_worker(fleet.discounted, fleet.free, open_, key)
    last = min(placed, EXCHANGED)
    exchange(
        chosen[:last],
        worker[:last],
        short.window,
        short.moment,
        short.who,
        fleet.excess,
        speed,
        weight,
        gate,
        worth.toll,
    )
    return short.who[chosen[:placed]], worker[:placed].copy()
