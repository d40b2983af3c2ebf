"""A pool whose workers or settings changed: its books set up anew, and all that waits or runs moved into them.

Requests keep their tickets, so that whoever streams them notices nothing. What runs keeps its worker, its tokens and its forecast; what
waits keeps its order, how often it was overtaken, and its forecast too, unless the forecaster is another one: then it is asked anew.
What the policy has learned is kept where neither its settings nor the sizes of workers changed: prices are those of a fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.router.book import ForecastBook
from endcast.router.cluster import ClusterState
from endcast.router.entries import NOTHING, PROMPT, REQUEST, ROW
from endcast.router.gateway.config import Pool, Worker
from endcast.router.gateway.forecasts.desk import Desk, Threaded
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.entering import enter, size_of
from endcast.router.gateway.tickets import NOWHERE, Phase, Ticket
from endcast.router.pool import OVERTAKEN
from endcast.survival import IntArray, SurvivalBatch


def rebuild(core: RoutingCore, pool: Pool, workers: Sequence[Worker], places: Sequence[int], desk: Desk | None) -> None:
    """``core`` for ``workers`` and the settings of ``pool``, with all its requests.

    ``places``: for each worker so far its index in ``workers``, or ``NOWHERE``, where nothing must run; its slots must
    be at least what runs there. ``desk`` may be the one so far.
    """
    core._step.close()
    core._step.carry_out_withdrawals()
    before, beats, asked = core.cluster, core.beats, core.desk
    policy, settings = core.policy, core.settings
    _note_overtaken(core)
    open_now = sorted(core.tickets, key=lambda ticket: ticket.number)
    arriving, held = core._arriving, _forecasts_of_waiting(before)
    core._set_up(pool, workers, desk)
    core.cluster.go_on(before)
    if type(policy) is type(core.policy) and settings == core.settings and _same_sizes(before, core.cluster):
        core.policy = policy
        core.cluster.steps, core.cluster.dispatched = (
            before.steps,
            before.dispatched,
        )  # by which it tells time and fleets
    if core.cluster.prefixes is not None and before.prefixes is not None:
        core.cluster.prefixes.go_on(before.prefixes, places)
    core.beats.go_on(beats)
    _move_running([t for t in open_now if t.phase is Phase.RUNNING], before, core, places)
    waiting = [t for t in open_now if t.phase is Phase.WAITING]
    due = [t for t in open_now if t.phase is Phase.ARRIVING]
    if desk is asked:
        core._arriving = arriving
        _move_waiting(waiting, core, held)
        return
    for ticket in waiting + due:
        if isinstance(asked, Threaded):
            asked.let_go(ticket)
        ticket.phase, ticket.forecast = Phase.ARRIVING, None
        core.waiting -= 1
        core._expect(ticket)


def _note_overtaken(core: RoutingCore) -> None:
    """How often each was overtaken, on the tickets of what waits in the pool."""
    pool = core.cluster.pool
    for number, times in zip(pool.field(REQUEST).tolist(), pool.field(OVERTAKEN).tolist(), strict=True):
        core._entries[number][0].overtaken = times


def _same_sizes(one: ClusterState, other: ClusterState) -> bool:
    return np.array_equal(one.slots.sizes, other.slots.sizes) and np.array_equal(one.capacity, other.capacity)


def _forecasts_of_waiting(cluster: ClusterState) -> tuple[list[int], SurvivalBatch] | None:
    """The numbers of what waits in the pool, and its forecasts, where the books have any."""
    book, pool = cluster.book, cluster.pool
    if book is None or len(pool) == 0:
        return None
    return pool.field(REQUEST).tolist(), book.batch(pool.field(ROW), np.zeros(len(pool), dtype=np.int64))


def _move_running(tickets: list[Ticket], before: ClusterState, core: RoutingCore, places: Sequence[int]) -> None:
    """What runs takes slots of the same workers, in the order of starting."""
    held = [(t, i, slot) for t in tickets for i, slot in enumerate(t.slots) if slot != NOWHERE]
    held.sort(key=lambda one: int(before.slots.order[one[2]]))
    for ticket in tickets:
        ticket.worker = places[ticket.worker]
        ticket.companions = ()  # what of them is in a worker's queue is left to the engine's own
    if not held:
        return
    slots = np.array([slot for _, _, slot in held])
    entries, generated = before.slots.entries[:, slots].copy(), before.slots.generated[slots].copy()
    worker = np.array([ticket.worker for ticket, _, _ in held])
    book, forecasts = core.cluster.book, None
    entries[ROW] = NOTHING
    if book is not None:
        forecasts = _forecasts(
            core, [ticket for ticket, _, _ in held], before.book, before.slots.entries[ROW, slots], generated
        )
        entries[ROW] = book.add(forecasts, entries[PROMPT])
    taken = core.cluster.slots.occupy(worker, entries, generated)
    if book is not None and forecasts is not None:
        book.refresh(taken, forecasts)
    for (ticket, answer, _), slot in zip(held, taken.tolist(), strict=True):
        ticket.slots[answer] = slot


def _forecasts(
    core: RoutingCore, tickets: list[Ticket], book: ForecastBook | None, rows: IntArray, generated: IntArray
) -> SurvivalBatch:
    """Of what runs, as the old books have them; the prior's where those had none."""
    if book is not None:
        return book.batch(rows, generated)
    assert core.desk is not None
    return core.desk.prior(tickets).advance(generated)


def _move_waiting(tickets: list[Ticket], core: RoutingCore, held: tuple[list[int], SurvivalBatch] | None) -> None:
    """What waits goes on waiting, in its order, with the forecasts that it has."""
    if not tickets:
        return
    for ticket in tickets:
        core._entries[ticket.number] = (ticket, 0)
        core._holds.wide += ticket.intake.width > 1
    forecasts = None
    if core.cluster.book is not None:
        assert core.desk is not None
        numbers, forecasts = held or ([], None)
        if forecasts is None or numbers != [ticket.number for ticket in tickets]:  # the books had none for some
            forecasts = core.desk.prior(tickets)
    arrived = np.array([ticket.arrived_s for ticket in tickets])
    sizes = [size_of(ticket, core.cluster) for ticket in tickets]
    enter(
        core.cluster, [ticket.number for ticket in tickets], sizes, tickets, np.maximum.accumulate(arrived), forecasts
    )
