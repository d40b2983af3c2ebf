"""What the policies share that send every request to a worker's own queue the moment it arrives."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.router.ties import dispatch_to_least
from endcast.survival import IntArray


class ImmediateDispatch(ABC):
    """Needs no forecasts and lets nothing wait in the pool as long as some worker accepts requests."""

    needs_forecast = False
    needs_prefix = False
    immediate_dispatch = True
    horizon = 0

    def __init__(self, settings: PolicySettings) -> None:
        """Reads none of the settings: there is nothing to set."""
        del settings

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Every waiting request, in order of arrival."""
        position = np.arange(len(view.waiting))
        if not view.accepting.any():
            return Decisions(position[:0], position[:0])
        return Decisions(position, self.choose(view, rng))

    @abstractmethod
    def choose(self, view: ClusterView, rng: np.random.Generator) -> IntArray:
        """(n,), the worker for each waiting request; at least one worker accepts."""


class LeastScore(ImmediateDispatch):
    """Each request in turn goes to the worker of the least score, ties at random, and raises that score."""

    def choose(self, view: ClusterView, rng: np.random.Generator) -> IntArray:
        """(n,), the worker for each waiting request."""
        keys = rng.random((len(view.waiting), len(view.load)))
        workers: IntArray = dispatch_to_least(self.score(view), self.increment(view), keys, view.accepting)
        return workers

    @abstractmethod
    def score(self, view: ClusterView) -> IntArray:
        """(G,), how loaded each worker is."""

    @abstractmethod
    def increment(self, view: ClusterView) -> IntArray:
        """(n,), what each waiting request adds to the score of the worker that it goes to."""
