"""BR-0: balance the loads of the next step; no forecast (``endcast.router.balance_route`` has the algorithm)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import balance_route
from endcast.router.entries import read_only
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.router.prefix_loss import prefix_loss


class BrZero:
    """BalanceRoute with H = 0, over the N oldest waiting requests, with bounded overtaking."""

    needs_forecast = False
    immediate_dispatch = False
    horizon = 0

    def __init__(self, settings: PolicySettings) -> None:
        """Reads ``candidates``, ``max_overtakes`` and ``prefix_weight``."""
        self._settings = settings
        self.needs_prefix = settings.prefix_weight > 0.0

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits."""
        # Read-only like the windows of BR-H, so that both share one compiled kernel.
        position, worker = balance_route(
            read_only(view.load.astype(np.float64)[:, None]),
            read_only(view.waiting_prompt.astype(np.float32)[:, None]),
            read_only(np.arange(len(view.waiting))),
            view.waiting_overtaken,
            view.free,
            view.gate,
            view.accepting,
            rng.random(len(view.load)),
            np.ones(1),
            self._settings.candidates,
            self._settings.max_overtakes,
            prefix_loss(view, self._settings),
        )
        return Decisions(position, worker)
