"""Tickets on their way into the cluster core's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.router.cluster import ClusterState
from endcast.router.gateway.tickets import Intake, Ticket
from endcast.survival import NO_CAP, FloatArray, IntArray, SurvivalBatch


def size_of(ticket: Ticket, cluster: ClusterState) -> int:
    """KV tokens that it is admitted with. What goes on elsewhere and has outgrown every worker counts as one that just fits:
    the engines judge it."""
    return min(ticket.to_prefill, int(cluster.capacity.max()) - 1) if ticket.carried else ticket.prompt


def enter_all(cluster: ClusterState, tickets: Sequence[Ticket], forecasts: SurvivalBatch | None) -> None:
    """Tickets (k,) wait, each under its own number, with their forecasts; those that go on elsewhere in front of all others."""
    for front in (True, False):
        chosen = [i for i, ticket in enumerate(tickets) if (ticket.carried > 0) is front]
        chosen = chosen[::-1] if front else chosen  # so that numbers rise
        if not chosen:
            continue
        own = [tickets[i] for i in chosen]
        arrived_s = np.array([ticket.arrived_s for ticket in own])
        if front:
            first_s = cluster.pool.arrival_s[:1]
            arrived_s = np.minimum.accumulate(np.concatenate([first_s, arrived_s[::-1]]))[len(first_s) :][::-1]
        taken = None if forecasts is None else forecasts.take(np.array(chosen))
        numbers, sizes = [ticket.number for ticket in own], [size_of(ticket, cluster) for ticket in own]
        enter(cluster, numbers, sizes, own, arrived_s, taken, front=front)


def enter(
    cluster: ClusterState,
    numbers: Sequence[int],
    prompts: Sequence[int],
    tickets: Sequence[Ticket],
    arrived_s: FloatArray,
    forecasts: SurvivalBatch | None,
    *,
    front: bool = False,
) -> None:
    """Entries (k,) with these numbers and prompts in tokens wait from ``arrived_s`` (k,) on; all else is told by their tickets.

    ``front``: before all that wait, and next.
    """
    intakes = [ticket.intake for ticket in tickets]
    rows = [(ticket.intake.supposed, ticket.intake.tenant, _tokens_left(ticket)) for ticket in tickets]
    supposed, tenant, max_tokens = np.array(rows, dtype=np.int64).T
    cluster.arrive(
        np.array(numbers),
        np.array(prompts),
        arrived_s,
        supposed=supposed,
        tenant=tenant,
        weight=np.array([intake.weight for intake in intakes]),
        max_tokens=max_tokens,
        forecasts=forecasts,
        prefix_blocks=None if cluster.prefixes is None else [_blocks(intake) for intake in intakes],
        front=front,
    )
    overtaken = [ticket.overtaken for ticket in tickets]
    if any(overtaken) and not front:
        cluster.pool.remember_overtaken(np.array(overtaken))


def _blocks(intake: Intake) -> IntArray:
    return np.array(intake.prefix_blocks, dtype=np.int64)


def _tokens_left(ticket: Ticket) -> int:
    """Its cap on output, less what it has by now."""
    cap = ticket.intake.max_tokens
    return cap if cap == NO_CAP else max(cap - ticket.carried, 1)
