"""BR-H: level the expected loads of the next H steps (``endcast.router.levelling`` has the algorithm)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import discounts
from endcast.router.levelling import FORECAST_SHARE, levelling, soften_loads, soften_oldest
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.router.prefix_loss import prefix_loss
from endcast.router.skill import WindowSkill


class BrH:
    """Levelling over a discounted window, among the N oldest waiting requests, with bounded overtaking."""

    needs_forecast = True
    immediate_dispatch = False

    def __init__(self, settings: PolicySettings) -> None:
        """Reads ``horizon``, ``discount``, ``candidates``, ``max_overtakes`` and ``prefix_weight``."""
        self.horizon = settings.horizon
        self.needs_prefix = settings.prefix_weight > 0.0
        self._settings = settings
        self._weight = discounts(settings.horizon, settings.discount)
        self._skill = WindowSkill(settings.horizon)

    @property
    def skill(self) -> float:
        """How far the forecasts have proved true so far, in [0, 1]."""
        return self._skill.skill

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits."""
        assert view.forecast is not None
        forecast, oldest = view.forecast, self._settings.candidates + int(view.free.sum())
        share = FORECAST_SHARE * self._skill.observe(view)
        waiting_load = soften_oldest(forecast.waiting_load, forecast.waiting_row[:oldest], view.waiting_prompt, share)
        position, worker = levelling(
            soften_loads(forecast.load, view.active, share),
            waiting_load,
            view.waiting_overtaken[: len(waiting_load)],
            view.free,
            view.gate,
            view.accepting,
            view.speed,
            rng.random(len(view.load)),
            self._weight,
            self._settings.candidates,
            self._settings.max_overtakes,
            prefix_loss(view, self._settings),
        )
        return Decisions(position, worker)
