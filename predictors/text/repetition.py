"""How much a text repeats itself: loops, lines seen before, words that recur."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import log1p

#: Characters at the end of a text in which repetition is looked for.
WINDOW = 1024
#: Lines, or pieces of long ones, that are remembered by their hash.
LINES_KEPT = 64
#: Shorter lines recur in any text.
SHORTEST_LINE = 12
#: Characters of which an earlier copy makes a loop.
_LOOP = 32
#: Stretches of the last ``_PROBED`` characters that are looked for in what precedes them.
_PROBE, _STRIDE, _PROBED = 16, 32, 128
_PROBES = tuple(range(0, _PROBED - _PROBE + 1, _STRIDE))
_LAST_WORDS = 128

COLUMNS = (
    "loop_period",  # log of the characters after which the end repeats exactly; 0 if it does not
    "loop_copies",  # log of how many periods of it stand at the end
    "repeated_lines",  # log of the lines in a row that have occurred before
    "repeated_share",  # of stretches at the end that have occurred before
    "distinct_words",  # share among the last words
)


def loop_at_end(window: str) -> tuple[int, float]:
    """Period in characters of the exact repetition that ``window`` ends with, and its copies; (0, 0) without one."""
    size = len(window)
    if size < 2 * _LOOP:
        return 0, 0.0
    found = window.rfind(window[-_LOOP:], 0, size - 1)
    if found < 0:
        return 0, 0.0
    period = size - _LOOP - found
    low, high = _LOOP, size - period  # of the characters that equal those a period before
    while low < high:
        middle = (low + high + 1) // 2
        if window[size - middle :] == window[size - middle - period : size - period]:
            low = middle
        else:
            high = middle - 1
    return period, (low + period) / period


def repeated_share(window: str) -> float:
    """Share of short stretches of the end of ``window`` that occur in what precedes the end; 0 if nothing does."""
    size = len(window) - _PROBED
    if size < _PROBED:
        return 0.0
    found = 0
    for at in _PROBES:
        found += window.find(window[size + at : size + at + _PROBE], 0, size) >= 0
    return found / len(_PROBES)


def distinct_words(window: str) -> float:
    """Share of distinct words among the last ones; of characters where they are not set apart; 1 without any."""
    end = window[-_LAST_WORDS:]
    words = end.split()
    parts: Collection[str] = end if words and len(words) * 16 < len(end) else words
    return len(set(parts)) / len(parts) if parts else 1.0


class RepeatedLines:
    """Lines in a row that equal one of the last ``LINES_KEPT``."""

    def __init__(self) -> None:
        self.hashes: deque[int] = deque(maxlen=LINES_KEPT)
        self.in_a_row = 0

    def read(self, text: str) -> None:
        if len(text) < SHORTEST_LINE:
            return
        digest = hash(text)
        self.in_a_row = self.in_a_row + 1 if digest in self.hashes else 0
        self.hashes.append(digest)


def repetition(window: str, lines: RepeatedLines) -> tuple[float, ...]:
    """Values of ``COLUMNS`` for a text that ends with ``window``."""
    period, copies = loop_at_end(window)
    return (
        log1p(period),
        log1p(copies),
        log1p(lines.in_a_row),
        repeated_share(window),
        distinct_words(window),
    )
