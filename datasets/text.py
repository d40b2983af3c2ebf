"""The lines of a text log, decoded, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from endcast.datasets.files import CHUNK, LogFile
from endcast.datasets.report import Tally
from endcast.errors import TraceError

#: A line or a JSON record longer than this is a fault of the log; bounds what is held in memory.
MAX_RECORD_BYTES = 1 << 26
_BOM = "\ufeff"


def raw_blocks(log: LogFile) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about ``CHUNK`` bytes at a time, without the last one's end, and the number of the first.

    A line that is too long is a ``TraceError``.
    """
    stream = log.stream()
    number, rest = 1, b""
    while piece := stream.read(CHUNK):
        whole, end, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > MAX_RECORD_BYTES:
            line = number + whole.count(b"\n") + len(end)
            message = f"{log.path}, line {line}: is longer than {MAX_RECORD_BYTES >> 20} MiB"
            raise TraceError(message, hint="A log has one request a line")
        if end:
            yield number, whole
            number += whole.count(b"\n") + 1
    if rest:
        yield number, rest


def decoded(number: int, raw: bytes, tally: Tally) -> list[str]:
    """The lines of a raw block; bytes that are no UTF-8 are replaced, and counted as repaired."""
    try:
        block = raw.decode().split("\n")
    except UnicodeDecodeError:
        parts = raw.split(b"\n")
        block = [part.decode(errors="replace") for part in parts]
        damaged = [number + i for i, part in enumerate(parts) if part != block[i].encode()]
        tally.repair("bytes that are not UTF-8 were replaced", damaged)
    if number == 1:
        block[0] = block[0].removeprefix(_BOM)
    return block


def lines(log: LogFile, tally: Tally) -> Iterator[str]:
    """All lines, decoded, without their ends."""
    return chain.from_iterable(decoded(number, raw, tally) for number, raw in raw_blocks(log))


def first_character(log: LogFile) -> str:
    """The first one that is no white space, of the first 4096 bytes; empty if there is none."""
    head = log.stream().read(4096).decode(errors="replace")
    return head.removeprefix(_BOM).lstrip()[:1]
