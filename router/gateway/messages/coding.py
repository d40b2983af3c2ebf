"""Bodies that engines compress although they were asked not to: read in the clear, so that they can be accounted for."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress

#: What ``zlib`` undoes; anything else is passed on unread.
_KNOWN = frozenset(("gzip", "x-gzip", "deflate"))
_EITHER = 32 + zlib.MAX_WBITS  # a gzip or a zlib header
_MOST = 1 << 20  # bytes undone at once

Read = Callable[[], Awaitable[bytes]]


def coding_of(told: str | None) -> str:
    """The content coding that a header tells, in lower case; empty for none."""
    coding = (told or "").strip().lower()
    return "" if coding == "identity" else coding


def is_known(coding: str) -> bool:
    """Whether a body in this coding can be read."""
    return not coding or coding in _KNOWN


def decoded(data: bytes, coding: str) -> bytes:
    """A whole body in the clear; as it is where it cannot be undone."""
    if coding in _KNOWN:
        with suppress(zlib.error):
            return zlib.decompressobj(_EITHER).decompress(data, 64 * _MOST)
    return data


def decoding(read: Read, coding: str) -> Read:
    """``read``, whose data come in ``coding``, in the clear; ends with ``b""`` as it does. ``ConnectionError`` where the
    data are not what their coding says."""
    if not coding:
        return read
    undo = zlib.decompressobj(_EITHER)

    async def read_clear() -> bytes:
        while True:
            data = undo.unconsumed_tail or await read()
            if not data:
                return b""
            try:
                clear = undo.decompress(data, _MOST)
            except zlib.error as error:
                raise ConnectionError(f"the engine's answer is no {coding}: {error}") from error
            if clear:
                return clear

    return read_clear
