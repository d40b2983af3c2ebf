"""Long lists in protocol buffers, compiled: trees are hundreds of thousands of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_PRIME = np.uint64(1099511628211)
_OFFSET = np.uint64(14695981039346656037)


@njit(cache=True)
def fingerprint(data: Bytes, start: int, stop: int) -> int:
    """64 bits of a text (Fowler, Noll, Vo 1991, FNV-1a)."""
    hashed = _OFFSET
    for i in range(start, stop):
        hashed = (hashed ^ np.uint64(data[i])) * _PRIME
    return np.int64(hashed)  # type: ignore[return-value]


@njit(cache=True)
def _varint(data: Bytes, at: int) -> tuple[int, int]:
    """The whole number at ``at``, and where the next one begins; beyond the end: 0."""
    value, shift = np.int64(0), 0
    while at < data.shape[0]:
        byte = np.int64(data[at])
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at  # type: ignore[return-value]


@njit(cache=True)
def repeated(data: Bytes, field: int) -> Numbers:
    """The values of one repeated field of a message, each in a field of its own: whole numbers as they are, of 32 bits as
    their bits, of texts the ``fingerprint``."""
    out, count, at, size = np.empty(data.shape[0] // 2 + 1, dtype=np.int64), 0, 0, data.shape[0]
    while at < size:
        tag, at = _varint(data, at)
        kind, value = tag & 7, np.int64(0)
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 5:
            for i in range(min(4, size - at)):
                value |= np.int64(data[at + i]) << (8 * i)
            at += 4
        elif kind == 1:
            at += 8
        else:
            length, at = _varint(data, at)
            length = min(length, size - at)
            value = fingerprint(data, at, at + length)
            at += length
        if tag >> 3 == field:
            out[count] = value
            count += 1
    return out[:count]
