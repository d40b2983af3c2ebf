"""The central pool: requests that no worker has been given yet, in order of arrival.

Columns lie contiguously between ``head`` and ``tail`` of growing buffers, so a view of the waiting set is a slice.
Placed requests are mostly among the oldest: removal moves the few older survivors up and costs nothing behind them.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import FIELDS, read_only
from endcast.survival import FloatArray, IntArray

#: The row behind an entry's own: how many later arrivals have been placed before it.
OVERTAKEN = FIELDS
#: Beyond any bound on overtaking: such a request is placed next.
AT_ONCE = 1 << 40
#: What is kept of each as a real number: when it arrived, in seconds, and its weight.
ARRIVAL_S, WEIGHT = range(2)


class Pool:
    """Waiting requests, oldest first."""

    def __init__(self, capacity: int = 1024) -> None:
        self._head, self._tail = 0, 0
        self._keep(np.zeros((FIELDS + 1, capacity), dtype=np.int64), np.zeros((2, capacity)))

    def _keep(self, columns: IntArray, numbers: FloatArray) -> None:
        self._columns, self._numbers = columns, numbers
        self._columns_shown, self._numbers_shown = read_only(columns), read_only(numbers)

    def __len__(self) -> int:
        return self._tail - self._head

    def field(self, index: int) -> IntArray:
        """One field of what waits (n,), oldest first; read-only."""
        part: IntArray = self._columns_shown[index, self._head : self._tail]
        return part

    @property
    def columns(self) -> tuple[IntArray, int]:
        """All fields (fields, …), of which the oldest waiting request is in the column told; read-only."""
        return self._columns_shown, self._head

    @property
    def arrival_s(self) -> FloatArray:
        """(n,), seconds, non-decreasing; read-only."""
        part: FloatArray = self._numbers_shown[ARRIVAL_S, self._head : self._tail]
        return part

    @property
    def weight(self) -> FloatArray:
        """(n,), what a request counts beside others; read-only."""
        part: FloatArray = self._numbers_shown[WEIGHT, self._head : self._tail]
        return part

    def append(self, entries: IntArray, arrival_s: FloatArray, weight: FloatArray | float = 1.0) -> None:
        """Add requests (6, k), arrived at ``arrival_s`` (k,) and of ``weight`` (k,), behind those that wait."""
        count = entries.shape[1]
        self._make_room(count)
        new = slice(self._tail, self._tail + count)
        self._columns[:FIELDS, new] = entries
        self._columns[OVERTAKEN, new] = 0
        self._numbers[ARRIVAL_S, new] = arrival_s
        self._numbers[WEIGHT, new] = weight
        self._tail = new.stop

    def remember_overtaken(self, times: IntArray) -> None:
        """The last (k,) that were added have been overtaken so many ``times`` (k,) already, in a pool before this one."""
        self._columns[OVERTAKEN, self._tail - len(times) : self._tail] = times

    def prepend(self, entries: IntArray, arrival_s: FloatArray, weight: FloatArray | float = 1.0) -> None:
        """Put requests (6, k) in front of those that wait, to be placed next: they count as overtaken often enough."""
        count = entries.shape[1]
        if self._head < count:
            self._grow(0, count)
        new = slice(self._head - count, self._head)
        self._columns[:FIELDS, new] = entries
        self._columns[OVERTAKEN, new] = AT_ONCE
        self._numbers[ARRIVAL_S, new] = arrival_s
        self._numbers[WEIGHT, new] = weight
        self._head = new.start

    def remove(self, position: IntArray, *, overtaking: bool = True) -> IntArray:
        """Take out those at ``position`` (k,), distinct: their entries (6, k), in the order given.

        Where they are placed (``overtaking``), each older one that stays has been passed by every younger one.
        """
        taken: IntArray = _remove(position, self._columns, self._numbers, self._head, overtaking)
        self._head += len(position)
        return taken

    def _make_room(self, more: int) -> None:
        if self._tail + more > self._columns.shape[1]:
            self._grow(more, 0)

    def _grow(self, behind: int, before: int) -> None:
        held = len(self)
        size = max(2 * (held + behind + before), self._columns.shape[1])
        columns, numbers = np.zeros((FIELDS + 1, size), dtype=np.int64), np.zeros((2, size))
        columns[:, before : before + held] = self._columns[:, self._head : self._tail]
        numbers[:, before : before + held] = self._numbers[:, self._head : self._tail]
        self._head, self._tail = before, before + held
        self._keep(columns, numbers)


@njit(cache=True)
def _remove(position: IntArray, columns: IntArray, numbers: FloatArray, head: int, overtaking: bool) -> IntArray:
    count, last = position.shape[0], 0
    taken = np.empty((FIELDS, count), dtype=np.int64)
    if count == 0:
        return taken  # there may be no column at the head
    for i in range(count):
        last = max(last, position[i])
        for c in range(FIELDS):
            taken[c, i] = columns[c, head + position[i]]
    gone = np.zeros(last + 1, dtype=np.bool_)
    for i in range(count):
        gone[position[i]] = True
    passed, write = 0, head + last
    for p in range(last, -1, -1):
        if gone[p]:
            passed += 1
            continue
        read = head + p
        for c in range(columns.shape[0]):
            columns[c, write] = columns[c, read]
        if overtaking:
            columns[OVERTAKEN, write] += passed
        for c in range(numbers.shape[0]):
            numbers[c, write] = numbers[c, read]
        write -= 1
    return taken
