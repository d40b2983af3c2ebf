"""Any table: CSV, JSON Lines, a JSON array or Parquet whose columns are named as in the canonical trace, or become so by
a map ``{"prompt_tokens": "ContextTokens", …}``. Columns that nobody names become attributes.

Times are ``arrival`` and ``finished`` (ISO 8601 or numbers, by magnitude) or end in their unit: ``arrival_s``,
``arrival_ms``, ``arrival_us``, ``arrival_ns``, ``finished_s`` and so on, ``duration_s``, ``duration_ms``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from endcast.datasets.clean import Column, LogRows, as_text, note_zones, plain_values
from endcast.datasets.estimate import estimated_columns
from endcast.datasets.files import PARQUET_MAGIC, LogFile
from endcast.datasets.formats.base import Sample, parquet_file, parquet_rows
from endcast.datasets.formats.mooncake import block_ids
from endcast.datasets.formats.tables import CsvColumns, attributes, record_batches, to_json
from endcast.datasets.report import Tally
from endcast.datasets.schema import SCHEMA, VERSION_KEY
from endcast.datasets.text import first_character
from endcast.datasets.times import Unit
from endcast.datasets.trace import IntArray
from endcast.errors import TraceError

PARQUET_BATCH_ROWS = 16_384
_UNITS = {"": Unit.GUESS, "_s": Unit.S, "_ms": Unit.MS, "_us": Unit.US, "_ns": Unit.NS}
#: Name of a column of times → what it is, and its unit.
TIME_COLUMNS: Mapping[str, tuple[str, Unit]] = MappingProxyType(
    {f"{what}{ending}": (what, unit) for what in ("arrival", "finished") for ending, unit in _UNITS.items()}
    | {f"duration{ending}": ("duration", unit) for ending, unit in _UNITS.items() if ending}
)
_JSON_COLUMNS = ("messages", "parameters", "attributes")
#: All names that a column, or the left side of a column map, may have.
NAMES = frozenset(SCHEMA.names) | frozenset(TIME_COLUMNS)


@dataclass(frozen=True)
class _Generic:
    name: str = "generic"
    summary: str = "CSV, JSON Lines or Parquet with columns named as in the trace, or a column map"

    def detect(self, sample: Sample) -> bool:
        if sample.metadata is not None and VERSION_KEY in sample.metadata:
            return False
        return sample.has("output_tokens") or sample.has("output", "prompt") or sample.has("output", "messages")

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        for lines, found in _tables(log, tally):
            named = rename(found, columns, log)
            note_zones_of(named, tally)
            yield _log_rows(lines, named, tally)


def _tables(log: LogFile, tally: Tally) -> Iterator[tuple[IntArray, dict[str, Column]]]:
    if log.stream().read(4) == PARQUET_MAGIC:
        yield from parquet_batches(log, tally, parquet_file(log).schema_arrow.names)
    elif first_character(log) in ("{", "["):
        names: dict[str, None] = {}
        for lines, records in record_batches(log, tally):
            names |= dict.fromkeys(name for record in records for name in record)
            yield lines, {name: [record.get(name) for record in records] for name in names}
    else:
        for lines, texts in CsvColumns(log, tally).batches():
            yield lines, dict(texts)


def parquet_batches(log: LogFile, tally: Tally, names: Sequence[str]) -> Iterator[tuple[IntArray, dict[str, Column]]]:
    """Rows numbered from 1, and the columns ``names`` of a Parquet file."""
    tally.numbering = "row"
    done = 0
    for batch in parquet_rows(log, parquet_file(log), batch_rows=PARQUET_BATCH_ROWS, columns=list(names)):
        tally.read(batch.num_rows)
        log.tell_progress()
        yield np.arange(done + 1, done + batch.num_rows + 1), dict(zip(batch.schema.names, batch, strict=True))
        done += batch.num_rows


def rename(found: Mapping[str, Column], columns: Mapping[str, str], log: LogFile) -> dict[str, Column]:
    """The columns under their canonical names; those that the map does not mention keep theirs."""
    missing = [theirs for theirs in columns.values() if theirs not in found]
    if missing:
        has = ", ".join(list(found)[:12])
        raise TraceError(f"{log.path} has no column {missing[0]!r}; it has {has}", hint="Correct --columns")
    taken = set(columns.values())
    kept = {name: column for name, column in found.items() if name not in taken and name not in columns}
    return kept | {ours: found[theirs] for ours, theirs in columns.items()}


def _log_rows(lines: IntArray, named: dict[str, Column], tally: Tally) -> LogRows:
    columns: dict[str, Column] = {name: column for name, column in named.items() if name in SCHEMA.names}
    units = {}
    for name, (what, unit) in TIME_COLUMNS.items():
        if name in named:  # the last is the most exact
            columns[what], units[what] = named[name], unit
    columns |= _json_columns(columns, lines, tally)
    if "prefix_blocks" in columns:
        columns["prefix_blocks"] = _block_lists(columns["prefix_blocks"], lines, tally)
    others = {name: column for name, column in named.items() if name not in NAMES}
    columns |= _merged_attributes(columns.get("attributes"), others)
    return LogRows(lines, estimated_columns(columns, lines, tally), units=units)


def note_zones_of(named: Mapping[str, Column], tally: Tally) -> None:
    """Say how the arrivals are understood, if they are texts."""
    for name, (what, _) in TIME_COLUMNS.items():
        if what == "arrival" and name in named:
            column = named[name]
            note_zones(as_text(column) if isinstance(column, pa.Array) else column, tally)


def _json_columns(columns: Mapping[str, Column], lines: IntArray, tally: Tally) -> dict[str, Column]:
    """Messages, parameters and attributes as JSON texts, whether the log has texts or the values themselves."""
    made: dict[str, Column] = {}
    for name in _JSON_COLUMNS:
        if name in columns:
            kind = list if name == "messages" else dict
            values = plain_values(columns[name])
            texts = [_json_text(value, kind) for value in values]
            wrong = [t is None and v not in (None, "") for t, v in zip(texts, values, strict=True)]
            tally.repair(f"{name} is no JSON {kind.__name__}: taken as not told", lines[np.asarray(wrong, dtype=bool)])
            made[name] = pa.array(texts, pa.string())
    return made


def _json_text(value: object, kind: type) -> str | None:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    if isinstance(value, list):
        fits = kind is list and all(isinstance(message, dict) for message in value)
    else:
        fits = kind is dict and isinstance(value, dict)
    return msgspec.json.encode(value, enc_hook=str).decode() if fits else None


def _block_lists(column: Column, lines: IntArray, tally: Tally) -> list[object]:
    values = [_decoded(value) for value in plain_values(column)]
    blocks: list[object] = [block_ids(value) for value in values]
    wrong = [b is None and v not in (None, "") for b, v in zip(blocks, values, strict=True)]
    tally.repair("prefix_blocks is no list of whole numbers: taken as not told", lines[np.asarray(wrong, dtype=bool)])
    return blocks


def _decoded(value: object) -> object:
    if isinstance(value, str) and value.startswith("["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _merged_attributes(own: Column | None, others: Mapping[str, Column]) -> dict[str, Column]:
    if own is None or not others:
        return dict(attributes(others))
    base: list[dict[str, Any]] = [msgspec.json.decode(v) if v else {} for v in plain_values(own)]
    extra = [plain_values(column) for column in others.values()]
    names = list(others)
    merged = [dict(zip(names, v, strict=True)) | b for b, v in zip(base, zip(*extra, strict=True), strict=True)]
    return {"attributes": pa.array([to_json(m) for m in merged], pa.string())}


GENERIC = _Generic()
