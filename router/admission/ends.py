"""How many tokens are generated for each request that ends: 1 over the pooled hazard, counted as it happens.

Tokens of what still runs count as well as those of what has ended, or the first ends of a fleet, which are the short
ones, would make outputs look short. Old counts fade, so that the figure follows what is asked of the fleet.
"""

from __future__ import annotations

#: An observed end counts e^-1 after so many further ends.
_MEMORY = 2000.0
#: Counted as one end before anything was seen.
_PRIOR_TOKENS = 500.0


class EndRate:
    """Counts of one fleet."""

    def __init__(self) -> None:
        self._tokens, self._ends = 0.0, 0.0

    def saw(self, tokens: int, ends: int) -> None:
        """In a step so many tokens were generated and so many requests ended."""
        kept = (1.0 - 1.0 / _MEMORY) ** ends
        self._tokens, self._ends = kept * self._tokens + tokens, kept * self._ends + ends

    @property
    def tokens_per_end(self) -> float:
        """Tokens, > 0."""
        return (self._tokens + _PRIOR_TOKENS) / (self._ends + 1.0)
