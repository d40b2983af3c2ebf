"""What only the whole log tells: one clock, order of arrival, duplicates, ids used twice.

A reader hands over its batches one by one; kept of each row are its arrival and two 64-bit fingerprints (32 bytes with its line), so
that a log of any size can be put in order. ``settle`` then says which rows stay, in which order.

A row is a duplicate if it equals an earlier one in every column, and something says that both are one request: an id
of the log's own, or a clock finer than a millisecond, on which two requests of one size hardly ever meet. Equal rows
of a coarser clock (whole seconds, say) may well be two requests: they stay, and are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from endcast.datasets.report import Tally
from endcast.datasets.schema import SCHEMA
from endcast.datasets.times import EPOCH_FROM_NS
from endcast.datasets.trace import UNKNOWN, BoolArray, IntArray
from endcast.errors import TraceError

Hashes = npt.NDArray[np.uint64]

#: Rows on the wrong clock, or without a time, are dropped up to this share of a log; beyond it the log is in doubt.
ODD_SHARE = 0.01
_FINE_NS = 1_000_000
_ODD = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Plan:
    """``order`` (k,): rows to keep, by their place in the log, in order of arrival. ``renamed``: row → suffix of its
    id. ``forget_arrivals``: the log tells too few of them to be used."""

    order: IntArray
    renamed: dict[int, str]
    forget_arrivals: bool = False

    def keeps_all(self, rows: int) -> bool:
        """Whether nothing changes."""
        unchanged = len(self.order) == rows and bool((self.order == np.arange(rows)).all())
        return unchanged and not self.renamed and not self.forget_arrivals


@dataclass
class Rows:
    """Collects what ``settle`` needs."""

    arrivals: list[IntArray] = field(default_factory=list)
    lines: list[IntArray] = field(default_factory=list)
    others: list[Hashes] = field(default_factory=list)  # of all columns but the id
    ids: list[Hashes] = field(default_factory=list)
    longest: int = 0

    def add(self, batch: pa.RecordBatch, *, own_ids: bool) -> None:
        """Take in a batch of ``LINED_SCHEMA``; ``own_ids``: the log tells ids, they are not line numbers."""
        self.arrivals.append(np.asarray(batch.column("arrival_ns").fill_null(UNKNOWN)))
        self.lines.append(np.asarray(batch.column("line")))
        outputs = np.asarray(batch.column("output_tokens"))
        self.longest = max(self.longest, int(outputs.max(initial=0)))
        self.others.append(fingerprints([batch.column(name) for name in SCHEMA.names if name != "request_id"]))
        self.ids.append(fingerprints([batch.column("request_id" if own_ids else "line")]))


def settle(rows: Rows, tally: Tally, source: str) -> Plan:
    """Decide over the whole log, and count what is dropped and repaired; ``source`` names it in errors."""
    arrivals, lines = _joined(rows.arrivals), _joined(rows.lines)
    if len(arrivals) == 0:
        raise TraceError(f"{source} holds no usable request", hint=_first_reasons(tally))
    if rows.longest == 0:
        hint = "Is the column of output tokens the right one?"
        raise TraceError(f"{source}: no request of {len(arrivals):,} has any output token", hint=hint)
    keep = np.ones(len(arrivals), dtype=bool)
    forget = _check_arrivals(arrivals, lines, keep, tally)
    if forget:
        arrivals = np.full_like(arrivals, UNKNOWN)
    else:
        _check_clock(arrivals, lines, keep, tally, source)
    others, ids = np.concatenate(rows.others), np.concatenate(rows.ids)
    whole = _mix(others * _ODD + ids) if tally.has_ids else others
    _drop_duplicates(whole, arrivals, lines, keep, tally)
    renamed = _rename(ids, lines, keep, tally) if tally.has_ids else {}
    order = np.flatnonzero(keep)
    _count_unordered(arrivals[order], lines[order], tally)
    order = order[np.argsort(arrivals[order], kind="stable")]
    return Plan(order, renamed, forget)


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _first_reasons(tally: Tally) -> str:
    reasons = [f"{lines.count:,} {tally.numbering}s: {reason}" for reason, lines in tally.dropped.items()]
    return "; ".join(reasons[:3]) or "It has no rows"


def _check_arrivals(arrivals: IntArray, lines: IntArray, keep: BoolArray, tally: Tally) -> bool:
    """Whether the arrivals must be forgotten; drops the few rows without one from a log that tells them."""
    missing = arrivals == UNKNOWN
    if missing.all():
        tally.note("clock: the log tells no arrival times")
        return False
    if missing.mean() > ODD_SHARE:
        share = f"{missing.sum():,} of {len(missing):,}"
        tally.note(f"clock: {share} rows tell no arrival, so the arrivals of the others are left out as well")
        return True
    tally.drop("no arrival time, in a log that tells them", lines[missing])
    keep &= ~missing
    return False


def _check_clock(arrivals: IntArray, lines: IntArray, keep: BoolArray, tally: Tally, source: str) -> None:
    """Refuse a log whose times count from two origins; a few strays are dropped."""
    epoch = (arrivals >= EPOCH_FROM_NS) & keep
    relative = (arrivals < EPOCH_FROM_NS) & keep & (arrivals != UNKNOWN)
    if not epoch.any() and not relative.any():
        return
    fewer, more = sorted((epoch, relative), key=lambda which: int(which.sum()))
    if fewer.sum() > ODD_SHARE * more.sum():
        where = " and ".join(f"{tally.numbering} {lines[which][0]}" for which in (epoch, relative))
        message = f"{source} mixes times since 1970 with times since the log's start ({where})"
        raise TraceError(message, hint="Split the log, or bring both parts onto one clock")
    kind = "a time since the log's start, in a log of times since 1970"
    tally.drop(kind if more is epoch else "a time since 1970, in a log of times since its start", lines[fewer])
    keep &= ~fewer
    tally.note(f"clock: {'Unix epoch' if more is epoch else 'relative to a start of its own'}")


def _drop_duplicates(whole: Hashes, arrivals: IntArray, lines: IntArray, keep: BoolArray, tally: Tally) -> None:
    again = _repeats(whole) & keep
    if not again.any():
        return
    if tally.has_ids or bool((arrivals[keep] % _FINE_NS != 0).any() and (arrivals[keep] != UNKNOWN).all()):
        tally.drop("a duplicate of an earlier row", lines[again])
        keep &= ~again
    else:
        tally.repair("equal to an earlier row, without an id or a fine clock to tell: kept", lines[again])


def _rename(ids: Hashes, lines: IntArray, keep: BoolArray, tally: Tally) -> dict[int, str]:
    """Suffixes for ids that an earlier, different row has used."""
    kept = np.flatnonzero(keep)
    again = kept[_repeats(ids[kept])]
    tally.repair("an id that another request has: the line number is added to it", lines[again])
    return {row: f"@{lines[row]}" for row in again.tolist()}


def _count_unordered(arrivals: IntArray, lines: IntArray, tally: Tally) -> None:
    """Count the rows that arrived before the row above them; one stray counts once, however far it is off."""
    tally.repair("out of order of arrival: sorted", lines[1:][arrivals[1:] < arrivals[:-1]])


def _repeats(hashes: Hashes) -> BoolArray:
    """(n,), whether an earlier element has the same value."""
    order = np.argsort(hashes, kind="stable")
    same = np.zeros(len(hashes), dtype=bool)
    same[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    return same


def fingerprints(columns: Sequence[pa.Array]) -> Hashes:
    """(n,) 64-bit hashes of rows; equal rows have equal ones in any run and however the log was cut into batches."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for place, column in enumerate(columns, start=1):
        total = _mix(total * _ODD + _hash_column(column) + np.uint64(place))
    return total


def _hash_column(column: pa.Array) -> Hashes:
    if pa.types.is_list(column.type):
        values = _hash_lists(column)
    elif pa.types.is_string(column.type):
        values = _hash_texts(column)
    else:
        values = _mix(np.asarray(column.fill_null(0)).astype(np.uint64))
    return np.where(np.asarray(column.is_valid()), values, _NULL)


def _hash_texts(column: pa.Array) -> Hashes:
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.uint64)
    coded = column.dictionary_encode()
    digests = b"".join(hashlib.blake2b(t.encode(), digest_size=8).digest() for t in coded.dictionary.to_pylist())
    hashes = np.frombuffer(digests, dtype="<u8").astype(np.uint64)
    return np.asarray(hashes[np.asarray(coded.indices.fill_null(0))])


def _hash_lists(column: pa.Array) -> Hashes:
    sizes = np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(int(sizes.sum()), dtype=np.int64) - np.repeat(starts, sizes)
    values = np.asarray(column.flatten().fill_null(0)).astype(np.uint64)
    mixed = _mix(values + _mix(place.astype(np.uint64) + _ODD))
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mix(sums[starts + sizes] - sums[starts] + sizes.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Spread every bit of each element over all 64 (a bijection)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed
