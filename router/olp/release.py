"""Who starts now, and where: in order of surplus, as far as slots and the admission rule go (pure, on arrays).

Nothing is sent anywhere to queue: what cannot start in this step stays in the central pool. A slot is never left empty
while something fits, whatever its surplus. Two rules keep large or slow requests from waiting for ever:

- *Bounded overtaking*: the oldest waiting request that fits some worker at all is next once ``max_overtakes`` later
  arrivals have passed it.
- *Reservation*: if it is past its bound and no worker has room for it now, the one that is expected to hold the least
  KV is kept for it: nothing else starts there until it does, so what drains makes room.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, fits, take
from endcast.router.balance_route import choose_worker, discounted_load, discounted_loads
from endcast.router.policy import BoolArray, ClusterView
from endcast.survival import Float32Array, FloatArray, IntArray


def guarded(view: ClusterView) -> int:
    """Position of the oldest waiting request that some accepting worker could hold, were it empty; −1 if there is none."""
    return int(_first_that_fits(view.waiting_prompt, view.capacity, view.accepting))


@njit(cache=True)
def _first_that_fits(prompt: IntArray, capacity: IntArray, accepting: BoolArray) -> int:
    most = 0
    for g in range(capacity.shape[0]):
        if accepting[g]:
            most = max(most, capacity[g])
    for j in range(prompt.shape[0]):
        if prompt[j] < most:
            return j
    return -1


def reservation(view: ClusterView, position: int, max_overtakes: int, kept: int) -> int:
    """The worker to keep for the request at ``position``, −1 for none; ``kept`` is the one kept for it before, or −1."""
    if view.waiting_overtaken[position] < max_overtakes:
        return -1
    could = view.accepting & (view.capacity > view.waiting_prompt[position])
    if starts_somewhere(view.gate, could, view.free, position):
        return -1
    if kept >= 0 and could[kept]:
        return kept
    assert view.forecast is not None
    spare = view.capacity - view.forecast.load[:, -1]
    return int(np.argmax(np.where(could, spare, -np.inf))) if could.any() else -1


@njit(cache=True)
def starts_somewhere(gate: Gate, open_: BoolArray, free: IntArray, j: int) -> bool:
    """Whether the j-th oldest request may start on an open worker (G,) now."""
    found = False
    for g in range(free.shape[0]):
        found = found or (open_[g] and free[g] > 0 and fits(gate, g, j))
    return found


def open_workers(view: ClusterView, kept: int) -> BoolArray:
    """(G,), those that accept requests and are not kept for one."""
    open_: BoolArray = view.accepting.copy()
    if kept >= 0:
        open_[kept] = False
    return open_


def release(
    surplus: FloatArray,
    row: IntArray,
    view: ClusterView,
    key: FloatArray,
    weight: FloatArray,
    *,
    first: int,
    max_overtakes: int,
    kept: int,
) -> tuple[IntArray, IntArray]:
    """Waiting positions and workers, in the order placed.

    ``surplus`` (rows, n); ``row`` (G,) of each worker; of workers alike the one with the least load over the window is
    taken, discounted by ``weight`` (H+1,), ties to the smallest ``key`` (G,). ``first`` is ``guarded``'s position and
    ``kept`` the worker of ``reservation``. The view's gate is used up.
    """
    assert view.forecast is not None
    forecast = view.forecast
    return _release(  # type: ignore[no-any-return]
        surplus, row, forecast.load, forecast.waiting_load, forecast.waiting_row, view.waiting_overtaken, view.free,
        view.gate, open_workers(view, kept), key, weight, first, max_overtakes,
    )  # fmt: skip


@njit(cache=True)
def _best_worker(
    surplus: FloatArray, row: IntArray, load: FloatArray, free: IntArray, gate: Gate, open_: BoolArray, key: FloatArray,
    j: int,
) -> int:  # fmt: skip
    """Of the workers on which j fits, that with the most surplus, then the least load, then the smallest key; or −1."""
    best = -1
    for g in range(row.shape[0]):
        if not open_[g] or free[g] == 0:
            continue
        if best >= 0:
            one, other = surplus[row[g], j], surplus[row[best], j]
            lighter = load[g] < load[best] or (load[g] == load[best] and key[g] < key[best])
            if one < other or (one == other and not lighter):
                continue
        if fits(gate, g, j):
            best = g
    return best


@njit(cache=True)
def best_usable(surplus: FloatArray, row: IntArray, free: IntArray, open_: BoolArray) -> FloatArray:
    """(n,): surplus on the best row that has a free slot; −∞ where none has."""
    usable = np.zeros(surplus.shape[0], dtype=np.bool_)
    for g in range(row.shape[0]):
        usable[row[g]] |= open_[g] and free[g] > 0
    best = np.full(surplus.shape[1], -np.inf)
    for r in range(surplus.shape[0]):
        if usable[r]:
            for j in range(best.shape[0]):
                best[j] = max(best[j], surplus[r, j])
    return best


@njit(cache=True)
def highest(best: FloatArray, most: int) -> IntArray:
    """Positions of the ``most`` highest, or of all, highest first; the older of equals first."""
    count = best.shape[0]
    if most >= count:
        return np.argsort(-best, kind="mergesort")
    least, chosen, kept = np.partition(best, count - most)[count - most], np.empty(most, dtype=np.int64), 0
    equals = most - np.sum(best > least)
    for j in range(count):
        equal = best[j] == least
        if best[j] > least or (equal and equals > 0):
            chosen[kept], kept = j, kept + 1
            equals -= equal
    return chosen[np.argsort(-best[chosen], kind="mergesort")]


@njit(cache=True)
def _release(
    surplus: FloatArray, row: IntArray, load: FloatArray, waiting_load: Float32Array, waiting_row: IntArray,
    waiting_overtaken: IntArray, free: IntArray, gate: Gate, open_: BoolArray, key: FloatArray, weight: FloatArray,
    first: int, max_overtakes: int,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    waiting, free = waiting_row.shape[0], free.copy()
    discounted, gone = discounted_loads(load, weight), np.zeros(waiting, dtype=np.bool_)
    position, worker = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    queue, upcoming, placed, older = highest(best_usable(surplus, row, free, open_), waiting), 0, 0, 0
    while upcoming < waiting and choose_worker(discounted, free, open_, key) >= 0:
        j, g = -1, -1
        while 0 <= first < waiting and gone[first]:
            first, older = first + 1, older + 1
        if 0 <= first < waiting and waiting_overtaken[first] + placed - older >= max_overtakes:
            j = first
            g = _best_worker(surplus, row, discounted, free, gate, open_, key, j)
        if g < 0:
            j, upcoming = queue[upcoming], upcoming + 1
            if not gone[j]:
                g = _best_worker(surplus, row, discounted, free, gate, open_, key, j)
        if g >= 0:
            gone[j], position[placed], worker[placed] = True, j, g
            free[g] -= 1
            take(gate, g, j)
            discounted[g] += discounted_load(waiting_load[waiting_row[j]], weight)
            placed += 1
    return position[:placed].copy(), worker[:placed].copy()
