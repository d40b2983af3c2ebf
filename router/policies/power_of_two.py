"""Of two workers drawn at random, the request goes where fewer requests are (Mitzenmacher 2001)."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.policies.immediate import ImmediateDispatch
from endcast.router.policy import BoolArray, ClusterView
from endcast.router.ties import least
from endcast.survival import FloatArray, IntArray


class PowerOfTwo(ImmediateDispatch):
    """The two accepting workers with the smallest random keys are drawn; the first of them wins a tie."""

    def choose(self, view: ClusterView, rng: np.random.Generator) -> IntArray:
        """(n,), the worker for each waiting request."""
        keys = rng.random((len(view.waiting), len(view.load)))
        workers: IntArray = _dispatch(view.active + view.queued, keys, view.accepting)
        return workers


@njit(cache=True)
def _dispatch(requests: IntArray, keys: FloatArray, accepting: BoolArray) -> IntArray:
    """Workers (n,) for n requests in a row; ``requests`` (G,) on each worker, ``keys`` (n, G)."""
    count = requests.copy()
    workers = np.empty(keys.shape[0], dtype=np.int64)
    for i in range(keys.shape[0]):
        allowed = accepting.copy()
        first = least(keys[i], keys[i], allowed)
        allowed[first] = False
        second = least(keys[i], keys[i], allowed)
        if second >= 0 and count[second] < count[first]:
            first = second
        count[first] += 1
        workers[i] = first
    return workers
