"""Tickets on their way into the cluster core's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.router.cluster import ClusterState
from endcast.router.gateway.tickets import Ticket
from endcast.survival import FloatArray, SurvivalBatch


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
    rows = [(intake.supposed, intake.tenant, intake.max_tokens) for intake in intakes]
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
