"""A run of parts of one kind (paragraphs, list items, sections): how many, how long, where the last one stands."""

from __future__ import annotations

from math import log1p, nan

#: No relative length is larger.
MOST_RELATIVE = 20.0


class Parts:
    """Parts that follow one another; the last one is still being written. Lengths are in characters."""

    __slots__ = ("begun", "closed", "current", "previous")

    def __init__(self) -> None:
        self.begun = 0
        self.closed = 0  #: characters in all parts but the last
        self.current = 0
        self.previous = 0

    def copy(self) -> Parts:
        other = Parts.__new__(Parts)
        other.begun, other.closed, other.current, other.previous = self.begun, self.closed, self.current, self.previous
        return other

    def begin(self) -> None:
        """The part before is complete; what is added from now on belongs to the next."""
        if self.begun:
            self.closed += self.current
            self.previous = self.current
        self.begun += 1
        self.current = 0

    @property
    def mean(self) -> float:
        """Mean length of the complete parts; NaN before there is one."""
        return self.closed / (self.begun - 1) if self.begun > 1 else nan

    @property
    def log_mean(self) -> float:
        return log1p(self.closed / (self.begun - 1)) if self.begun > 1 else nan

    @property
    def relative(self) -> float:
        """Length of the part being written over the mean of those complete; NaN before there is one."""
        if self.begun < 2:
            return nan
        return min(self.current * (self.begun - 1) / max(self.closed, 1), MOST_RELATIVE)
