"""The JSON of a reply's forecasts, compiled: numbers are turned into text where they are, and nothing is made twice.

Chances are written to 12 decimals, tokens to 8, curves to 7; zeros at the end are left out but for the first decimal. Rounded
to the nearest, numbers that do not fall still do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.survival import FloatArray, IntArray

Bytes = npt.NDArray[np.uint8]

#: Curves are written to this many decimals, so a number of one takes at most two characters and a comma more.
DECIMALS = 7
MOST_IN_CURVE = DECIMALS + 3
#: Most characters of another number; and the most tokens that such a number is written of.
MOST_CHARACTERS, MOST_TOKENS = 24, 9e10
_ONE = 10**DECIMALS
_COMMA, _POINT, _ZERO = ord(","), ord("."), ord("0")
#: The four digits of each number below 10,000.
_FOUR = np.array([list(f"{number:04}".encode()) for number in range(10_000)], dtype=np.uint8)
_DIGIT = _FOUR[:10, 3].copy()
_GROUP, _TWO_GROUPS, _THREE_GROUPS, _TEN = np.uint64(10**4), np.uint64(10**8), np.uint64(10**12), np.uint64(10)


@njit(cache=True, nogil=True)
def _copied(text: Bytes, at: int, source: Bytes, start: int, stop: int) -> int:
    """Write ``source[start:stop]``; where the text ends then."""
    for i in range(stop - start):
        text[at + i] = source[start + i]
    return at + stop - start


@njit(cache=True, nogil=True)
def _four(text: Bytes, at: int, number: np.uint64) -> int:
    """Write the four digits of a number below 10,000."""
    digits = _FOUR[number]
    for i in range(4):
        text[at + i] = digits[i]
    return at + 4


@njit(cache=True, nogil=True)
def _without_zeros(text: Bytes, end: int) -> int:
    """The end of a number without the zeros after its first decimal."""
    while text[end - 1] == _ZERO and text[end - 2] != _POINT:
        end -= 1
    return end


@njit(cache=True, nogil=True)
def _write_chance(text: Bytes, at: int, value: float) -> int:
    """Write a number in [0, 1] with 12 decimals."""
    scaled = np.uint64(value * 1e12 + 0.5)
    text[at], text[at + 1] = _ZERO + (1 if scaled >= _THREE_GROUPS else 0), _POINT
    rest = scaled % _THREE_GROUPS
    at = _four(text, at + 2, rest // _TWO_GROUPS)
    at = _four(text, at, (rest // _GROUP) % _GROUP)
    end: int = _without_zeros(text, _four(text, at, rest % _GROUP))
    return end


@njit(cache=True, nogil=True)
def _write_tokens(text: Bytes, at: int, value: float) -> int:
    """Write a number in [0, ``MOST_TOKENS``] with 8 decimals."""
    scaled = np.uint64(value * 1e8 + 0.5)
    whole, rest = scaled // _TWO_GROUPS, scaled % _TWO_GROUPS
    digits, above = 1, _TEN
    while whole >= above:
        digits, above = digits + 1, above * _TEN
    for i in range(digits - 1, -1, -1):
        text[at + i] = _DIGIT[whole % _TEN]
        whole //= _TEN
    text[at + digits] = _POINT
    at = _four(text, at + digits + 1, rest // _GROUP)
    end: int = _without_zeros(text, _four(text, at, rest % _GROUP))
    return end


@njit(cache=True, nogil=True)
def _write_curve(text: Bytes, at: int, curve: FloatArray) -> int:
    """Write numbers (C,), kept in [0, 1] and from rising, with commas between."""
    least = np.uint32(_ONE)
    for j in range(curve.shape[0]):
        least = min(least, np.uint32(min(max(curve[j], 0.0), 1.0) * _ONE + 0.5))
        if j > 0:
            text[at] = _COMMA
            at += 1
        text[at + 1] = _POINT
        if least == _ONE or least == 0:
            text[at] = _ZERO + (1 if least == _ONE else 0)
            text[at + 2] = _ZERO
            at += 3
            continue
        text[at] = _ZERO
        high, low = _FOUR[least // np.uint32(10_000)], _FOUR[least % np.uint32(10_000)]
        for d in range(3):
            text[at + 2 + d] = high[d + 1]
        for d in range(4):
            text[at + 5 + d] = low[d]
        at += MOST_IN_CURVE - 1
        while text[at - 1] == _ZERO:
            at -= 1
    return at


@njit(cache=True, nogil=True)
def write_forecasts(
    text: Bytes, ends: IntArray, numbers: FloatArray, windows: int, curve: FloatArray, given: Bytes, given_ends: IntArray,
    between: Bytes, between_ends: IntArray, known: Bytes, known_ends: IntArray, which: IntArray, head: Bytes, end: Bytes,
) -> None:  # fmt: skip
    """Write n forecasts into ``text`` with commas between; ``ends`` (n,) where each ends.

    Of a forecast: its piece of ``given`` (ends (n,)); each of its ``numbers`` (n, N), of which the first ``windows`` are
    chances and the others tokens, with a piece of ``between`` (ends (N + 1,)) before it, and the last piece after all; the
    ``which``-th (n,) piece of ``known``; and where ``curve`` (n, C) has points ``head``, these and ``end``; a brace.
    """
    at, count = 0, numbers.shape[1]
    for i in range(numbers.shape[0]):
        if i > 0:
            text[at] = _COMMA
            at += 1
        at = _copied(text, at, given, given_ends[i - 1] if i > 0 else 0, given_ends[i])
        for j in range(count + 1):
            at = _copied(text, at, between, between_ends[j - 1] if j > 0 else 0, between_ends[j])
            if j < windows:
                at = _write_chance(text, at, numbers[i, j])
            elif j < count:
                at = _write_tokens(text, at, numbers[i, j])
        of = which[i]
        at = _copied(text, at, known, known_ends[of - 1] if of > 0 else 0, known_ends[of])
        if curve.shape[1] > 0:
            at = _copied(text, at, head, 0, head.shape[0])
            at = _write_curve(text, at, curve[i])
            at = _copied(text, at, end, 0, end.shape[0])
        text[at] = ord("}")
        at += 1
        ends[i] = at
