"""From what a log says, column by column, to rows of the canonical trace; every format goes through here.

What cannot be used is dropped, what can be mended is repaired, and both are counted with their lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.ends import UNTOLD, end_reasons
from endcast.datasets.numbers import whole_numbers
from endcast.datasets.report import Tally
from endcast.datasets.schema import SCHEMA
from endcast.datasets.times import Unit, has_offset, instants
from endcast.datasets.trace import UNKNOWN, BoolArray, IntArray
from endcast.types import MAX_TOKENS, EndReason

#: A ``pa.Array`` or a sequence of whatever the log holds (pyarrow ships no types).
Column: TypeAlias = Any

#: The canonical columns and where in the log each row began.
LINED_SCHEMA = SCHEMA.append(pa.field("line", pa.int64(), nullable=False))
_TEXTS = ("model", "tenant", "session", "prompt", "messages", "output", "parameters", "attributes")
_NAMES = ("model", "tenant", "session")
_CAPS = ("max_tokens", "context_limit")


@dataclass(frozen=True)
class LogRows:
    """Some rows as a log has them. ``columns`` are named as in the canonical trace, but for the times: ``arrival`` and
    ``finished`` (in ``units``, where they are numbers), or ``duration`` (from arrival to finish).

    ``zero_end`` is the end of an answer without tokens, where the format's own documentation says what that means.
    """

    lines: IntArray
    columns: Mapping[str, Column]
    units: Mapping[str, Unit] = field(default_factory=dict)
    zero_end: EndReason | None = None


class _Sieve:
    """Which rows are still in; a row is dropped for the first reason found."""

    def __init__(self, lines: IntArray, tally: Tally) -> None:
        self.lines = lines
        self.tally = tally
        self.keep = np.ones(len(lines), dtype=bool)

    def drop(self, where: BoolArray, reason: str) -> None:
        gone = where & self.keep
        self.tally.drop(reason, self.lines[gone])
        self.keep &= ~gone

    def repair(self, where: BoolArray, reason: str) -> None:
        self.tally.repair(reason, self.lines[where & self.keep])


def clean(rows: LogRows, tally: Tally) -> pa.RecordBatch:
    """The usable ones of ``rows``, as a batch of ``LINED_SCHEMA``."""
    sieve = _Sieve(rows.lines, tally)
    size = len(rows.lines)
    made: dict[str, pa.Array] = {}
    prompt = _counts(rows, "prompt_tokens", sieve)
    output = _counts(rows, "output_tokens", sieve)
    sieve.drop(output == UNKNOWN, "output_tokens is missing")
    caps = {name: _caps(rows, name, sieve) for name in _CAPS}
    arrival, finished = _times(rows, sieve)
    texts = {name: _text(rows.columns.get(name), size) for name in _TEXTS}
    texts |= {name: _blank_as_null(texts[name]) for name in _NAMES}
    made["end"] = _ends(rows, prompt, output, caps, texts["output"], sieve)
    made["request_id"] = _request_ids(rows, tally)
    made["arrival_ns"], made["finished_ns"] = arrival, finished
    made |= {name: _nullable(values) for name, values in {"prompt_tokens": prompt, **caps}.items()} | texts
    made["output_tokens"] = pa.array(output)
    made["prefix_blocks"] = _blocks(rows.columns.get("prefix_blocks"), size)
    made["line"] = pa.array(rows.lines)
    batch = pa.record_batch([made[name] for name in LINED_SCHEMA.names], schema=LINED_SCHEMA)
    return batch if sieve.keep.all() else batch.filter(pa.array(sieve.keep))


def _nullable(values: IntArray) -> pa.Array:
    return pa.array(values, mask=values == UNKNOWN)


def _blank_as_null(texts: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(pc.utf8_length(trimmed), 0), pa.scalar(None, pa.string()), trimmed)


def as_text(column: pa.Array) -> pa.Array:
    """Strings of any flavour as ``string``; other types unchanged."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_text(column.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return column


def plain_values(column: Column) -> list[Any]:
    """A column as Python values; times as ISO texts, since Python's own have no nanoseconds and end in 9999."""
    if not isinstance(column, pa.Array):
        return list(column)
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        column = column.cast(pa.string())
    elif pa.types.is_struct(kind):
        parts = [plain_values(column.field(i)) for i in range(kind.num_fields)]
        names = [kind.field(i).name for i in range(kind.num_fields)]
        told = column.is_valid().to_pylist()
        rows = zip(*parts, strict=True) if parts else [()] * len(column)
        return [dict(zip(names, row, strict=True)) if t else None for row, t in zip(rows, told, strict=True)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items, sizes = plain_values(column.flatten()), column.value_lengths().to_pylist()
        ends = accumulate(size or 0 for size in sizes)
        return [None if n is None else items[end - n : end] for n, end in zip(sizes, ends, strict=True)]
    values: list[Any] = column.to_pylist()
    return values


def _counts(rows: LogRows, name: str, sieve: _Sieve) -> IntArray:
    """A column of token counts in [0, MAX_TOKENS], ``UNKNOWN`` where it is not told."""
    column = rows.columns.get(name)
    if column is None:
        return np.full(len(rows.lines), UNKNOWN, dtype=np.int64)
    read = whole_numbers(as_text(column) if isinstance(column, pa.Array) else column)
    sieve.drop(read.given & ~read.valid, f"{name} is not a whole number")
    sieve.drop(read.values < 0, f"{name} is negative")
    sieve.drop(read.values > MAX_TOKENS, f"{name} is above {MAX_TOKENS:,}")
    return np.where(read.valid, read.values, UNKNOWN)


def _caps(rows: LogRows, name: str, sieve: _Sieve) -> IntArray:
    """A column of caps in [1, MAX_TOKENS]: 0, −1 and absurdly large numbers are how logs write "no cap"."""
    column = rows.columns.get(name)
    if column is None:
        return np.full(len(rows.lines), UNKNOWN, dtype=np.int64)
    read = whole_numbers(as_text(column) if isinstance(column, pa.Array) else column)
    sieve.repair(read.given & ~read.valid, f"{name} is not a whole number: taken as not told")
    none = read.valid & ((read.values < 1) | (read.values > MAX_TOKENS))
    sieve.repair(none, f"{name} below 1 or above {MAX_TOKENS:,}: taken as no cap")
    return np.where(read.valid & ~none, read.values, UNKNOWN)


def _times(rows: LogRows, sieve: _Sieve) -> tuple[pa.Array, pa.Array]:
    """Arrival and finish in nanoseconds, null where they are not told."""
    size = len(rows.lines)
    arrival, given, valid = _instants(rows, "arrival", size)
    sieve.drop(given & ~valid, "the arrival is not a time that can be read")
    sieve.drop(valid & (arrival < 0), "the arrival is negative")
    finished, told, readable = _instants(rows, "finished", size)
    if "duration" in rows.columns:
        lasted, told, readable = _instants(rows, "duration", size)
        readable &= valid & (lasted >= 0) & (lasted <= np.iinfo(np.int64).max - np.maximum(arrival, 0))
        finished = np.where(readable, arrival + np.where(readable, lasted, 0), 0)
    sieve.repair(told & ~readable, "the finish is not a time that can be read: taken as not told")
    early = readable & valid & (finished < arrival)
    sieve.repair(early, "finished before it arrived: the finish is taken as not told")
    return pa.array(arrival, mask=~valid), pa.array(finished, mask=~readable | early)


def _instants(rows: LogRows, name: str, size: int) -> tuple[IntArray, BoolArray, BoolArray]:
    column = rows.columns.get(name)
    if column is None:
        none = np.zeros(size, dtype=bool)
        return np.zeros(size, dtype=np.int64), none, none
    return instants(as_text(column) if isinstance(column, pa.Array) else column, rows.units.get(name, Unit.GUESS))


def note_zones(column: Column, tally: Tally) -> None:
    """Say how the times of a column of ISO texts were understood."""
    texts = column if isinstance(column, pa.Array) else pa.array([v if isinstance(v, str) else None for v in column])
    if not pa.types.is_string(texts.type) or texts.null_count == len(texts):
        return
    iso = np.asarray(pc.fill_null(pc.match_substring_regex(texts, r"^\s*\d{4}-\d"), False))
    zoned = has_offset(texts)
    if (iso & ~zoned).any():
        tally.note("clock: times without an offset are taken as UTC")
        if (iso & zoned).any():
            tally.note("clock: some times have an offset from UTC and some have none")


def _ends(
    rows: LogRows,
    prompt: IntArray,
    output: IntArray,
    caps: Mapping[str, IntArray],
    text: pa.Array,
    sieve: _Sieve,
) -> pa.Array:
    """The end reason of each row, by the record's own evidence; drops answers without tokens that have none."""
    words = rows.columns.get("end")
    told = end_reasons(_text(words, len(rows.lines)), rows.lines, sieve.tally)
    reasons = np.asarray(told.to_numpy(zero_copy_only=False), dtype=object)
    untold = reasons == UNTOLD
    limit, most = caps["context_limit"], caps["max_tokens"]
    room = np.where((limit > 0) & (prompt >= 0), np.maximum(limit - prompt, 1), UNKNOWN)
    at_cap = ((most > 0) & (output >= most)) | ((room > 0) & (output >= room))
    reasons[untold] = EndReason.STOP.value
    reasons[untold & at_cap] = EndReason.LENGTH.value
    _zero_outputs(rows, output, untold, text, reasons, sieve)
    return pa.array(reasons, pa.string())


def _zero_outputs(
    rows: LogRows, output: IntArray, untold: BoolArray, text: pa.Array, reasons: np.ndarray, sieve: _Sieve
) -> None:
    """Answers without tokens stay only where the record tells that they failed or were empty; never counted as 1."""
    zero = output == 0
    if not zero.any():
        return
    length = np.asarray(pc.fill_null(pc.utf8_length(text), UNKNOWN))
    sieve.drop(zero & (length > 0), "zero output tokens, yet there is an output text")
    if rows.zero_end is not None:
        reasons[zero & untold] = rows.zero_end.value
    else:
        sieve.drop(zero & untold & (length == UNKNOWN), "zero output tokens, and nothing tells why")
    failed = np.isin(reasons, [EndReason.ERROR.value, EndReason.ABORT.value, EndReason.UNFINISHED.value])
    sieve.repair(zero & failed, "zero output tokens: a failure, kept and censored at 0")
    sieve.repair(zero & ~failed, "zero output tokens: an empty answer, kept")


def _text(column: Column | None, size: int) -> pa.Array:
    """A column as strings; numbers are written out, whatever is neither is null."""
    if column is None:
        return pa.nulls(size, pa.string())
    if not isinstance(column, pa.Array):
        return pa.array([v if isinstance(v, str) or v is None else _word(v) for v in column], pa.string())
    column = as_text(column)
    return column if pa.types.is_string(column.type) else _text(plain_values(column), size)


def _word(value: object) -> str | None:
    return str(value) if isinstance(value, int | float | bytes) or hasattr(value, "isoformat") else None


def _request_ids(rows: LogRows, tally: Tally) -> pa.Array:
    """The log's own ids; the line number where it has none."""
    if "request_id" in rows.columns:
        tally.has_ids = True
    numbers = pa.array(rows.lines).cast(pa.string())
    own = _text(rows.columns.get("request_id"), len(rows.lines))
    return pc.if_else(pc.fill_null(pc.greater(pc.utf8_length(own), 0), False), own, numbers)


def _blocks(column: Column | None, size: int) -> pa.Array:
    kind = SCHEMA.field("prefix_blocks").type
    if column is None:
        return pa.nulls(size, kind)
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)
