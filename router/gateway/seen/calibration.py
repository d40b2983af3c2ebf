"""Forecasts at admission beside what happened, over the latest requests that ended."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from endcast.types import EndReason

_KEPT = 2000
_BINS = 5
#: Fewer requests than this in a bin say nothing.
_LEAST = 5
_TOLD = frozenset((EndReason.STOP, EndReason.LENGTH))


class CalibrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose forecasts were alike: mean expected and mean true output tokens."""

    requests: int
    expected: float
    happened: float


class Calibration:
    """One pool's; only ends by the engine count, others say where a length was cut, not what it is."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, int]] = deque(maxlen=_KEPT)

    def ended(self, expected: float | None, tokens: int, end: EndReason) -> None:
        """A request ended after ``tokens``; ``expected`` at admission, if that is known."""
        if expected is not None and end in _TOLD and tokens > 0:
            self._latest.append((expected, tokens))

    def rows(self) -> list[CalibrationRow]:
        """Equally large groups, by rising forecast; none until there are enough requests."""
        if len(self._latest) < _LEAST:
            return []
        told = np.array(sorted(self._latest))
        bins = max(1, min(_BINS, len(told) // _LEAST))
        return [
            CalibrationRow(requests=len(part), expected=float(part[:, 0].mean()), happened=float(part[:, 1].mean()))
            for part in np.array_split(told, bins)
        ]
