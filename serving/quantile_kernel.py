"""Where a falling curve reaches a chance, compiled: for the figures of an answer and for those that the ledger keeps."""

from __future__ import annotations

from endcast.compiled import njit
from endcast.curves import FloatArray


@njit(cache=True, nogil=True)
def interval_that_falls_to(target: float, log_survival: FloatArray) -> int:
    """The interval in which log survival, falling over the edges (K+1,), comes down to ``target``; K, if beyond them."""
    low, high = 0, log_survival.shape[0]  # how many edges are reached with a greater chance
    while low < high:
        middle = (low + high) // 2
        if log_survival[middle] > target:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)
