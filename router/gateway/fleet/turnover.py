"""From one list of workers to another while requests run: who stays, who comes, who may go only once it is empty."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from endcast.router.gateway.config import Worker
from endcast.router.gateway.tickets import NOWHERE


class FleetChange(msgspec.Struct, frozen=True):
    """``workers`` from now on; ``places``: for each worker so far its index among them, or ``NOWHERE``; ``closed``: those
    that take nothing new because they are to go, or run more than they may."""

    workers: tuple[Worker, ...]
    places: tuple[int, ...]
    closed: frozenset[int]


def fleet_change(before: Sequence[Worker], after: Sequence[Worker], active: Sequence[int]) -> FleetChange:
    """To the workers ``after``, told apart by address and rank, while so many requests are ``active`` on those ``before``.

    A worker that is not listed any more stays, closed, while anything runs there; one that now has fewer slots than requests
    keeps as many as these take, closed. Call it again with the same list when something has ended.
    """
    index = {worker.name: worker.index for worker in after}
    workers, places, closed = list(after), list[int](), set[int]()
    for worker, running in zip(before, active, strict=True):
        place = index.get(worker.name, NOWHERE)
        if place == NOWHERE and running:
            place = len(workers)
            workers.append(msgspec.structs.replace(worker, index=place, slots=max(running, 1)))
            closed.add(place)
        elif place != NOWHERE and running > workers[place].slots:
            workers[place] = msgspec.structs.replace(workers[place], slots=running)
            closed.add(place)
        places.append(place)
    return FleetChange(tuple(workers), tuple(places), frozenset(closed))
