"""Where the elements of a long call's ``requests`` lie in its body, found without decoding it.

A body of megabytes that is decoded in one go keeps everybody else waiting (the decoder holds Python's lock). So it is cut
first, by a compiled scan that holds no lock and checks no more than brackets and quotes; each part is then decoded,
and checked, on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.survival import IntArray

Bytes = npt.NDArray[np.uint8]

_QUOTE, _ESCAPE, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_BRACE, _BRACE_END, _BRACKET, _BRACKET_END = ord("{"), ord("}"), ord("["), ord("]")
_KEY = np.frombuffer(b"requests", dtype=np.uint8)


@dataclass(frozen=True)
class Cut:
    """The body without the elements of ``requests``, and where each lies: ``starts`` and ``stops`` (n,)."""

    shell: bytes
    starts: list[int]
    stops: list[int]


@njit(cache=True, nogil=True)
def _value_end(body: Bytes, at: int) -> int:
    """Where the value from ``at`` on ends: at the comma or closing bracket after it, or the body's end."""
    depth, size = 0, body.shape[0]
    while at < size:
        c = body[at]
        if c == _QUOTE:
            at += 1
            while at < size and body[at] != _QUOTE:
                at += 2 if body[at] == _ESCAPE else 1
        elif c in (_BRACE, _BRACKET):
            depth += 1
        elif c in (_BRACE_END, _BRACKET_END):
            if depth == 0:
                return at
            depth -= 1
        elif c == _COMMA and depth == 0:
            return at
        at += 1
    return size  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def _past_space(body: Bytes, at: int) -> int:
    while at < body.shape[0] and body[at] in (9, 10, 13, 32):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _find(body: Bytes, starts: IntArray, stops: IntArray) -> tuple[int, int, int]:
    """Fill in where elements lie, as many as there is room for; how many there are (at most one more than that), and
    where the list's inside begins and ends. -1 if the body is not an object with one such list."""
    size, count, inside, end = body.shape[0], -1, 0, 0
    at = _past_space(body, 0)
    if at >= size or body[at] != _BRACE:
        return -1, 0, 0
    at = _past_space(body, at + 1)
    while at < size and body[at] == _QUOTE:
        key = at + 1
        at = key
        while at < size and body[at] != _QUOTE:
            if body[at] == _ESCAPE:
                return -1, 0, 0  # a key of this API has none
            at += 1
        named = at - key == _KEY.shape[0] and bool(np.all(body[key:at] == _KEY))
        at = _past_space(body, at + 1)
        if at >= size or body[at] != _COLON:
            return -1, 0, 0
        at = _past_space(body, at + 1)
        if named:
            if count >= 0 or at >= size or body[at] != _BRACKET:
                return -1, 0, 0
            inside, count = at + 1, 0
            at = _past_space(body, inside)
            while at < size and not (count == 0 and body[at] == _BRACKET_END):
                stop = _value_end(body, at)
                if count == starts.shape[0]:
                    return count + 1, 0, 0
                starts[count], stops[count] = at, stop
                count += 1
                at = stop
                if stop >= size or body[stop] != _COMMA:
                    break
                at = stop + 1
            if at >= size or body[at] != _BRACKET_END:
                return -1, 0, 0
            end = at
            at += 1
        else:
            at = _value_end(body, at)
        at = _past_space(body, at)
        if at >= size or body[at] != _COMMA:
            break
        at = _past_space(body, at + 1)
    return count, inside, end


def cut(body: bytes, most: int) -> Cut | int | None:
    """How a body is cut; the number ``most`` + 1 if there are more elements than ``most``; ``None`` if it is no object
    with one list of ``requests``."""
    starts, stops = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    count, inside, end = _find(np.frombuffer(body, dtype=np.uint8), starts, stops)
    if count < 0:
        return None
    if count > most:
        return int(count)
    return Cut(body[:inside] + body[end:], starts[:count].tolist(), stops[:count].tolist())
