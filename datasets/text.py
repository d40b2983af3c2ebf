"""Text logs as rows with their line numbers: CSV rows, JSON Lines, and the elements of one JSON array.

A record that cannot be taken apart is dropped and counted; a text that is no such log at all raises ``TraceError``.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from endcast.datasets.files import LogFile
from endcast.datasets.report import Tally
from endcast.datasets.trace import IntArray
from endcast.errors import TraceError

#: A line or a JSON record longer than this is a fault of the log; bounds what is held in memory.
MAX_RECORD_BYTES = 1 << 26
CSV_BATCH_ROWS = 1 << 16
_PIECE = 1 << 18
_BOM = "\ufeff"
_DELIMITERS = ",;\t|"


class Record(NamedTuple):
    """One JSON object and the line on which it begins."""

    line: int
    value: dict[str, Any]


class CsvBatch(NamedTuple):
    """Rows of one CSV file: ``columns[i]`` holds the texts of ``header[i]``, ``lines`` (n,) where each row begins."""

    columns: list[tuple[str, ...]]
    lines: IntArray


def _lines(stream: io.BufferedIOBase, log: LogFile, tally: Tally) -> Iterator[str]:
    """Decoded lines; bytes that are no UTF-8 are replaced, and counted as repaired."""
    number = 0
    while raw := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(raw) > MAX_RECORD_BYTES:
            message = f"{log.path}, line {number}: is longer than {MAX_RECORD_BYTES >> 20} MiB"
            raise TraceError(message, hint="A log has one request a line")
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            line = raw.decode(errors="replace")
            tally.repair("bytes that are not UTF-8 were replaced", [number])
        yield line.removeprefix(_BOM) if number == 1 else line


def csv_header(log: LogFile) -> tuple[str, ...]:
    """Names of a CSV file's columns, as its first line that is not blank tells them."""
    return tuple(next(iter(_CsvReader(log, Tally())), ([], 0))[0])


def csv_batches(log: LogFile, tally: Tally) -> Iterator[CsvBatch]:
    """The rows below the header; a row with too few or too many fields is dropped."""
    reader = iter(_CsvReader(log, tally))
    header, _ = next(reader, ([], 0))
    width = len(header)
    rows: list[list[str]] = []
    lines: list[int] = []
    for row, line in reader:
        if len(row) != width:
            tally.read(1)
            tally.drop(f"not {width} fields, as the header has", [line])
            continue
        rows.append(row)
        lines.append(line)
        if len(rows) == CSV_BATCH_ROWS:
            yield _csv_batch(rows, lines, log, tally)
            rows, lines = [], []
    if rows:
        yield _csv_batch(rows, lines, log, tally)


def _csv_batch(rows: list[list[str]], lines: list[int], log: LogFile, tally: Tally) -> CsvBatch:
    tally.read(len(rows))
    log.tell_progress()
    return CsvBatch(list(zip(*rows, strict=True)), np.asarray(lines, dtype=np.int64))


class _CsvReader:
    """Rows, with the line on which each begins; blank lines are passed over."""

    def __init__(self, log: LogFile, tally: Tally) -> None:
        self._log = log
        self._tally = tally

    def __iter__(self) -> Iterator[tuple[list[str], int]]:
        lines = _lines(self._log.stream(), self._log, self._tally)
        first = next(lines, "")
        delimiter = max(_DELIMITERS, key=first.count)
        csv.field_size_limit(MAX_RECORD_BYTES)  # the csv module's own limit is too small for prompts
        reader = csv.reader(chain((first,), lines), delimiter=delimiter)
        begins = 1
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                message = f"{self._log.path}, line {reader.line_num}: is no CSV ({error})"
                raise TraceError(message, hint="Check quotes and line ends near that line") from error
            if row:
                yield row, begins
            begins = reader.line_num + 1


def json_records(log: LogFile, tally: Tally) -> Iterator[Record]:
    """The objects of a JSON Lines file or of one JSON array, told apart by the first character."""
    if first_character(log) == "[":
        yield from _array_records(log, tally)
        return
    for number, line in enumerate(_lines(log.stream(), log, tally), start=1):
        if not line.isspace():
            value = _decode(line, number, tally)
            if value is not None:
                yield Record(number, value)


def first_character(log: LogFile) -> str:
    """The first one that is no white space, of the first 4096 bytes; empty if there is none."""
    head = log.stream().read(4096).decode(errors="replace")
    return head.removeprefix(_BOM).lstrip()[:1]


def _decode(text: str, line: int, tally: Tally) -> dict[str, Any] | None:
    """The object in ``text``; dropped and counted if it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        tally.read(1)
        tally.drop("not valid JSON", [line])
        return None
    if isinstance(value, dict):
        return value
    tally.read(1)
    tally.drop("not a JSON object", [line])
    return None


def _array_records(log: LogFile, tally: Tally) -> Iterator[Record]:
    """Elements of one JSON array, decoded one by one from a window of text, so that memory stays bounded."""
    window = _Window(log, tally)
    window.skip(1)  # the opening bracket
    while window.skip_space() not in ("]", ""):
        line = window.line
        text = window.take_value()
        value = _decode(text, line, tally)
        if value is not None:
            yield Record(line, value)
        if window.skip_space() == ",":
            window.skip(1)
        elif window.skip_space() != "]":
            break
    if window.skip_space() != "]":
        raise TraceError(f"{log.path}, line {window.line}: the JSON array is cut off or damaged here")


class _Window:
    """Text of a stream, read as far as needed, with the number of the line at its beginning."""

    def __init__(self, log: LogFile, tally: Tally) -> None:
        self._stream = log.stream()
        self._text = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._log = log
        self._tally = tally
        self._scan = json.JSONDecoder().raw_decode
        self._size = _PIECE
        self._buffer = ""
        self._at = 0
        self.line = 1
        self._more()
        self.skip_space()

    def _more(self) -> bool:
        raw = self._stream.read(self._size)
        new = self._text.decode(raw, final=not raw)
        if "\ufffd" in new and "\ufffd".encode() not in raw:
            self._tally.note("bytes that are not UTF-8 were replaced")
        self._buffer, self._at = self._buffer[self._at :] + new, 0
        return bool(raw)

    def skip(self, characters: int) -> None:
        self.line += self._buffer.count("\n", self._at, self._at + characters)
        self._at += characters

    def skip_space(self) -> str:
        """The next character that is no white space, left where it is; empty at the end of the stream."""
        while True:
            rest = len(self._buffer) - self._at
            for i in range(rest):
                if not self._buffer[self._at + i].isspace():
                    self.skip(i)
                    return self._buffer[self._at]
            self.skip(rest)
            if not self._more():
                return ""

    def take_value(self) -> str:
        """The text of the JSON value that begins here; reads on while the value may be incomplete."""
        while True:
            try:
                _, end = self._scan(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                self._size = max(self._size, len(self._buffer) - self._at)  # doubles: no quadratic rescanning
                too_long = len(self._buffer) - self._at > MAX_RECORD_BYTES
                if isinstance(error, RecursionError) or too_long or not self._more():
                    message = f"{self._log.path}, line {self.line}: a JSON value is damaged, cut off or too long"
                    raise TraceError(message, hint="Check the file from that line on") from error
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may go on in the next piece
            text = self._buffer[self._at : end]
            self.skip(end - self._at)
            self._size = _PIECE
            self._log.tell_progress()
            return text
