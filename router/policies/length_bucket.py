"""Requests go where the fewest output tokens are supposed, guessing each length from the request's flags.

Requests that think are LONG, those that only call tools SHORT, all others UNKNOWN: three fixed lengths, as llm-d
supposes them. On a log that tells no flags this is join-shortest-queue.
"""

from __future__ import annotations

from endcast.router.policies.immediate import LeastScore
from endcast.router.policy import ClusterView
from endcast.survival import IntArray


class LengthBucket(LeastScore):
    """Score: supposed output tokens of what runs and what is queued."""

    def score(self, view: ClusterView) -> IntArray:
        """(G,), tokens."""
        return view.supposed + view.queued_supposed

    def increment(self, view: ClusterView) -> IntArray:
        """(n,), tokens."""
        return view.waiting_supposed
