"""Server-sent events out of a stream of bytes that may be cut anywhere: inside a character, inside a line end.

An event ends with an empty line; lines end with LF, CRLF or CR. The bytes of the events returned, in order, followed by
``rest`` are the bytes that were fed: nothing is changed, added or lost.
"""

from __future__ import annotations

import re

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")
_WHOLE_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_DATA = re.compile(rb"(?:\xef\xbb\xbf)?data(?::|(?=[\r\n]|\Z))")
#: Ends of events that may lack their last LF yet: it would stand before the next event, and outlive one that is left out.
_PERHAPS_CUT = (b"\r\n\r", b"\n\r")


class EventSplitter:
    """Feed it what came from the network; it gives back whole events, with the empty lines that end them."""

    __slots__ = ("_tail", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []  #: of an event that is not complete
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes. Time is linear in the bytes fed, also for an event in many pieces."""
        if not self.parts and data.endswith(b"}\n\n") and b"\r" not in data:
            if data.find(b"\n\n") == len(data) - 2:
                return [data]
            return [part + b"\n\n" for part in data[:-2].split(b"\n\n")]
        # An end may be cut: look again at the last bytes of what came before.
        edge = self._tail + data
        if self.parts and _BLANK_LINE.search(edge) is None:
            self._keep(data)
            return []
        whole = b"".join((*self.parts, data))
        self.parts, self._tail = [], b""
        events, start = [], 0
        for end in _BLANK_LINE.finditer(whole):
            if end.end() == len(whole) and end.group() in _PERHAPS_CUT:
                break
            events.append(whole[start : end.end()])
            start = end.end()
        self._keep(whole[start:])
        return events

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not complete."""
        return b"".join(self.parts)

    def _keep(self, data: bytes) -> None:
        if data:
            self.parts.append(data)
            self._tail = (self._tail + data)[-3:]


def data_of(event: bytes) -> bytes:
    """The data of an event: its ``data`` lines joined by LF; empty where it has none (a comment)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]  # as engines write it; the second end of line is the last byte of any event
    lines = []
    for line in _LINE.split(event):
        name, _, value = line.partition(b":")
        if name.removeprefix(b"\xef\xbb\xbf") == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)


def masked(event: bytes) -> bytes:
    """The event with all that is no data (names of fields, comments, other fields) as spaces: each sign stays where it is."""
    return b"".join(map(_masked_line, _WHOLE_LINE.findall(event)))


def _masked_line(line: bytes) -> bytes:
    name = _DATA.match(line)
    if name is None:
        return b" " * len(line)
    return b" " * name.end() + line[name.end() :]


def with_data(event: bytes, data: bytes) -> bytes:
    """The event with ``data`` (one line) in place of its own; all else of it stays."""
    lines, told = [], False
    for line in _WHOLE_LINE.findall(event):
        name = _DATA.match(line)
        if name is None:
            lines.append(line)
        elif not told:
            value, told = line[name.end() :], True
            head = name.group() if name.group().endswith(b":") else name.group() + b":"
            lines += (head, b" " * value.startswith(b" "), data, value[len(value.rstrip(b"\r\n")) :])
    return b"".join(lines)
