"""Person-period rows: one row for each interval that a generation reached, in bounded memory.

In interval k = (edges[k], edges[k+1]] a request that reached it either ends by an event (y = 1), survives it (y = 0) or
is censored inside it (y = 0 with the part of the interval that was seen as weight). Singer and Willett, "It's about
time", 1993.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class PersonPeriods:
    """r rows: ``request`` (r,) index, ``interval`` (r,), ``event`` (r,) 0 or 1, ``weight`` (r,) in (0, 1]."""

    request: IntArray
    interval: IntArray
    event: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.request)


def rows_each(lengths: IntArray, edges: IntArray) -> IntArray:
    """(n,), how many rows each length ≥ 1 makes: the intervals that it reached."""
    reached: IntArray = np.clip(np.searchsorted(edges, lengths, side="left"), 1, len(edges) - 1)
    return reached


def person_periods(lengths: IntArray, ended: BoolArray, edges: IntArray, first: int = 0) -> PersonPeriods:
    """All rows of these requests, in order; ``lengths`` (n,) tokens ≥ 1, ``ended`` (n,), ``edges`` (K+1,) from 0.

    ``first`` is added to ``request``. Past the last edge nothing is at risk, so a longer request survives it all.
    """
    counts = rows_each(lengths, edges)
    request = np.repeat(np.arange(len(lengths)), counts)
    starts = np.cumsum(counts) - counts
    interval = np.arange(len(request)) - starts[request]
    is_last = interval == counts[request] - 1
    beyond = lengths > edges[-1]
    event = is_last & ended[request] & ~beyond[request]
    seen = (lengths - edges[counts - 1]) / (edges[counts] - edges[counts - 1])
    cut = is_last & ~ended[request] & ~beyond[request]
    weight = np.where(cut, seen[request], 1.0)
    return PersonPeriods(request + first, interval, event.astype(np.float32), weight.astype(np.float32))


def chunked_person_periods(
    lengths: IntArray, ended: BoolArray, edges: IntArray, *, requests_a_chunk: int = 50_000
) -> Iterator[PersonPeriods]:
    """The same rows, some requests at a time."""
    for start in range(0, len(lengths), requests_a_chunk):
        part = slice(start, start + requests_a_chunk)
        yield person_periods(lengths[part], ended[part], edges, first=start)
