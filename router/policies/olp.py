"""OLP: order and place by surplus, the reward of starting now less the prices of what it takes (``docs/olp.md``)."""

from __future__ import annotations

import numpy as np

from endcast.router.balance_route import discounts
from endcast.router.olp.explain import Release, Scarcity, releases, scarcities
from endcast.router.olp.pricing import Pricing, Scores
from endcast.router.olp.release import guarded, release, reservation
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
        self.pricing = Pricing(settings.olp)
        self._max_overtakes, self._shed = settings.max_overtakes, settings.olp.shed
        self._weight = discounts(settings.horizon, settings.discount)
        self._reserved = (-1, -1)  # a request and the worker that is kept for it
        self._scores: Scores | None = None

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Fill every free slot while anything that fits waits, the highest surplus first."""
        if len(view.waiting) == 0:
            return Decisions(_NONE, _NONE)
        self.pricing.observe(view, rng)
        self._scores = scores = self.pricing.score(view)
        first, key = guarded(view), rng.random(len(view.load))
        kept = self._reserve(view, first)
        position, worker = release(
            scores.surplus,
            scores.row,
            view,
            key,
            self._weight,
            first=first,
            max_overtakes=self._max_overtakes,
            kept=kept,
        )
        return Decisions(position, worker, self._refused(scores, position) if self._shed else _NONE)

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last ``decide`` was made; to be asked before the decisions are carried out."""
        return () if self._scores is None else releases(self.pricing, self._scores, view, decisions)

    def scarce(self) -> tuple[Scarcity, ...]:
        """Which resources are scarce at the prices as they are, where and when, the dearest first."""
        return () if self._scores is None else scarcities(self.pricing.relative_price, self._scores.row)

    def _reserve(self, view: ClusterView, first: int) -> int:
        """The worker kept for the oldest request that fits anywhere, if it is past its bound and has no room now."""
        if first < 0:
            return -1
        request, before = int(view.waiting[first]), -1
        if self._reserved[0] == request:
            before = self._reserved[1]
        kept = reservation(view, first, self._max_overtakes, before)
        self._reserved = (request, kept)
        return kept

    def _refused(self, scores: Scores, placed: IntArray) -> IntArray:
        """New arrivals that do not start now and are not worth what they would take."""
        poor = scores.new[scores.best[scores.new] <= 0.0]
        return np.setdiff1d(poor, placed)
