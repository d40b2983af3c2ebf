"""Load that this router did not dispatch: it takes slots and KV tokens of its worker in the books, for policies to see.

Nobody streams it, so it does not grow by itself and ends only by what the engine tells: ``adopt`` replaces what was
adopted on a worker before.
"""

from __future__ import annotations

import numpy as np

from endcast.router.entries import FIELDS, MAX_TOKENS, NOTHING, PROMPT, REQUEST, ROW, SUPPOSED, TENANT
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import Intake, Ticket
from endcast.survival import NO_CAP, IntArray

#: No request of the router's own has this number.
_NUMBER = 0


class Adopted:
    """What was adopted on each worker of ``core``: ``requests`` (G,) and their KV ``tokens`` (G,)."""

    def __init__(self, core: RoutingCore) -> None:
        self._core = core
        count = len(core.workers)
        self._slots: list[IntArray] = [np.zeros(0, dtype=np.int64)] * count
        self.requests: IntArray = np.zeros(count, dtype=np.int64)
        self.tokens: IntArray = np.zeros(count, dtype=np.int64)

    def own_active(self) -> IntArray:
        """(G,) slots taken by what this router dispatched."""
        active: IntArray = self._core.active() - self.requests
        return active

    def own_load(self) -> IntArray:
        """(G,) KV tokens of what this router dispatched."""
        load: IntArray = self._core.load() - self.tokens
        return load

    def adopt(self, worker: int, requests: int, tokens: int) -> bool:
        """So many foreign requests, with so many KV tokens together, are on ``worker``; whether that is news.

        As many as there are free slots are taken in, each with a token at least, and as much KV as there is room for.
        """
        cluster = self._core.cluster
        active, load = int(self.own_active()[worker]), int(self.own_load()[worker])
        count = max(min(requests, int(cluster.slots.sizes[worker]) - active), 0)
        room = int(cluster.capacity[worker]) - load - active - count
        held = max(min(tokens, room), count) if count else 0
        if (count, held) == (self.requests[worker], self.tokens[worker]):
            return False
        self._release(worker)
        if count:
            self._occupy(worker, count, held)
        self.requests[worker], self.tokens[worker] = count, held
        return True

    def _release(self, worker: int) -> None:
        cluster, taken = self._core.cluster, self._slots[worker]
        rows = cluster.slots.advance(np.zeros(len(cluster.slots), dtype=np.int64), taken)
        if cluster.book is not None:
            cluster.book.drop(rows)
        self._slots[worker] = taken[:0]

    def _occupy(self, worker: int, count: int, tokens: int) -> None:
        cluster, desk = self._core.cluster, self._core.desk
        share, rest = divmod(tokens, count)
        entries = np.empty((FIELDS, count), dtype=np.int64)
        entries[REQUEST], entries[ROW], entries[TENANT] = _NUMBER, NOTHING, NOTHING
        entries[SUPPOSED], entries[MAX_TOKENS] = 0, NO_CAP
        entries[PROMPT] = share
        entries[PROMPT, :rest] += 1
        if cluster.book is not None and desk is not None:
            unknown = [Ticket(_NUMBER, Intake(prompt_tokens=int(size))) for size in entries[PROMPT]]
            entries[ROW] = cluster.book.add(desk.prior(unknown), entries[PROMPT])
        self._slots[worker] = cluster.slots.occupy(np.full(count, worker), entries)
        if cluster.book is not None:
            cluster.book.started(self._slots[worker])
