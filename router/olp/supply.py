"""What the horizon has left: slots and KV tokens, step by step, once the running requests have had what they need.

Workers with as many slots and as much KV are interchangeable to the prices, so they share a *row*: their supplies are
added up. With a row for each worker, prices tell workers apart by what runs there; with unequal workers each class has
its own row in any case. What runs on a worker is read off its requests' survival curves every few steps, some workers in
each, and moves on by itself in between.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.olp.prices import KV, SLOT
from endcast.router.policy import BoolArray, ClusterView
from endcast.survival import FloatArray, IntArray

#: Slots whose curves are read in one step, at most (and one worker's): a large fleet's sums change slowly.
_SLOTS_A_STEP = 256


def rows_of_workers(slots: IntArray, capacity: IntArray, *, shared: bool) -> IntArray:
    """(G,), the row of prices that each worker has, numbered from 0 in order of appearance."""
    if not shared:
        return np.arange(len(slots))
    _, first, kind = np.unique(np.stack([slots, capacity], axis=1), axis=0, return_index=True, return_inverse=True)
    rows: IntArray = np.argsort(np.argsort(first))[kind.ravel()].astype(np.int64)
    return rows


class Supply:
    """Of the fleet of ``view``, over ``steps`` K; each worker is looked at anew each ``every`` steps, or less often where
    that would be more than a few hundred slots a step."""

    def __init__(self, view: ClusterView, *, steps: int, every: int, shared: bool) -> None:
        workers = len(view.slots)
        self.row = rows_of_workers(view.slots, view.capacity, shared=shared)
        self.rows = int(self.row.max()) + 1
        every = max(every, int(view.slots.sum()) // _SLOTS_A_STEP)
        self._steps, self._every = steps, every
        self._taken: FloatArray = np.zeros((2, workers, steps + every))
        self._made_at = np.full(workers, -every - 1, dtype=np.int64)
        self._turn = np.arange(workers) % every

    def look(self, view: ClusterView) -> None:
        """Work out what runs on those workers whose turn it is."""
        assert view.forecast is not None
        due = _due(view.steps, self._turn, self._made_at, self._every)
        if len(due) == 0:
            return
        self._taken[SLOT, due], self._taken[KV, due] = view.forecast.outlook.occupancy(due, self._taken.shape[2])
        self._made_at[due] = view.steps

    def left(self, view: ClusterView) -> tuple[FloatArray, FloatArray]:
        """(2, rows, K): what is left of slots and KV tokens in each step; (2, rows): how much there is altogether.

        What started on a worker since it was looked at counts like the others there. Workers that accept nothing have
        nothing. What is left may be negative: more is expected than fits.
        """
        left, capacity = np.zeros((2, self.rows, self._steps)), np.zeros((2, self.rows))
        _add_supply(
            left, capacity, self._taken, view.steps - self._made_at, self.row, view.slots, view.capacity, view.active,
            view.load, view.accepting,
        )  # fmt: skip
        return left, np.maximum(capacity, 1.0)


@njit(cache=True)
def _due(steps: int, turn: IntArray, made_at: IntArray, every: int) -> IntArray:
    """(k,): workers whose turn has come between the step in which they were looked at and now."""
    due, count = np.empty(turn.shape[0], dtype=np.int64), 0
    for g in range(turn.shape[0]):
        if (steps + turn[g]) // every != (made_at[g] + turn[g]) // every:
            due[count] = g
            count += 1
    return due[:count].copy()


@njit(cache=True)
def _add_supply(
    left: FloatArray, capacity: FloatArray, taken: FloatArray, since: IntArray, row: IntArray, slots: IntArray,
    tokens: IntArray, active: IntArray, load: IntArray, accepting: BoolArray,
) -> None:  # fmt: skip
    """Add up by rows; ``taken`` (2, G, ≥ K + since) as it was expected ``since`` (G,) steps ago, scaled to what runs now."""
    for g in range(row.shape[0]):
        if not accepting[g]:
            continue
        for c in range(2):
            own, now = (slots[g], active[g]) if c == SLOT else (tokens[g], load[g] + active[g])
            capacity[c, row[g]] += own
            expected = taken[c, g, since[g]]
            scale = now / expected if expected > 0.0 else 0.0
            for k in range(left.shape[2]):
                left[c, row[g], k] += own - scale * taken[c, g, since[g] + k]
