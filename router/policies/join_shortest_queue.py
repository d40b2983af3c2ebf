"""Requests go where the fewest requests are, running and queued."""

from __future__ import annotations

import numpy as np

from endcast.router.policies.immediate import LeastScore
from endcast.router.policy import ClusterView
from endcast.survival import IntArray


class JoinShortestQueue(LeastScore):
    """Score: requests running and queued."""

    def score(self, view: ClusterView) -> IntArray:
        """(G,), requests."""
        return view.active + view.queued

    def increment(self, view: ClusterView) -> IntArray:
        """(n,), one each."""
        return np.ones(len(view.waiting), dtype=np.int64)
