"""Requests that need several slots of one worker at once (n > 1), which a policy places like any other.

Where the worker that it chose has too few free slots, that worker is held: it takes nothing else until enough are free.
So a wide request waits at most until the longest of what runs there has ended, and none overtakes it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from endcast.router.cluster import ClusterState
from endcast.router.entries import REQUEST
from endcast.router.gateway.tickets import Ticket
from endcast.router.policy import Decisions


class Holds:
    """Workers held for wide requests, and whether workers accept anything for other reasons."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._healthy = [True] * len(cluster.slots.sizes)
        self._held: dict[int, Ticket] = {}
        self.wide = 0  #: wide requests that wait

    @property
    def any_wide(self) -> bool:
        """Whether decisions must be looked at before they are applied."""
        return self.wide > 0

    def accept(self, worker: int, accepting: bool) -> None:
        """``worker`` is or is not to be given requests; one that fails is no longer held."""
        self._healthy[worker] = accepting
        if not accepting:
            self._held.pop(worker, None)
        self._cluster.accept(worker, accepting and worker not in self._held)

    def forget(self, ticket: Ticket) -> None:
        """``ticket`` is placed or gone: nothing is held for it."""
        if ticket.intake.width == 1:
            return
        self.wide -= 1
        for worker in [worker for worker, held in self._held.items() if held is ticket]:
            del self._held[worker]
            self._cluster.accept(worker, self._healthy[worker])

    def fitting(self, decisions: Decisions, ticket_of: Callable[[int], Ticket]) -> Decisions:
        """The decisions without those whose worker has too few free slots; such a worker is held from now on."""
        slots, waiting = self._cluster.slots, self._cluster.pool.field(REQUEST)
        free = (slots.sizes - slots.active).tolist()
        kept = []
        places = zip(decisions.position.tolist(), decisions.worker.tolist(), strict=True)
        for i, (position, worker) in enumerate(places):
            ticket = ticket_of(int(waiting[position]))
            if worker in self._held and self._held[worker] is not ticket:
                continue
            need = min(ticket.intake.width, int(slots.sizes[worker]))
            if need <= free[worker]:
                free[worker] -= need
                kept.append(i)
            elif ticket.intake.width > 1 and not any(held is ticket for held in self._held.values()):
                self._held[worker] = ticket  # closed with the next round: what is kept above may still go there
        return Decisions(decisions.position[kept], decisions.worker[kept], decisions.refused)

    def ready(self) -> Iterator[Decisions]:
        """Placements of wide requests whose held worker has room for them by now, one by one; begins a round."""
        for worker in self._held:
            self._cluster.accept(worker, False)
        for worker, ticket in list(self._held.items()):
            slots, capacity = self._cluster.slots, int(self._cluster.capacity[worker])
            active, size = int(slots.active[worker]), int(slots.sizes[worker])
            room = capacity - int(slots.load[worker]) - active
            if min(ticket.intake.width, size) <= size - active and ticket.prompt < room:
                position = np.searchsorted(self._cluster.pool.field(REQUEST), [ticket.number])
                with self.opened(worker):
                    yield Decisions(position, np.array([worker]))

    @contextmanager
    def opened(self, worker: int) -> Iterator[None]:
        """Within, ``worker`` accepts what is placed there on purpose."""
        self._cluster.accept(worker, True)
        try:
            yield
        finally:
            self._cluster.accept(worker, self._healthy[worker] and worker not in self._held)
