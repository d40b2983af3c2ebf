"""JSON logs as objects with their line numbers: JSON Lines, and the elements of one JSON array.

A record that cannot be taken apart is dropped and counted; a text that is no such log at all raises ``TraceError``.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from endcast.datasets import text
from endcast.datasets.files import LogFile
from endcast.datasets.report import Tally
from endcast.errors import TraceError

_PIECE = 1 << 18


class Record(NamedTuple):
    """One JSON object and the line on which it begins."""

    line: int
    value: dict[str, Any]


def json_records(log: LogFile, tally: Tally) -> Iterator[Record]:
    """The objects of a JSON Lines file or of one JSON array, told apart by the first character."""
    if text.first_character(log) == "[":
        yield from _array_records(log, tally)
        return
    for number, line in enumerate(text.lines(log, tally), start=1):
        if line and not line.isspace():
            value = _decode(line, number, tally)
            if value is not None:
                yield Record(number, value)


def _decode(source: str, line: int, tally: Tally) -> dict[str, Any] | None:
    """The object in ``source``; dropped and counted if it is none."""
    try:
        value = msgspec.json.decode(source)
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
        value = _decode(window.take_value(), line, tally)
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
                too_long = len(self._buffer) - self._at > text.MAX_RECORD_BYTES
                if isinstance(error, RecursionError) or too_long or not self._more():
                    message = f"{self._log.path}, line {self.line}: a JSON value is damaged, cut off or too long"
                    raise TraceError(message, hint="Check the file from that line on") from error
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may go on in the next piece
            value = self._buffer[self._at : end]
            self.skip(end - self._at)
            self._size = _PIECE
            self._log.tell_progress()
            return value
