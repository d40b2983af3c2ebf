"""Lengths of finished requests that share something with this one: its size, model, tenant, session, prompt.

Each group is one key: what the requests have in common. Its columns say how many there were and how long they ran; its
interval columns say how the hazard of those requests differs from the pooled one, interval by interval (shrunk to
it, so that few requests say little), and how far each interval is from their mean and last length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.predictors.features.lengths import (
    STATISTICS,
    LengthMemory,
    interval_table,
    raw_width,
)
from endcast.predictors.features.made_rows import MadeRows
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid, logit
from endcast.types import Completion, EndReason, Request

#: Requests' worth of pooled hazard that an interval's own hazard is shrunk with, and events of the smoothed ratio.
PRIOR_REQUESTS, PRIOR_EVENTS = 3.0, 2.0
#: Intervals on each side over which the hazard ratio is smoothed.
SMOOTHING = 2
#: Columns are told in steps of this size, and more requests than ``TRUSTED`` count as that many. An exact state of a
#: memory names the moment (in a log split by prompt: the prompt) at which it was read, and trees learn such names by heart.
STEP, TRUSTED = 0.1, 30.0


@dataclass(frozen=True)
class Key:
    """How a group finds its requests: ``of`` gives the key under which a request is remembered (``None``: not at all),
    ``near`` the keys that are looked up for it (its own in the middle; if a is near b, b is near a), ``size`` how many
    lengths a key keeps."""

    name: str
    of: Callable[[Request], int | None]
    size: int
    inputs: tuple[str, ...] = ()
    near: Callable[[int], tuple[int, ...]] = lambda key: (key,)
    most_keys: int = 20_000


class KeyedLengths:
    """One group for one key; see the head of this file."""

    stateful = True
    columns: tuple[str, ...] = ("log_count", "mean_log", "spread_log", "last_log")
    interval_columns: tuple[str, ...] = ("log_odds_ratio", "log_hazard_ratio", "log_at_risk", "from_mean", "from_last")

    def __init__(self, grid: IntervalGrid, key: Key) -> None:
        self.name = key.name
        self.inputs = key.inputs
        self._key = key
        self._grid = grid
        self._intervals = interval_table(grid)
        self._memory = self._empty()
        self._made = MadeRows(len(self.columns) + len(grid) * len(self.interval_columns))

    def _empty(self) -> LengthMemory:
        return LengthMemory(self._key.size, self._key.most_keys, self._intervals)

    def knows(self, request: Request) -> bool:
        """Whether a request with the same key has finished before."""
        key = self._key.of(request)
        return key is not None and self._memory.get(key) is not None

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 4 + 2K): statistics, events by interval, requests by interval; all zero counts where none is known."""
        out = np.zeros((len(requests), raw_width(self._grid)), dtype=np.float32)
        out[:, 1:STATISTICS] = np.nan
        for row, request in zip(out, requests, strict=True):
            key = self._key.of(request)
            if key is not None:
                self._write(row, self._key.near(key))
        return out

    def rows_of(self, requests: Sequence[Request]) -> Float32Array:
        """``transform(collect(requests))``, values and intervals in one row a request: (n, f + K·c). They depend on the key
        alone, so they are kept until its memory changes."""
        keys = [self._key.of(request) for request in requests]
        new = self._made.missing(keys)
        if new:
            made = self.transform(self.collect([requests[i] for i in new.values()]))
            self._made.keep(list(new), np.concatenate([made.values, made.intervals.reshape(len(new), -1)], axis=1))
        return self._made.rows(keys)

    def _write(self, row: Float32Array, keys: tuple[int, ...]) -> None:
        found = {key: lengths for key in keys if (lengths := self._memory.get(key)) is not None}
        if len(found) == 1:
            next(iter(found.values())).write(row)
        elif found:
            parts = np.empty((len(found), row.size), dtype=np.float32)
            for part, lengths in zip(parts, found.values(), strict=True):
                lengths.write(part)
            own = keys[len(keys) // 2]
            _merge(parts, row, list(found).index(own) if own in found else 0)

    def transform(self, raw: Float32Array) -> Columns:
        """Columns as the class names them."""
        k = len(self._grid)
        values = raw[:, :STATISTICS].copy()
        values[:, 0] = np.log1p(np.minimum(values[:, 0], TRUSTED))
        events, requests = raw[:, STATISTICS : STATISTICS + k], raw[:, STATISTICS + k :]
        at_risk = requests.sum(axis=1, keepdims=True) - np.cumsum(requests, axis=1) + requests
        intervals = np.empty((len(raw), k, len(self.interval_columns)), dtype=np.float32)
        pooled = self._grid.base_hazard
        own = (events + PRIOR_REQUESTS * pooled) / (at_risk + PRIOR_REQUESTS)
        intervals[:, :, 0] = logit(own) - self._grid.base_logit
        intervals[:, :, 1] = _smoothed_ratio(events, at_risk * pooled)
        intervals[:, :, 2] = np.log1p(np.minimum(at_risk, TRUSTED))
        intervals[:, :, 3] = self._grid.log_middle - values[:, 1:2]
        intervals[:, :, 4] = self._grid.log_middle - values[:, 3:4]
        return Columns(in_steps(values), in_steps(intervals))

    def observe(self, completion: Completion) -> None:
        """Remember a length that ended by itself or at its cap; aborted and failed ones tell nothing of it."""
        tokens = completion.output_tokens
        if tokens < 1 or completion.end not in (EndReason.STOP, EndReason.LENGTH):
            return
        key = self._key.of(completion.request)
        if key is not None:
            gone = self._memory.push(key, tokens, completion.end is EndReason.STOP)
            for changed in (key,) if gone is None else (key, gone):
                self._made.forget(self._key.near(changed))

    def dump(self) -> object:
        """A list of [key, lengths], oldest key first."""
        return [[key, lengths] for key, lengths in self._memory.items()]

    def load(self, memory: object) -> None:
        """Take over such a list."""
        try:
            pairs = msgspec.convert(memory, list[tuple[int, list[int]]])
        except msgspec.ValidationError as error:
            raise BundleError(f"the memory of {self.name} is damaged: {error}") from None
        fresh = self._empty()
        for key, lengths in pairs:
            for signed in lengths:
                if signed == 0:
                    raise BundleError(f"the memory of {self.name} is damaged: a length of 0")
                fresh.push(key, abs(signed), signed > 0)
        self._memory = fresh
        self._made.clear()


def in_steps(columns: Float32Array) -> Float32Array:
    """Each number as the nearest multiple of ``STEP``."""
    rounded: Float32Array = (np.round(columns / np.float32(STEP)) * np.float32(STEP)).astype(np.float32)
    return rounded


def _merge(parts: Float32Array, row: Float32Array, own: int) -> None:
    """Join raw rows (m, w) of several keys into one: counts add up, moments are pooled, the last length is that of part
    ``own``."""
    count = parts[:, 0]
    total = count.sum()
    mean = float(np.dot(count, parts[:, 1]) / total)
    spread = np.nan_to_num(parts[:, 2])
    row[0] = total
    row[1] = mean
    row[2] = np.sqrt(np.dot(count, spread**2 + (parts[:, 1] - mean) ** 2) / total)
    row[3] = parts[own, 3]
    row[STATISTICS:] = parts[:, STATISTICS:].sum(axis=0)


def _smoothed_ratio(events: Float32Array, expected: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log of events over expected events, both (n, K), summed over ``SMOOTHING`` intervals on each side and shrunk."""
    ratio: npt.NDArray[np.float64] = np.log((_spread(events) + PRIOR_EVENTS) / (_spread(expected) + PRIOR_EVENTS))
    return ratio


def _spread(counts: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """(n, K), each interval's count with those of its ``SMOOTHING`` neighbours on each side."""
    rows, k = counts.shape
    first = SMOOTHING + 1
    sums = np.zeros((rows, first + k + SMOOTHING))
    np.cumsum(counts, axis=1, out=sums[:, first : first + k])
    sums[:, first + k :] = sums[:, first + k - 1 : first + k]
    return sums[:, 2 * SMOOTHING + 1 :] - sums[:, : -2 * SMOOTHING - 1]
