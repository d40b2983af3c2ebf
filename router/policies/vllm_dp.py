"""The rule of vLLM's internal data-parallel load balancer: four times the queued requests, plus the running ones."""

from __future__ import annotations

import numpy as np

from endcast.router.policies.immediate import LeastScore
from endcast.router.policy import ClusterView
from endcast.survival import IntArray

#: How many running requests a queued one counts for.
_QUEUED_WEIGHT = 4


class VllmDp(LeastScore):
    """Score: 4·queued + running. A request just sent counts as queued."""

    def score(self, view: ClusterView) -> IntArray:
        """(G,), weighted requests."""
        return _QUEUED_WEIGHT * view.queued + view.active

    def increment(self, view: ClusterView) -> IntArray:
        """(n,), a queued request each."""
        return np.full(len(view.waiting), _QUEUED_WEIGHT, dtype=np.int64)
