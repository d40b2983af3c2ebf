"""What the formats share: CSV columns by name, JSON records in batches, and left-over columns as attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from endcast.datasets.clean import LogRows, plain_values
from endcast.datasets.csv_rows import csv_batches, csv_header
from endcast.datasets.files import PARQUET_MAGIC, LogFile
from endcast.datasets.formats.base import parquet_file, parquet_rows
from endcast.datasets.json_records import Record, json_records
from endcast.datasets.report import Tally
from endcast.datasets.text import first_character
from endcast.datasets.times import Unit
from endcast.datasets.trace import IntArray
from endcast.errors import TraceError

#: A batch of JSON records ends after so many, or so many characters of text.
BATCH_RECORDS = 8192
BATCH_CHARACTERS = 1 << 25


class CsvColumns:
    """A CSV log by the names in its header."""

    def __init__(self, log: LogFile, tally: Tally) -> None:
        if first_character(log) in ("{", "[") or b"\0" in log.stream().read(4096):
            raise TraceError(f"{log.path} is no CSV", hint="Choose another --format")
        self._log = log
        self._tally = tally
        self.header = tuple(name.strip() for name in csv_header(log))
        twice = sorted({name for name in self.header if self.header.count(name) > 1})
        if twice:
            raise TraceError(f"{log.path}, line 1: the column {twice[0]!r} is there twice", hint="Rename one of them")

    def need(self, names: Iterable[str]) -> None:
        """Raise ``TraceError`` unless the header has all ``names``."""
        missing = [name for name in names if name not in self.header]
        if missing:
            has = ", ".join(self.header[:12]) or "nothing"
            message = f"{self._log.path}, line 1: the header lacks {', '.join(missing)}; it has {has}"
            raise TraceError(message, hint="Choose another --format, or name the columns with --columns")

    def batches(self) -> Iterator[tuple[IntArray, dict[str, pa.Array]]]:
        """Line numbers (n,), and the texts of each column (n,)."""
        for batch in csv_batches(self._log, self._tally):
            texts = (pa.array(column, pa.string()) for column in batch.columns)
            yield batch.lines, dict(zip(self.header, texts, strict=True))


def need_json(log: LogFile, name: str) -> None:
    """Raise ``TraceError`` unless the log looks like JSON."""
    if first_character(log) not in ("{", "["):
        raise TraceError(f"{log.path} is no JSON, as {name} logs are", hint="Choose another --format")


def record_batches(log: LogFile, tally: Tally) -> Iterator[tuple[IntArray, list[dict[str, Any]]]]:
    """Lines (n,) and objects of a JSON log, in batches of bounded size; each object counts as one row read."""
    batch: list[Record] = []
    characters = 0
    for record in json_records(log, tally):
        batch.append(record)
        characters += sum(len(value) for value in record.value.values() if isinstance(value, str))
        if len(batch) == BATCH_RECORDS or characters > BATCH_CHARACTERS:
            yield _batch(batch, log, tally)
            batch, characters = [], 0
    if batch:
        yield _batch(batch, log, tally)


def _batch(batch: list[Record], log: LogFile, tally: Tally) -> tuple[IntArray, list[dict[str, Any]]]:
    tally.read(len(batch))
    log.tell_progress()
    return np.asarray([record.line for record in batch], dtype=np.int64), [record.value for record in batch]


def records_of(log: LogFile, tally: Tally, name: str) -> Iterator[Record]:
    """The objects of a JSON log, or the rows of a Parquet file; ``name`` is the format that expects them."""
    if log.stream().read(len(PARQUET_MAGIC)) != PARQUET_MAGIC:
        need_json(log, name)
        yield from json_records(log, tally)
        return
    tally.numbering = "row"
    number = 0
    for batch in parquet_rows(log, parquet_file(log), batch_rows=BATCH_RECORDS // 8):
        for value in plain_values(batch.to_struct_array()):
            number += 1
            yield Record(number, value)


def expanded(
    log: LogFile, records: Iterable[Record], expand: Callable[[Record], list[dict[str, Any]]], columns: Sequence[str]
) -> Iterator[LogRows]:
    """Rows of ``columns`` that ``expand`` makes of each record, in batches of bounded size; times are nanoseconds."""
    held: list[dict[str, Any]] = []
    lines: list[int] = []
    characters = 0
    for record in records:
        rows = expand(record)
        held += rows
        lines += [record.line] * len(rows)
        characters += sum(len(row.get(name) or "") for row in rows for name in ("messages", "prompt", "output"))
        if len(held) >= BATCH_RECORDS or characters > BATCH_CHARACTERS:
            yield _expanded(held, lines, columns)
            log.tell_progress()
            held, lines, characters = [], [], 0
    if held:
        yield _expanded(held, lines, columns)


def _expanded(held: list[dict[str, Any]], lines: list[int], columns: Sequence[str]) -> LogRows:
    found = {name: [row.get(name) for row in held] for name in columns}
    return LogRows(np.asarray(lines, dtype=np.int64), found, units={"arrival": Unit.NS, "finished": Unit.NS})


def attributes(columns: Mapping[str, pa.Array | list[object]]) -> dict[str, pa.Array]:
    """The canonical ``attributes`` column: a JSON object a row of all ``columns``, without nulls and blanks."""
    if not columns:
        return {}
    lists = [plain_values(column) for column in columns.values()]
    names = list(columns)
    return {"attributes": pa.array([to_json(dict(zip(names, v, strict=True))) for v in zip(*lists, strict=True)])}


def to_json(values: Mapping[str, object]) -> str | None:
    """A JSON object of those ``values`` that tell something; ``None`` if none does."""
    told = {name: value for name, value in values.items() if value is not None and value != ""}
    return msgspec.json.encode(told, enc_hook=str, order="deterministic").decode() if told else None
