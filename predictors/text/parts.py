"""A run of parts of one kind (paragraphs, list items, sections): how many, how long, where the last one stands."""

from __future__ import annotations

from math import log1p, nan
from typing import NamedTuple

#: No relative length is larger.
MOST_RELATIVE = 20.0


class Parts(NamedTuple):
    """Parts that follow one another, the last one still being written. Places and lengths are in characters.

    A part lasts until the next one begins, whatever stands between them.
    """

    begun: int = 0
    first: int = 0  #: where the first one begins
    last: int = 0  #: where the last one begins
    previous: int = 0  #: length of the one before the last

    def begin(self, at: int) -> Parts:
        """These parts and one more that begins ``at``."""
        if not self.begun:
            return Parts(1, at, at)
        return Parts(self.begun + 1, self.first, at, at - self.last)

    def log_mean(self) -> float:
        """Log of one plus the mean length of the complete parts; NaN before there is one."""
        begun, first, last, _ = self
        return log1p((last - first) / (begun - 1)) if begun > 1 else nan

    def log_length(self, at: int) -> float:
        """Log of one plus the length of the last part, written up to ``at``; NaN before there is one."""
        return log1p(at - self.last) if self.begun else nan

    def relative(self, at: int) -> float:
        """Length of the last part over the mean of those complete; NaN before there is one."""
        begun, first, last, _ = self
        if begun < 2:
            return nan
        return min((at - last) * (begun - 1) / max(last - first, 1), MOST_RELATIVE)


NO_PARTS = Parts()
