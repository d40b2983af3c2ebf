"""Whole numbers out of whatever a log holds: text, integers, floats without a fraction; nothing is rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.trace import BoolArray, IntArray

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_DIGITS = r"^\d{1,18}(\.0*)?$"
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_BLANK = frozenset(("", "null", "none", "nan", "na", "n/a", "-"))


@dataclass(frozen=True)
class Numbers:
    """``values`` (n,), 0 unless ``valid``; ``given`` is false for what is null, ``valid`` for what is no whole
    number. A number beyond 64 bits is given, and valid, as the nearest that fits."""

    values: IntArray
    given: BoolArray
    valid: BoolArray


def whole_number(value: object) -> int | None:
    """``value`` as an integer, cut to 64 bits; ``None`` if it is none (a truth value is none, ``2.5`` is none)."""
    if isinstance(value, bool) or is_blank(value):
        return None
    if isinstance(value, int | float | Decimal):
        if not _LEAST <= value <= _MOST:  # infinity too, and Decimals with more digits than anybody can write out
            return _MOST if value > 0 else _LEAST
        return min(int(value), _MOST) if value == int(value) else None
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        digits = value.strip().partition(".")[0]
        return whole_number(int(digits) if len(digits) < 30 else float(digits))
    return None


def is_blank(value: object) -> bool:
    """Whether ``value`` stands for "not told": null, NaN, or a text such as ``""`` or ``null``."""
    return (
        value is None
        or (isinstance(value, float | Decimal) and math.isnan(value))
        or (isinstance(value, str) and value.strip().lower() in _BLANK)
    )


def whole_numbers(values: pa.Array | Sequence[object]) -> Numbers:
    """All of ``values``; columns of integers or of digits are read at once, others one by one."""
    if isinstance(values, pa.Array):
        if pa.types.is_signed_integer(values.type) or (
            pa.types.is_unsigned_integer(values.type) and values.type.bit_width < 64
        ):
            given = np.asarray(values.is_valid())
            return Numbers(np.asarray(values.cast(pa.int64()).fill_null(0)), given, given)
        if pa.types.is_string(values.type):
            return _of_texts(values)
        values = values.to_pylist()
    return _one_by_one(values)


def _of_texts(texts: pa.Array) -> Numbers:
    plain = np.asarray(pc.fill_null(pc.match_substring_regex(texts, _DIGITS), False))
    rows = np.flatnonzero(plain)
    out = np.zeros(len(texts), dtype=np.int64)
    digits = pc.replace_substring_regex(texts.take(pa.array(rows)), r"\..*$", "")
    out[rows] = np.asarray(digits.cast(pa.int64()))
    given, valid = plain.copy(), plain.copy()
    for i in np.flatnonzero(~plain).tolist():
        text = texts[i].as_py()
        given[i] = not is_blank(text)
        number = whole_number(text) if given[i] else None
        if number is not None:
            out[i], valid[i] = number, True
    return Numbers(out, given, valid)


def _one_by_one(values: Sequence[object]) -> Numbers:
    size = len(values)
    given = np.fromiter((not is_blank(v) for v in values), dtype=bool, count=size)
    read = [whole_number(v) if g else None for v, g in zip(values, given.tolist(), strict=True)]
    valid = np.fromiter((r is not None for r in read), dtype=bool, count=size)
    return Numbers(np.fromiter((r or 0 for r in read), dtype=np.int64, count=size), given, valid)
