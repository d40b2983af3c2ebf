"""Choosing the least of several with ties broken at random, for many choices in a row (pure, on arrays).

Randomness comes in as *keys*, one uniform number for each alternative: of equal alternatives the one with the smallest
key wins. So a choice is a function of its arguments, and a seed fixes it.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.policy import BoolArray
from endcast.survival import FloatArray, IntArray


@njit(cache=True)
def least(score: FloatArray, key: FloatArray, allowed: BoolArray) -> int:
    """Index of the smallest ``score`` (G,) among those allowed, ties to the smallest ``key``; −1 if none is allowed."""
    best = -1
    for g in range(score.shape[0]):
        if allowed[g] and (best < 0 or score[g] < score[best] or (score[g] == score[best] and key[g] < key[best])):
            best = g
    return best


@njit(cache=True)
def dispatch_to_least(score: IntArray, increment: IntArray, keys: FloatArray, allowed: BoolArray) -> IntArray:
    """Workers (n,) for n requests in a row, each to the least ``score`` (G,), which grows by its ``increment`` (n,).

    ``keys`` (n, G) uniform random; ``allowed`` (G,). Entries are −1 where no worker is allowed.
    """
    now = score.astype(np.float64)
    workers = np.empty(increment.shape[0], dtype=np.int64)
    for i in range(increment.shape[0]):
        g = least(now, keys[i], allowed)
        workers[i] = g
        if g >= 0:
            now[g] += increment[i]
    return workers
