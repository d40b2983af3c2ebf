"""Requests go to the workers in turn."""

from __future__ import annotations

import numpy as np

from endcast.router.policies.immediate import ImmediateDispatch
from endcast.router.policy import ClusterView
from endcast.survival import IntArray


class RoundRobin(ImmediateDispatch):
    """The i-th request ever dispatched goes to worker i mod G, counting the workers that accept."""

    def choose(self, view: ClusterView, rng: np.random.Generator) -> IntArray:
        """(n,), the worker for each waiting request."""
        accepting = np.flatnonzero(view.accepting)
        chosen: IntArray = accepting[(view.dispatched + np.arange(len(view.waiting))) % len(accepting)]
        return chosen
