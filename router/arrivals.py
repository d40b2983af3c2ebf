"""Arrival times for logs that tell none: drawn at random, or taken from another log."""

from __future__ import annotations

import numpy as np

from endcast.errors import SimulationError
from endcast.survival import FloatArray


def poisson_arrivals(count: int, rng: np.random.Generator) -> FloatArray:
    """(count,), seconds: a Poisson process of one request a second, from its first arrival at 0 on.

    The simulator stretches arrivals to the utilization asked for, so the rate does not matter.
    """
    gaps = rng.exponential(1.0, count)
    gaps[:1] = 0.0
    times: FloatArray = np.cumsum(gaps)
    return times


def borrowed_arrivals(count: int, other_s: FloatArray) -> FloatArray:
    """(count,), seconds: the pattern of another log's arrivals, in order, from 0 on.

    A longer log lends its beginning; a shorter one is repeated, one mean gap after its end.
    """
    if len(other_s) < 2:
        raise SimulationError("a log with fewer than two requests has no pattern of arrivals to lend")
    pattern = np.sort(other_s) - float(np.min(other_s))
    period = float(pattern[-1]) * len(pattern) / (len(pattern) - 1)
    times: FloatArray = pattern[np.arange(count) % len(pattern)] + period * (np.arange(count) // len(pattern))
    return times
