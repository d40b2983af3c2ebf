"""OLP: order and place by surplus, the reward of starting now less the prices of what it takes (``docs/olp.md``)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import discounts
from endcast.router.olp.explain import Release, Scarcity
from endcast.router.olp.queue import PricedQueue
from endcast.router.olp.release import release
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.survival import IntArray

_NONE: IntArray = np.zeros(0, dtype=np.int64)


class Olp:
    """Online linear programming with bid prices, bounded overtaking and, if asked for, load shedding.

    Keeps prices and what it learned of the traffic from round to round: one object for one fleet.
    """

    needs_forecast = True
    needs_prefix = False
    immediate_dispatch = False

    def __init__(self, settings: PolicySettings) -> None:
        """Reads ``olp`` and ``max_overtakes``; ``horizon`` and ``discount`` tell workers alike apart by their loads."""
        self.horizon = settings.horizon
        self.queue = PricedQueue(settings)
        self._weight = discounts(settings.horizon, settings.discount)

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits, the highest surplus first."""
        if len(view.waiting) == 0:
            return Decisions(_NONE, _NONE)
        now = self.queue.look(view, rng)
        position, worker = release(
            now.scores.surplus,
            now.scores.row,
            view,
            rng.random(len(view.load)),
            self._weight,
            first=now.first,
            max_overtakes=self.queue.max_overtakes,
            kept=now.kept,
        )
        return self.queue.decisions(position, worker)

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last ``decide`` was made; to be asked before the decisions are carried out."""
        return self.queue.explain(view, decisions)

    def scarce(self) -> tuple[Scarcity, ...]:
        """Which resources are scarce at the prices as they are, where and when, the dearest first."""
        return self.queue.scarce()
