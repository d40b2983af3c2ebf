"""Which worker has seen which leading prefix blocks, as far as the router can tell from where it sent requests.

A block's id stands for itself and all blocks before it, so a request's match with a worker is the number of its
leading blocks that the worker has seen. The least recently used blocks are forgotten beyond a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from endcast.survival import IntArray

#: Blocks remembered over the whole fleet; an engine forgets too.
_REMEMBERED = 1 << 18


class PrefixIndex:
    """Blocks seen by each of G workers, and the blocks of requests that still wait."""

    def __init__(self, workers: int, remembered: int = _REMEMBERED) -> None:
        self._workers, self._remembered = workers, remembered
        self._seen: OrderedDict[int, int] = OrderedDict()  # block → workers as bits
        self._waiting: dict[int, IntArray] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def arrive(self, request: IntArray, blocks: Sequence[IntArray]) -> None:
        """Requests (k,) with these leading blocks, each in order, begin to wait."""
        self._waiting.update(zip(request.tolist(), blocks, strict=True))

    def match(self, request: IntArray) -> tuple[IntArray, IntArray]:
        """For waiting requests (n,): their number of blocks (n,), and how many of these each worker has seen (n, G)."""
        blocks = [self._waiting[r] for r in request.tolist()]
        matched = np.zeros((len(blocks), self._workers), dtype=np.int64)
        for i, leading in enumerate(blocks):
            holders = (1 << self._workers) - 1
            for depth, block in enumerate(leading.tolist()):
                still = holders & self._seen.get(block, 0)
                matched[i, _bits(holders ^ still)] = depth
                holders = still
                if not holders:
                    break
            matched[i, _bits(holders)] = len(leading)
        return np.array([len(leading) for leading in blocks], dtype=np.int64), matched

    def placed(self, request: IntArray, worker: IntArray) -> None:
        """Requests (k,) went to workers (k,): these have seen their blocks now."""
        for r, g in zip(request.tolist(), worker.tolist(), strict=True):
            for block in self._waiting.pop(r).tolist():
                self._seen[block] = self._seen.get(block, 0) | 1 << g
                self._seen.move_to_end(block)
        while len(self._seen) > self._remembered:
            self._seen.popitem(last=False)

    def forget(self, request: IntArray) -> None:
        """Requests (k,) have given up waiting."""
        for r in request.tolist():
            del self._waiting[r]

    def lose(self, worker: int) -> None:
        """``worker`` is gone and its cache with it."""
        for block in self._seen:
            self._seen[block] &= ~(1 << worker)


def _bits(mask: int) -> list[int]:
    """Positions of the bits set."""
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
