"""JSON as engines read it: Python's reader takes NaN, infinities, numbers beyond any range, a byte order mark and halves of
surrogate pairs, a strict one none of them. What only the lenient one reads is put into strict JSON here, to be read only:
what is passed on are always the bytes that came."""

from __future__ import annotations

import json
import math

import msgspec

#: What reading bytes as JSON can fail with (``json``'s and Unicode's errors are ``ValueError``).
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


def legible(data: bytes) -> bytes:
    """``data`` as strict JSON: no number that is not finite (null), no half of a surrogate pair (?); ``UNREADABLE`` if it
    is none to a lenient reader either."""
    value = json.loads(data, parse_constant=lambda _: None, parse_float=_finite)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
