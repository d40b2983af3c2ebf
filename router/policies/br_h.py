"""BR-H: balance the expected loads of the next H steps (``endcast.router.balance_route`` has the algorithm)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import balance_route, discounts
from endcast.router.policy import ClusterView, Decisions, PolicySettings


class BrH:
    """BalanceRoute over a discounted window, among the N oldest waiting requests, with bounded overtaking."""

    needs_forecast = True
    needs_prefix = False
    immediate_dispatch = False

    def __init__(self, settings: PolicySettings) -> None:
        """Reads all of the settings."""
        self.horizon = settings.horizon
        self._settings = settings
        self._weight = discounts(settings.horizon, settings.discount)

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits."""
        assert view.forecast is not None
        position, worker = balance_route(
            view.forecast.load,
            view.forecast.waiting_load,
            view.forecast.waiting_row,
            view.waiting_overtaken,
            view.free,
            view.gate,
            view.accepting,
            rng.random(len(view.load)),
            self._weight,
            self._settings.candidates,
            self._settings.max_overtakes,
        )
        return Decisions(position, worker)
