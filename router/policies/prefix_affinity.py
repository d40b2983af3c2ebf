"""Cache-aware dispatch: requests go where most of their leading prefix blocks have been seen.

Two rules bound it, as in cache-aware routers in use: where the queues have drifted far apart, or where no worker has
seen enough of the prefix to be worth it, the request goes to the shortest queue. Requests that arrive in one step do
not see each other's blocks yet. On a log without prefix blocks this is join-shortest-queue.
"""

from __future__ import annotations

import numpy as np

from endcast.router.policies.immediate import ImmediateDispatch
from endcast.router.policy import BoolArray, ClusterView
from endcast.router.ties import least
from endcast.survival import FloatArray, IntArray

#: Share of its leading blocks that a worker must have seen.
_LEAST_MATCH = 0.5
#: Queues count as drifted apart when the longest exceeds the shortest by this many requests and by this factor.
_DRIFT, _DRIFT_FACTOR = 32, 1.5


class PrefixAffinity(ImmediateDispatch):
    """The longest match wins, ties by the shorter queue, then at random."""

    needs_prefix = True

    def choose(self, view: ClusterView, rng: np.random.Generator) -> IntArray:
        """(n,), the worker for each waiting request."""
        waiting = len(view.waiting)
        blocks, match = np.zeros(waiting, dtype=np.int64), np.zeros((waiting, len(view.load)), dtype=np.int64)
        if view.prefixes is not None:
            blocks, match = view.prefixes.match(view.waiting)
        keys = rng.random((waiting, len(view.load)))
        requests = (view.active + view.queued).astype(np.float64)
        workers = np.empty(waiting, dtype=np.int64)
        for i in range(waiting):
            allowed = _worth_it(requests, match[i], int(blocks[i]), view.accepting)
            workers[i] = least(requests, keys[i], allowed)
            requests[workers[i]] += 1
        return workers


def _worth_it(requests: FloatArray, match: IntArray, blocks: int, accepting: BoolArray) -> BoolArray:
    """The workers (G,) among which the shortest queue decides: those of the longest match, or all that accept."""
    shortest, longest = requests[accepting].min(), requests[accepting].max()
    best = int(match[accepting].max())
    if longest - shortest > _DRIFT and longest > _DRIFT_FACTOR * shortest:
        return accepting
    if blocks == 0 or best < _LEAST_MATCH * blocks or best == 0:
        return accepting
    most: BoolArray = accepting & (match == best)
    return most
