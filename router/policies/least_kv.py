"""Requests go where the fewest KV tokens are held, counting the prompts in the worker's queue."""

from __future__ import annotations

from endcast.router.policies.immediate import LeastScore
from endcast.router.policy import ClusterView
from endcast.survival import IntArray


class LeastKv(LeastScore):
    """Score: KV tokens of what runs and prompt tokens of what is queued."""

    def score(self, view: ClusterView) -> IntArray:
        """(G,), tokens."""
        return view.load + view.queued_tokens

    def increment(self, view: ClusterView) -> IntArray:
        """(n,), prompt tokens."""
        return view.waiting_prompt
