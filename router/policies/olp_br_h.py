"""OLP orders, BR-H places: the highest surpluses compete for each slot by how well they level (``docs/olp.md``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from endcast.router.balance_route import discounts
from endcast.router.levelling import FORECAST_SHARE, soften_loads
from endcast.router.olp.balance import release_balanced
from endcast.router.olp.explain import Release, Scarcity, balance_filled
from endcast.router.olp.queue import PricedQueue
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.router.prefix_loss import prefix_loss
from endcast.router.skill import WindowSkill
from endcast.survival import FloatArray, IntArray

_NONE: IntArray = np.zeros(0, dtype=np.int64)
#: A mean reward of less than this leaves nothing to compare surpluses with.
_LEAST_REWARD = 1e-300


class OlpBrH:
    """The N waiting requests with the highest surplus are the candidates; BR-H's levelling and their surplus choose.

    Keeps prices and what it learned of the traffic from round to round: one object for one fleet.
    """

    needs_forecast = True
    immediate_dispatch = False

    def __init__(self, settings: PolicySettings) -> None:
        """Reads all of the settings."""
        self.horizon = settings.horizon
        self.needs_prefix = settings.prefix_weight > 0.0
        self.queue = PricedQueue(settings)
        self._settings = settings
        self._weight = discounts(settings.horizon, settings.discount)
        self._skill = WindowSkill(settings.horizon)

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits."""
        share = FORECAST_SHARE * self._skill.observe(view)
        if len(view.waiting) == 0:
            return Decisions(_NONE, _NONE)
        now = self.queue.look(view, rng)
        reward = now.scores.reward
        mean_reward = max(float(reward.sum()) / len(reward), _LEAST_REWARD)
        assert view.forecast is not None
        shortlist = self._settings.olp.shortlist
        likely = self._likely(view, now.scores.best, shortlist)
        position, worker = release_balanced(
            now.scores.surplus,
            now.scores.row,
            view,
            soften_loads(view.forecast.load, view.active, share),
            share,
            rng.random(len(view.load)),
            self._weight,
            lost=prefix_loss(view, self._settings, likely),
            lost_by=likely,
            worth=self._settings.olp.urgency * self.queue.pricing.traffic.kv_unit / mean_reward,
            candidates=shortlist,
            first=now.first,
            max_overtakes=self.queue.max_overtakes,
            kept=now.kept,
        )
        return self.queue.decisions(position, worker)

    def _likely(self, view: ClusterView, best: FloatArray, shortlist: int) -> IntArray:
        """(m,): who may be looked at in this round, as far as prefixes matter: those with the ``best`` (n,) surplus."""
        if not self.needs_prefix:
            return _NONE
        return np.argsort(-best, kind="stable")[: shortlist + int(view.free.sum())]

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last ``decide`` was made; to be asked before the decisions are carried out."""
        window_tokens = self.queue.pricing.traffic.kv_unit * float(self._weight.sum())
        filled = balance_filled(view, decisions, self._weight, window_tokens)
        return tuple(
            replace(why, balance=gain) for why, gain in zip(self.queue.explain(view, decisions), filled, strict=True)
        )

    def scarce(self) -> tuple[Scarcity, ...]:
        """Which resources are scarce at the prices as they are, where and when, the dearest first."""
        return self.queue.scarce()
