"""The latest output lengths under one key, with the sums that features need kept up to date."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from endcast.predictors.grid import IntervalGrid

IntVector = npt.NDArray[np.int32]

#: Numbers in front of the two count vectors of a raw row: count, mean and spread of log lengths, the last one.
STATISTICS = 4


def raw_width(grid: IntervalGrid) -> int:
    """Width of a raw row: the statistics, then events and requests by interval."""
    return STATISTICS + 2 * len(grid)


def key_of(*parts: str | int | None) -> int | None:
    """One 60-bit number for a key, the same in every process; ``None`` if a part is unknown. No text is kept."""
    if None in parts:
        return None
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 4


#: Logs are summed in whole parts of this size: such sums never drift, whatever comes and goes.
_PART = 2.0**-24


class RecentLengths:
    """At most ``size`` lengths, oldest out first; a censored length is kept as a negative number."""

    __slots__ = ("events", "interval_of", "lengths", "requests", "size", "sum_log", "sum_square")

    def __init__(self, size: int, interval_of: list[int]) -> None:
        self.size = size
        self.interval_of = interval_of
        self.lengths: deque[int] = deque()
        self.events: IntVector = np.zeros(interval_of[-1] + 1, dtype=np.int32)
        self.requests: IntVector = np.zeros(interval_of[-1] + 1, dtype=np.int32)
        self.sum_log = 0
        self.sum_square = 0

    def push(self, tokens: int, ended: bool) -> None:
        """Take in one length ≥ 1."""
        if len(self.lengths) == self.size:
            self._count(self.lengths.popleft(), -1)
        signed = tokens if ended else -tokens
        self.lengths.append(signed)
        self._count(signed, 1)

    def _count(self, signed: int, by: int) -> None:
        tokens = abs(signed)
        interval = self.interval_of[min(tokens, len(self.interval_of) - 1)]
        self.requests[interval] += by
        if signed > 0:
            self.events[interval] += by
        log = round(math.log(tokens) / _PART)
        self.sum_log += by * log
        self.sum_square += by * log * log

    def write(self, row: npt.NDArray[np.float32]) -> None:
        """Fill a raw row."""
        n, k = len(self.lengths), len(self.events)
        row[0] = n
        row[1] = self.sum_log / n * _PART
        row[2] = math.sqrt(n * self.sum_square - self.sum_log**2) / n * _PART if n > 1 else math.nan
        row[3] = math.log(abs(self.lengths[-1]))
        row[STATISTICS : STATISTICS + k] = self.events
        row[STATISTICS + k :] = self.requests


def interval_table(grid: IntervalGrid) -> list[int]:
    """The interval of every length from 0 to the last edge, as a list for quick look-ups one by one."""
    return [0, *grid.interval_of(np.arange(1, grid.edges[-1] + 1)).tolist()]


class LengthMemory:
    """``RecentLengths`` by key, for at most ``most_keys`` keys: the one that was fed longest ago goes first."""

    def __init__(self, size: int, most_keys: int, interval_of: list[int]) -> None:
        self.size = size
        self.most_keys = most_keys
        self.interval_of = interval_of
        self._by_key: dict[int, RecentLengths] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: int) -> RecentLengths | None:
        """What is remembered under a key."""
        return self._by_key.get(key)

    def push(self, key: int, tokens: int, ended: bool) -> int | None:
        """Remember one more length under a key; the key that had to go for it, if one had to."""
        found, gone = self._by_key.pop(key, None), None
        if found is None:
            if len(self._by_key) == self.most_keys:
                gone = next(iter(self._by_key))
                del self._by_key[gone]
            found = RecentLengths(self.size, self.interval_of)
        self._by_key[key] = found
        found.push(tokens, ended)
        return gone

    def items(self) -> Iterator[tuple[int, list[int]]]:
        """Keys with their lengths, censored ones negative, oldest key first."""
        for key, lengths in self._by_key.items():
            yield key, list(lengths.lengths)
