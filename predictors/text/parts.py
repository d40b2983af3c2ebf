"""A run of parts of one kind (paragraphs, list items, sections): how many, how long, where the last one stands."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p, nan

from endcast.predictors.text.state import State

#: No relative length is larger.
MOST_RELATIVE = 20.0


@dataclass(slots=True)
class Parts(State):
    """Parts that follow one another; the last one is still being written. Lengths are in characters."""

    begun: int = 0
    closed: int = 0  #: characters in all parts but the last
    current: int = 0
    previous: int = 0

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
