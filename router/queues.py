"""Workers' own FIFO queues, for policies that dispatch every request on arrival: linked lists over recycled nodes."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.gate import Gate, entry_fits, take_entry
from endcast.router.entries import FIELDS, MAX_TOKENS, NOTHING, PROMPT, ROW, SUPPOSED
from endcast.survival import IntArray

#: The row behind an entry's own: the node that follows in the queue.
NEXT = FIELDS


class Queues:
    """One queue a worker; over workers (G,): ``count`` of requests, their prompt ``tokens``, ``supposed`` output."""

    def __init__(self, workers: int, capacity: int = 1024) -> None:
        self.count, self.tokens, self.supposed = (np.zeros(workers, dtype=np.int64) for _ in range(3))
        self._first, self._last = (np.full(workers, NOTHING, dtype=np.int64) for _ in range(2))
        self._nodes = np.zeros((FIELDS + 1, capacity), dtype=np.int64)
        self._spare = np.arange(capacity - 1, -1, -1)  # unused nodes: a stack at its beginning
        self._held = 0

    def push(self, worker: IntArray, entries: IntArray) -> None:
        """Add requests (6, k) to the ends of these workers' queues (k,), in order."""
        self._make_room(len(worker))
        _push(
            worker, entries, self._nodes, self._spare, self._held, self._first, self._last,
            self.count, self.tokens, self.supposed,
        )  # fmt: skip
        self._held += len(worker)

    def pop_fitting(self, free: IntArray, gate: Gate) -> tuple[IntArray, IntArray]:
        """Take from each queue's head what finds free slots (G,) and passes the gate: workers (k,), entries (6, k)."""
        worker, entries = _pop_fitting(
            free, gate, self._nodes, self._spare, self._held, self._first, self.count, self.tokens, self.supposed
        )
        self._held -= len(worker)
        return worker, entries

    def _make_room(self, more: int) -> None:
        size = len(self._spare)
        if self._held + more <= size:
            return
        larger = 2 * (self._held + more)
        nodes = np.zeros((FIELDS + 1, larger), dtype=np.int64)
        nodes[:, :size] = self._nodes
        self._spare = np.concatenate([np.arange(larger - 1, size - 1, -1), self._spare])
        self._nodes = nodes


@njit(cache=True)
def _push(
    worker: IntArray, entries: IntArray, nodes: IntArray, spare: IntArray, held: int, first: IntArray,
    last: IntArray, count: IntArray, tokens: IntArray, supposed: IntArray,
) -> None:  # fmt: skip
    for i in range(worker.shape[0]):
        g, node = worker[i], spare[spare.shape[0] - 1 - held - i]
        for c in range(FIELDS):
            nodes[c, node] = entries[c, i]
        nodes[NEXT, node] = NOTHING
        if count[g] == 0:
            first[g] = node
        else:
            nodes[NEXT, last[g]] = node
        last[g] = node
        count[g] += 1
        tokens[g] += entries[PROMPT, i]
        supposed[g] += entries[SUPPOSED, i]


@njit(cache=True)
def _pop_fitting(
    free: IntArray, gate: Gate, nodes: IntArray, spare: IntArray, held: int, first: IntArray, count: IntArray,
    tokens: IntArray, supposed: IntArray,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    most, taken = 0, 0
    for g in range(free.shape[0]):
        most += min(free[g], count[g])
    worker, entries = np.empty(most, np.int64), np.empty((FIELDS, most), np.int64)
    for g in range(free.shape[0]):
        slots_left = free[g]
        while slots_left > 0 and count[g] > 0:
            node = first[g]
            if not entry_fits(gate, g, nodes[PROMPT, node], 0, nodes[MAX_TOKENS, node], nodes[ROW, node]):
                break
            take_entry(gate, g, nodes[PROMPT, node], 0, nodes[MAX_TOKENS, node], nodes[ROW, node])
            worker[taken] = g
            for c in range(FIELDS):
                entries[c, taken] = nodes[c, node]
            slots_left -= 1
            first[g] = nodes[NEXT, node]
            count[g] -= 1
            tokens[g] -= nodes[PROMPT, node]
            supposed[g] -= nodes[SUPPOSED, node]
            spare[spare.shape[0] - held + taken] = node
            taken += 1
    return worker[:taken], entries[:, :taken].copy()
