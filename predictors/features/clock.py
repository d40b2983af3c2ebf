"""When the request came: hour of the day and day of the week, as points on circles.

A log must span several days before this can be told from a trend; ``training`` leaves the group out of shorter logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.types import Request

DAY_S, WEEK_S = 86_400.0, 604_800.0


class Clock(Stateless):
    """Columns: sine and cosine of the day and of the week."""

    name = "clock"
    columns = ("day_sin", "day_cos", "week_sin", "week_cos")
    interval_columns = ()
    inputs = ("arrival_s",)

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 4)."""
        out = np.full((len(requests), 4), np.nan, dtype=np.float32)
        for row, request in zip(out, requests, strict=True):
            if request.arrival_s is not None:
                day = 2.0 * math.pi * (request.arrival_s % DAY_S) / DAY_S
                week = 2.0 * math.pi * (request.arrival_s % WEEK_S) / WEEK_S
                row[:] = (math.sin(day), math.cos(day), math.sin(week), math.cos(week))
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers as they are."""
        return Columns(raw, no_intervals(len(raw), self.grid))
