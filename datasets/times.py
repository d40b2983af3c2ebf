"""Time stamps to int64 nanoseconds, exactly: ISO 8601 in any mixture, and numbers in a known or guessed unit.

A time without an offset is taken as UTC, others are converted. Digits beyond the ninth of a second are cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.numbers import is_blank
from endcast.datasets.trace import BoolArray, IntArray

#: A clock at or above this (1973) counts from the Unix epoch, one below from the log's start: no log spans 3 years.
EPOCH_FROM_NS = 100_000_000 * 1_000_000_000
_MOST_NS = (1 << 63) - 1
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,30}))?)?\s*(?:(Z|UTC)|([+-])(\d\d):?(\d\d)?)?"
)
_PLAIN_ISO = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?$"
_OFFSET = r"(Z|[+-]\d\d(:?\d\d)?)$"
_NUMBER = r"^\d{1,18}(\.\d*)?$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unit(IntEnum):
    """What one of a number is, as the power of ten of nanoseconds. ``GUESS`` goes by magnitude, number by number:
    below 1e11 seconds, below 1e14 milliseconds, below 1e17 microseconds, else nanoseconds."""

    NS = 0
    US = 3
    MS = 6
    S = 9
    GUESS = -1


def instant(value: object, unit: Unit = Unit.GUESS) -> int | None:
    """``value`` (text, number or datetime) in nanoseconds; ``None`` if it is no time that 64 bits hold."""
    if isinstance(value, str):
        text = value.strip()
        found = _ISO.fullmatch(text)
        return _from_iso(found) if found else _from_number(text, unit)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | datetime):
        return None
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1) * 1000
    return _from_number(str(value), unit)  # a float's shortest digits, not its binary expansion


def _from_iso(found: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, fraction, _, sign, off_h, off_m = found.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
    except ValueError:
        return None
    offset = timedelta(hours=int(off_h or 0), minutes=int(off_m or 0))
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - (-1 if sign == "-" else 1) * offset // timedelta(seconds=1)
    nanoseconds = seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0")[:9])
    return nanoseconds if abs(nanoseconds) <= _MOST_NS else None


def _from_number(text: str, unit: Unit) -> int | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 19:  # before any arithmetic: 1e999999999 is a Decimal too
        return None
    power = _guess(number.copy_abs()) if unit is Unit.GUESS else unit
    nanoseconds = int(number.scaleb(power))
    return nanoseconds if abs(nanoseconds) <= _MOST_NS else None


def _guess(number: Decimal) -> Unit:
    if number < 10**11:
        return Unit.S
    if number < 10**14:
        return Unit.MS
    return Unit.US if number < 10**17 else Unit.NS


def instants(values: pa.Array | Sequence[object], unit: Unit = Unit.GUESS) -> tuple[IntArray, BoolArray, BoolArray]:
    """Nanoseconds (n,), which of ``values`` are given (not null, not blank), and which of those could be read."""
    if isinstance(values, pa.Array) and pa.types.is_timestamp(values.type):
        given = np.asarray(values.is_valid())
        factor = 10 ** Unit[values.type.unit.upper()]
        moments = np.asarray(values.cast(pa.int64()).fill_null(0))
        fits = (moments <= _MOST_NS // factor) & (moments >= -(_MOST_NS // factor))
        return np.where(fits, moments, 0) * factor, given, given & fits
    if isinstance(values, pa.Array) and pa.types.is_string(values.type):
        return _text_instants(values, unit)
    return _each_instant(values.to_pylist() if isinstance(values, pa.Array) else values, unit)


def _each_instant(values: Sequence[object], unit: Unit) -> tuple[IntArray, BoolArray, BoolArray]:
    given = np.fromiter((not is_blank(v) for v in values), dtype=bool, count=len(values))
    read = [instant(v, unit) if g else None for v, g in zip(values, given, strict=True)]
    valid = np.fromiter((r is not None for r in read), dtype=bool, count=len(read))
    return np.fromiter((r or 0 for r in read), dtype=np.int64, count=len(read)), given, valid


def _text_instants(texts: pa.Array, unit: Unit) -> tuple[IntArray, BoolArray, BoolArray]:
    """The usual shapes as whole columns, whatever is left one by one."""
    texts = pc.utf8_trim_whitespace(texts)
    given = np.asarray(pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False))
    out = np.zeros(len(texts), dtype=np.int64)
    valid = np.zeros(len(texts), dtype=bool)
    iso = np.asarray(pc.fill_null(pc.match_substring_regex(texts, _PLAIN_ISO), False))
    with_offset = np.asarray(pc.fill_null(pc.match_substring_regex(texts, _OFFSET), False)) & iso
    for rows, zone in ((iso & ~with_offset, None), (with_offset, "UTC")):
        _fill_iso(texts, np.flatnonzero(rows), zone, out, valid)
    if unit is not Unit.GUESS:
        _fill_numbers(texts, unit, out, valid)
    for i in np.flatnonzero(given & ~valid).tolist():
        one = instant(texts[i].as_py(), unit)
        if one is not None:
            out[i], valid[i] = one, True
    return out, given, valid


def _fill_iso(texts: pa.Array, rows: IntArray, zone: str | None, out: IntArray, valid: BoolArray) -> None:
    if len(rows):
        try:
            moments = pc.cast(texts.take(pa.array(rows)), pa.timestamp("ns", zone))
        except pa.ArrowInvalid:
            return  # a date that no calendar has, somewhere among them: all are read one by one
        out[rows], valid[rows] = np.asarray(moments.cast(pa.int64())), True


def _fill_numbers(texts: pa.Array, unit: Unit, out: IntArray, valid: BoolArray) -> None:
    rows = np.flatnonzero(np.asarray(pc.fill_null(pc.match_substring_regex(texts, _NUMBER), False)))
    if not len(rows):
        return
    found = texts.take(pa.array(rows))
    whole = np.asarray(pc.replace_substring_regex(found, r"\..*$", "").cast(pa.int64()))
    fractions = pc.replace_substring_regex(found, r"^\d*\.?", "")
    digits = pc.utf8_slice_codeunits(pc.utf8_rpad(fractions, unit, "0"), 0, int(unit))
    fraction = np.asarray(digits.cast(pa.int64())) if unit else np.zeros(len(rows), dtype=np.int64)
    fits = whole < _MOST_NS // 10**unit
    rows = rows[fits]
    out[rows], valid[rows] = whole[fits] * 10**unit + fraction[fits], True


def has_offset(texts: pa.Array) -> BoolArray:
    """(n,), whether the text tells its offset from UTC."""
    told = pc.match_substring_regex(pc.utf8_trim_whitespace(texts), r":\d\d(\.\d+)?\s*(Z|UTC|[+-]\d\d(:?\d\d)?)$")
    return np.asarray(pc.fill_null(told, False))


def format_ns(moment: int) -> str:
    """ISO 8601 in UTC, with nanoseconds where there are any."""
    seconds, rest = divmod(moment, 1_000_000_000)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{f'{rest:09d}'.rstrip('0')}Z" if rest else f"{text}Z"
