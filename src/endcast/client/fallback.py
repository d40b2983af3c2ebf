"""What a ``RemoteForecaster`` answers with while the service does not: Kaplan-Meier of what it has seen end.

Until enough has ended, the published prior stands in. Either way ``known["degraded"]`` is true, so that nobody takes it
for the bundle's forecast.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import endcast
from endcast.forecaster import Forecaster
from endcast.survival import Forecast
from endcast.types import Completion, EndReason, Landmark

#: Completions that are remembered, and how many make a curve of their own, or a new one.
REMEMBERED, ENOUGH = 10_000, 100
#: Longer outputs count as censored here: a curve has a number for each token.
LONGEST = 262_144


class Fallback:
    """Forecasts without the service. ``given`` is used where there is one, else a curve of completions, else the prior."""

    def __init__(self, given: Forecaster | None = None) -> None:
        self._given = given
        self._ends: deque[tuple[int, bool]] = deque(maxlen=REMEMBERED)
        self._new = 0
        self._fitted: Forecaster = endcast.cold_start()

    def observe(self, completions: Sequence[Completion]) -> None:
        """Remember how these ended; empty outputs say nothing of lengths."""
        for each in completions:
            if each.output_tokens > 0:
                whole = each.end is EndReason.STOP and each.output_tokens <= LONGEST
                self._ends.append((min(each.output_tokens, LONGEST), whole))
                self._new += 1

    @property
    def forecaster(self) -> Forecaster:
        """The forecaster to use now."""
        if self._given is not None:
            return self._given
        if self._new >= ENOUGH and any(ended for _, ended in self._ends):
            lengths, ended = zip(*self._ends, strict=True)
            self._fitted = endcast.kaplan_meier(lengths, ended)
            self._new = 0
        return self._fitted

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, marked as degraded."""
        made = self.forecaster.forecast(landmarks)
        return [dataclasses.replace(each, known={**each.known, "degraded": True}) for each in made]
