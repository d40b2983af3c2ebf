"""The central queue as its prices see it: what every policy that orders by surplus does before and after it places.

Prices, scores, the request that is protected from being overtaken and the worker kept for it are the same whoever
places; so are the reasons given afterwards and what is shed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.router.olp.explain import Release, Scarcity, releases, scarcities
from endcast.router.olp.pricing import Pricing, Scores
from endcast.router.olp.release import guarded, reservation
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.survival import IntArray

_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Round:
    """One round's scores; ``first`` is the position that overtaking is bounded for and ``kept`` the worker that is kept
    for it, −1 for none."""

    scores: Scores
    first: int
    kept: int


class PricedQueue:
    """Prices and what was learned of the traffic from round to round: one object for one fleet."""

    def __init__(self, settings: PolicySettings) -> None:
        """Reads ``olp`` and ``max_overtakes``."""
        self.pricing = Pricing(settings.olp)
        self.max_overtakes = round(settings.max_overtakes * settings.olp.patience)  #: how many may pass one
        self._shed = settings.olp.shed
        self.reserved = (-1, -1)  #: a request and the worker that is kept for it
        self._scores: Scores | None = None

    def look(self, view: ClusterView, rng: np.random.Generator) -> Round:
        """Take in a view in which something waits: its scores at prices brought up to date."""
        self.pricing.observe(view, rng)
        self._scores = self.pricing.score(view)
        first = guarded(view)
        return Round(self._scores, first, self._reserve(view, first))

    def decisions(self, position: IntArray, worker: IntArray) -> Decisions:
        """These placements (k,) and, where shedding is on, what is refused."""
        refused = _NONE if self._scores is None or not self._shed else _unpaid(self._scores, position)
        return Decisions(position, worker, refused)

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last round was made; to be asked before the decisions are carried out."""
        return () if self._scores is None else releases(self.pricing, self._scores, view, decisions)

    def scarce(self) -> tuple[Scarcity, ...]:
        """Which resources are scarce at the prices as they are, where and when, the dearest first."""
        return () if self._scores is None else scarcities(self.pricing.relative_price, self._scores.row)

    def _reserve(self, view: ClusterView, first: int) -> int:
        """The worker kept for the oldest request that fits anywhere, if it is past its bound and has no room now."""
        if first < 0:
            return -1
        request, before = int(view.waiting[first]), -1
        if self.reserved[0] == request:
            before = self.reserved[1]
        kept = reservation(view, first, self.max_overtakes, before)
        self.reserved = (request, kept)
        return kept


def _unpaid(scores: Scores, placed: IntArray) -> IntArray:
    """New arrivals that do not start now and are not worth what they would take."""
    poor = scores.new[scores.best[scores.new] <= 0.0]
    return np.setdiff1d(poor, placed)
