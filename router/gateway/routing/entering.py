"""Tickets on their way into the cluster core's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.router.cluster import ClusterState
from endcast.router.gateway.tickets import Ticket
from endcast.survival import NO_CAP, FloatArray, SurvivalBatch


def enter_all(
    cluster: ClusterState, tickets: Sequence[Ticket], arrived_s: FloatArray, forecasts: SurvivalBatch | None
) -> None:
    """Tickets (k,) wait from ``arrived_s`` (k,) on, each under its own number, with the KV tokens that it must have.

    What goes on elsewhere and has outgrown every worker counts as one that just fits: the engines judge it.
    """
    largest = int(cluster.capacity.max()) - 1
    sizes = [min(ticket.to_prefill, largest) if ticket.carried else ticket.prompt for ticket in tickets]
    enter(cluster, [ticket.number for ticket in tickets], sizes, tickets, arrived_s, forecasts)


def enter(
    cluster: ClusterState,
    numbers: Sequence[int],
    prompts: Sequence[int],
    tickets: Sequence[Ticket],
    arrived_s: FloatArray,
    forecasts: SurvivalBatch | None,
) -> None:
    """Entries (k,) with these numbers and prompts in tokens wait from ``arrived_s`` (k,) on; all else is told by their tickets."""
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
    )
    overtaken = [ticket.overtaken for ticket in tickets]
    if any(overtaken):
        cluster.pool.remember_overtaken(np.array(overtaken))


def _tokens_left(ticket: Ticket) -> int:
    """Its cap on output, less what it has by now."""
    cap = ticket.intake.max_tokens
    return cap if cap == NO_CAP else max(cap - ticket.carried, 1)
