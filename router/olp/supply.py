"""What the horizon has left: slots and KV tokens, step by step, once the running requests have had what they need.

Workers with as many slots and as much KV are interchangeable to the prices, so they share a *row*: their supplies are
added up. With a row for each worker, prices tell workers apart by what runs there; with unequal workers each class has
its own row in any case. What runs on a worker is read off its requests' survival curves every few steps, some workers in
each, and moves on by itself in between.
"""

from __future__ import annotations

import numpy as np

from endcast.router.olp.prices import KV, SLOT
from endcast.router.policy import ClusterView
from endcast.survival import FloatArray, IntArray


def rows_of_workers(slots: IntArray, capacity: IntArray, *, shared: bool) -> IntArray:
    """(G,), the row of prices that each worker has, numbered from 0 in order of appearance."""
    if not shared:
        return np.arange(len(slots))
    _, first, kind = np.unique(np.stack([slots, capacity], axis=1), axis=0, return_index=True, return_inverse=True)
    rows: IntArray = np.argsort(np.argsort(first))[kind.ravel()].astype(np.int64)
    return rows


class Supply:
    """Of the fleet of ``view``, over ``steps`` K; workers are looked at anew each ``every`` steps."""

    def __init__(self, view: ClusterView, *, steps: int, every: int, shared: bool) -> None:
        workers = len(view.slots)
        self.row = rows_of_workers(view.slots, view.capacity, shared=shared)
        self.rows = int(self.row.max()) + 1
        self._steps, self._every = steps, every
        self._taken: FloatArray = np.zeros((2, workers, steps + every))
        self._made_at = np.full(workers, -every - 1, dtype=np.int64)
        self._turn = np.arange(workers) % every

    def look(self, view: ClusterView) -> None:
        """Work out what runs on those workers whose turn it is."""
        assert view.forecast is not None
        due = np.flatnonzero((view.steps + self._turn) // self._every != (self._made_at + self._turn) // self._every)
        if len(due) == 0:
            return
        outlook, length = view.forecast.outlook, self._taken.shape[2]
        self._taken[SLOT, due], self._taken[KV, due] = outlook.occupancy(due, length)
        self._made_at[due] = view.steps

    def left(self, view: ClusterView) -> tuple[FloatArray, FloatArray]:
        """(2, rows, K): what is left of slots and KV tokens in each step; (2, rows): how much there is altogether.

        Workers that accept nothing have nothing. What is left may be negative: more is expected than fits.
        """
        left, capacity = np.zeros((2, self.rows, self._steps)), np.zeros((2, self.rows))
        for g in np.flatnonzero(view.accepting):
            since = view.steps - self._made_at[g]
            taken = self._taken[:, g, since : since + self._steps]
            own = np.array([view.slots[g], view.capacity[g]], dtype=np.float64)
            left[:, self.row[g]] += own[:, None] - taken
            capacity[:, self.row[g]] += own
        return left, np.maximum(capacity, 1.0)
