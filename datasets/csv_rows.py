"""CSV logs as columns of texts, batch by batch, with the line on which each row begins.

As long as no quote has been seen every line is a row, and a block of lines that has nothing odd in it is taken apart
at once. From the first quote on a row may span lines, and rows are taken one by one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from endcast.datasets import text
from endcast.datasets.files import LogFile
from endcast.datasets.report import Tally
from endcast.datasets.trace import IntArray
from endcast.errors import TraceError

_DELIMITERS = ",;\t|"
_BATCH_ROWS = 1 << 14

#: Some rows, and the line on which each begins.
_Rows = tuple[list[list[str]], list[int]]


class CsvBatch(NamedTuple):
    """Rows of one CSV file: ``columns[i]`` (n,) holds the texts of ``header[i]``, ``lines`` (n,) where each begins."""

    columns: list[pa.Array]
    lines: IntArray


def csv_header(log: LogFile) -> tuple[str, ...]:
    """Names of a CSV file's columns, as its first line that is not blank tells them."""
    delimiter = _delimiter(log)
    return next((tuple(rows[0]) for rows, _ in _filled_rows(log, text.raw_blocks(log), 1, delimiter, Tally())), ())


def csv_batches(log: LogFile, tally: Tally) -> Iterator[CsvBatch]:
    """The rows below the header; a row with too few or too many fields is dropped, a blank line is passed over."""
    delimiter = _delimiter(log)
    blocks = text.raw_blocks(log)
    width = 0
    for number, raw in blocks:
        columns = _plain_columns(raw, width, delimiter) if width else None
        if columns is not None:
            tally.read(len(columns[0]))
            log.tell_progress()
            yield CsvBatch(columns, np.arange(number, number + len(columns[0])))
            continue
        rest = chain(((number, raw),), blocks if b'"' in raw else ())
        for rows, lines in _filled_rows(log, rest, number, delimiter, tally):
            start = 0 if width else 1
            width = width or len(rows[0])
            yield from _checked((rows[start:], lines[start:]), width, log, tally)


def _delimiter(log: LogFile) -> str:
    """The most frequent one in the first line that is not blank. Goes back to the beginning of the log."""
    first = log.stream().read(1 << 16).decode(errors="replace").lstrip().partition("\n")[0]
    return max(_DELIMITERS, key=first.count)


def _plain_columns(raw: bytes, width: int, delimiter: str) -> list[pa.Array] | None:
    """A block's columns, if all its lines are plain rows of ``width`` fields; ``None`` if anything is odd."""
    odd_ends = raw.count(b"\r") != raw.count(b"\r\n") + raw.endswith(b"\r")
    blank_lines = raw[:1] in (b"", b"\n", b"\r") or raw.endswith(b"\n") or b"\n\n" in raw or b"\n\r" in raw
    if odd_ends or blank_lines or b'"' in raw:
        return None
    names = [str(i) for i in range(width)]
    try:
        table = pacsv.read_csv(
            pa.BufferReader(raw),
            read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(raw) + 1),
            parse_options=pacsv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None
    if table.num_rows != raw.count(b"\n") + 1:
        return None
    return [column.chunk(0) for column in table.columns]


def _checked(batch: _Rows, width: int, log: LogFile, tally: Tally) -> Iterator[CsvBatch]:
    """The rows that have ``width`` fields."""
    tally.read(len(batch[0]))
    log.tell_progress()
    fitting = [len(row) == width for row in batch[0]]
    rows, lines = _chosen(batch, fitting)
    tally.drop(f"not {width} fields, as the header has", _chosen(batch, [not fits for fits in fitting])[1])
    if rows:
        columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        yield CsvBatch(columns, np.asarray(lines, dtype=np.int64))


def _chosen(batch: _Rows, which: list[bool]) -> _Rows:
    if all(which):
        return batch
    rows, lines = batch
    return list(compress(rows, which)), list(compress(lines, which))


def _filled_rows(
    log: LogFile, blocks: Iterator[tuple[int, bytes]], first: int, delimiter: str, tally: Tally
) -> Iterator[_Rows]:
    """Batches of at least one row each, without blank ones; ``first`` is the number of the first line."""
    csv.field_size_limit(text.MAX_RECORD_BYTES)  # the csv module's own limit is too small for prompts
    numbered = chain.from_iterable(text.decoded(number, raw, tally) for number, raw in blocks)
    reader = csv.reader((f"{line}\n" for line in numbered), delimiter=delimiter)
    batch: _Rows = ([], [])
    line = first
    try:
        for row in reader:
            if row:
                batch[0].append(row)
                batch[1].append(line)
            line = first + reader.line_num
            if len(batch[0]) == _BATCH_ROWS:
                yield batch
                batch = ([], [])
    except csv.Error as error:
        message = f"{log.path}, line {first + reader.line_num - 1}: is no CSV ({error})"
        raise TraceError(message, hint="Check quotes and line ends near that line") from error
    if batch[0]:
        yield batch
