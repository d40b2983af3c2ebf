"""BR-H as published: F over the window as forecast, every slot filled at once (``endcast.router.balance_route``)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import balance_route, discounts
from endcast.router.policy import ClusterView, Decisions, PolicySettings


class BrHPublished:
    """The largest F_H among the N oldest waiting requests, with bounded overtaking: the reference to compare with."""

    needs_forecast = True
    needs_prefix = False
    immediate_dispatch = False

    def __init__(self, settings: PolicySettings) -> None:
        """Reads ``horizon``, ``discount``, ``candidates`` and ``max_overtakes``."""
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
            np.zeros((0, len(view.load))),
        )
        return Decisions(position, worker)
