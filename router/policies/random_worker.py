"""Requests go to workers drawn at random."""

from __future__ import annotations

import numpy as np

from endcast.router.policies.immediate import LeastScore
from endcast.router.policy import ClusterView
from endcast.survival import IntArray


class RandomWorker(LeastScore):
    """All workers tie, always; ties are broken at random."""

    def score(self, view: ClusterView) -> IntArray:
        """(G,), zero."""
        return np.zeros(len(view.load), dtype=np.int64)

    def increment(self, view: ClusterView) -> IntArray:
        """(n,), zero."""
        return np.zeros(len(view.waiting), dtype=np.int64)
