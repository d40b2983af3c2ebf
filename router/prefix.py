"""Which worker has seen which leading prefix blocks, as far as the router can tell from where it sent requests.

A block's id stands for itself and all blocks before it, so a request's match with a worker is the number of its
leading blocks that the worker has seen. The least recently used blocks are forgotten beyond a bound.

Matches of what waits are kept and made anew only where something has changed: a block that it has is new to a worker,
or was forgotten. Requests that told no blocks cost nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from endcast.survival import FloatArray, IntArray

#: Blocks remembered over the whole fleet; an engine forgets too.
_REMEMBERED = 1 << 18
#: The row of requests without blocks.
_NO_BLOCKS = 0


class PrefixIndex:
    """Blocks seen by each of G workers, and the blocks of requests that still wait."""

    def __init__(self, workers: int, remembered: int = _REMEMBERED) -> None:
        self._workers, self._remembered = workers, remembered
        self._seen: OrderedDict[int, int] = OrderedDict()  # block → workers as bits
        self._waiting: dict[int, list[int]] = {}  # those that have blocks
        self._waiters: dict[int, set[int]] = {}  # block → requests that wait and have it
        self._row: dict[int, int] = {}
        self._stale: set[int] = set()
        self._blocks = np.zeros(64, dtype=np.int64)
        self._matched = np.zeros((64, workers), dtype=np.int64)
        self._spare = list(range(63, _NO_BLOCKS, -1))
        self.placed_blocks = 0  #: of all requests that went to a worker
        self.hit_blocks = 0  #: of these, leading ones that the worker had seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def told(self) -> bool:
        """Whether any request has ever had blocks."""
        return bool(self._seen or self._waiting)

    def arrive(self, request: IntArray, blocks: Sequence[IntArray]) -> None:
        """Requests (k,) with these leading blocks, each in order, begin to wait."""
        for r, leading in zip(request.tolist(), blocks, strict=True):
            if len(leading) == 0:
                continue
            row = self._spare_row()
            self._waiting[r], self._row[r], self._blocks[row] = leading.tolist(), row, len(leading)
            for block in self._waiting[r]:
                self._waiters.setdefault(block, set()).add(r)
            self._stale.add(r)

    def match(self, request: IntArray) -> tuple[IntArray, IntArray]:
        """For waiting requests (n,): their number of blocks (n,), and how many of these each worker has seen (n, G)."""
        for r in self._stale:
            self._matched[self._row[r]] = self._match_of(self._waiting[r])
        self._stale.clear()
        rows = np.array([self._row.get(r, _NO_BLOCKS) for r in request.tolist()], dtype=np.int64)
        return self._blocks[rows], self._matched[rows]

    def placed(self, request: IntArray, worker: IntArray) -> None:
        """Requests (k,) went to workers (k,): these have seen their blocks now."""
        for r, g in zip(request.tolist(), worker.tolist(), strict=True):
            blocks = self._gone(r)
            self.placed_blocks += len(blocks)
            leading = True
            for block in blocks:
                before = self._seen.get(block, 0)
                leading = leading and bool(before >> g & 1)
                self.hit_blocks += leading
                self._seen[block] = before | 1 << g
                self._seen.move_to_end(block)
                if not before >> g & 1:
                    self._stale.update(self._waiters.get(block, ()))
        while len(self._seen) > self._remembered:
            block, _ = self._seen.popitem(last=False)
            self._stale.update(self._waiters.get(block, ()))

    def go_on(self, before: PrefixIndex, places: Sequence[int]) -> None:
        """Know what ``before`` knew, whose worker g is ``places[g]`` here, or gone where that is negative."""
        kept = [(1 << g, 1 << place) for g, place in enumerate(places) if place >= 0]
        masks = {mask: sum(new for old, new in kept if mask & old) for mask in set(before._seen.values())}
        self._seen = OrderedDict((block, masks[mask]) for block, mask in before._seen.items())
        self.placed_blocks, self.hit_blocks = before.placed_blocks, before.hit_blocks

    def forget(self, request: IntArray) -> None:
        """Requests (k,) have given up waiting."""
        for r in request.tolist():
            self._gone(r)

    def lose(self, worker: int) -> None:
        """``worker`` is gone and its cache with it."""
        for block in self._seen:
            self._seen[block] &= ~(1 << worker)
        self._stale.update(self._waiting)

    def _gone(self, request: int) -> list[int]:
        """A request waits no more: its blocks."""
        blocks = self._waiting.pop(request, None)
        if blocks is None:
            return []
        self._spare.append(self._row.pop(request))
        self._stale.discard(request)
        for block in blocks:
            waiters = self._waiters.get(block)
            if waiters is not None:
                waiters.discard(request)
                if not waiters:
                    del self._waiters[block]
        return blocks

    def _spare_row(self) -> int:
        if not self._spare:
            size = len(self._blocks)
            self._blocks = np.concatenate([self._blocks, np.zeros_like(self._blocks)])
            self._matched = np.concatenate([self._matched, np.zeros_like(self._matched)])
            self._spare = list(range(2 * size - 1, size - 1, -1))
        return self._spare.pop()

    def _match_of(self, leading: Iterable[int]) -> IntArray:
        """(G,): how many of these leading blocks each worker has seen."""
        matched, depth, holders = np.zeros(self._workers, dtype=np.int64), 0, (1 << self._workers) - 1
        for block in leading:
            still = holders & self._seen.get(block, 0)
            matched[_bits(holders ^ still)] = depth
            holders, depth = still, depth + 1
            if not holders:
                return matched
        matched[_bits(holders)] = depth
        return matched


def tokens_seen(blocks: IntArray, matched: IntArray, prompt: IntArray) -> FloatArray:
    """(n, G) prompt tokens that each worker need not read again: blocks (n,), of which ``matched`` (n, G) were seen there,
    are taken as equal parts of the prompt (n,)."""
    per_block = prompt / np.maximum(blocks, 1)
    seen: FloatArray = matched * per_block[:, None]
    return seen


def hit_tokens(worker: IntArray, started: IntArray, prompt: IntArray, blocks: Sequence[IntArray], workers: int) -> int:
    """Prompt tokens of n requests that the worker (n,) that served each had seen from those that ``started`` (n,) there earlier.

    A request with ``started`` < 0 never did.
    """
    index, total = PrefixIndex(workers), 0.0
    for i in np.argsort(started, kind="stable"):
        if started[i] < 0 or len(blocks[i]) == 0:
            continue
        one = np.array([i])
        index.arrive(one, [blocks[i]])
        total += tokens_seen(*index.match(one), prompt[one])[0, worker[i]]
        index.placed(one, worker[one])
    return round(total)


def _bits(mask: int) -> list[int]:
    """Positions of the bits set."""
    return [g for g in range(mask.bit_length()) if mask >> g & 1]
