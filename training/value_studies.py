"""What forecasts buy beside placement: the order of admission, which worker drains first, the time left of one request.

All three take the lengths of the log as the truth. Requests in progress are drawn as a router meets them: in proportion
to their length, at a uniformly random token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from endcast.router.forecasts import ForecastSource
from endcast.router.shortest_first import ShortestFirst
from endcast.router.simulator import SimulationSettings, simulate_policy
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray, SurvivalBatch
from endcast.training.value import ORACLE, Spread

#: Forecasts read at once, so that memory stays bounded.
_CHUNK = 4096
#: Points in time at which the end of a whole worker is looked at, evenly spread over the logarithm.
_TIMES = 300


# ---- order of admission


@dataclass(frozen=True)
class OrderFigures:
    """One order of admission; ``order`` is a forecast's name, ``oracle``, or ``arrival``. Seconds, means over seeds."""

    order: str
    e2e_mean_s: Spread
    e2e_p99_s: Spread
    wait_mean_s: Spread
    longest_wait_s: Spread
    overtakings_max: Spread
    throughput: Spread  #: tokens/s


def order_of_admission(
    workload: Workload,
    forecasts: Mapping[str, ForecastSource],
    settings: SimulationSettings,
    *,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> tuple[OrderFigures, ...]:
    """Serve by expected length at admission, the shortest first, with each forecast and with true lengths.

    The first result is the order of arrival. Each request goes to the worker with the least KV. ``settings.candidates``
    and ``settings.max_overtakes`` bound how far an order may leave that of arrival.
    """
    expected = {name: _in_chunks(source, workload, _expected_length) for name, source in forecasts.items()}
    orders = {"arrival": np.arange(float(len(workload))), **expected, ORACLE: workload.output.astype(np.float64)}
    found = []
    for done, (name, keys) in enumerate(orders.items()):
        progress(done, len(orders), name)
        result = simulate_policy(workload, settings, name, partial(ShortestFirst, keys))
        found.append(
            OrderFigures(
                order=name,
                e2e_mean_s=Spread.of(result, "e2e_s", "mean"),
                e2e_p99_s=Spread.of(result, "e2e_s", "p99"),
                wait_mean_s=Spread.of(result, "wait_s", "mean"),
                longest_wait_s=Spread.of(result, "wait_s", "max"),
                overtakings_max=Spread.of(result, "overtakings_max"),
                throughput=Spread.of(result, "throughput"),
            )
        )
    progress(len(orders), len(orders), "done")
    return tuple(found)


def _expected_length(source: ForecastSource, row: IntArray) -> FloatArray:
    return source.curves(row, np.zeros_like(row)).expected_remaining


def _in_chunks(
    source: ForecastSource, workload: Workload, read: Callable[[ForecastSource, IntArray], FloatArray]
) -> FloatArray:
    rows = workload.row
    return np.concatenate([read(source, rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)])


# ---- requests in progress


@dataclass(frozen=True)
class InProgress:
    """Requests met while they run (k,): their numbers in the workload, tokens generated, tokens still to come (≥ 1)."""

    request: IntArray
    generated: IntArray
    remaining: IntArray


def in_progress(workload: Workload, count: int, rng: np.random.Generator) -> InProgress:
    """``count`` requests in proportion to their length, each at a uniformly random token."""
    ends = np.cumsum(workload.output)
    token = rng.integers(0, int(ends[-1]), count)
    request = np.searchsorted(ends, token, side="right")
    remaining: IntArray = ends[request] - token
    return InProgress(request, workload.output[request] - remaining, remaining)


# ---- which worker drains first


@dataclass(frozen=True)
class DrainFigures:
    """Tokens until the chosen worker is empty, mean and its standard error over ``trials``; ``choice`` is a forecast's
    name, ``random`` or ``oracle``."""

    choice: str
    tokens: float
    standard_error: float
    trials: int


def first_to_drain(
    workload: Workload,
    forecasts: Mapping[str, ForecastSource],
    *,
    workers: int = 8,
    slots: int = 32,
    trials: int = 400,
    seed: int = 0,
) -> tuple[DrainFigures, ...]:
    """Full workers, no new arrivals: choose the one with the least expected time until its last request ends."""
    met = in_progress(workload, trials * workers * slots, np.random.default_rng(seed))
    empty = met.remaining.reshape(trials, workers, slots).max(axis=2)
    times = _times(int(workload.output.max()))
    found = [_drain("random", empty.mean(axis=1))]
    for name, source in forecasts.items():
        chosen = np.empty(trials, dtype=np.int64)
        for i in range(trials):
            part = slice(i * workers * slots, (i + 1) * workers * slots)
            batch = source.curves(workload.row[met.request[part]], met.generated[part])
            chosen[i] = np.argmin(expected_last(batch, times, workers))
        found.append(_drain(name, empty[np.arange(trials), chosen]))
    return (*found, _drain(ORACLE, empty.min(axis=1)))


def expected_last(batch: SurvivalBatch, times: IntArray, workers: int) -> FloatArray:
    """(workers,), tokens: E[max R] over each worker's requests, which follow one another in ``batch``.

    P(max R > t) = 1 − Π P(R ≤ t), read at ``times`` (m,), rising from 0, and summed by trapezoids.
    """
    ended = (1.0 - batch.survival_at(times[:, None])).reshape(len(times), workers, -1)
    last: FloatArray = np.trapezoid(1.0 - ended.prod(axis=2), times, axis=0)
    return last


def _times(longest: int) -> IntArray:
    """(m,), tokens from 0 to twice the longest output."""
    far = np.geomspace(1.0, 2.0 * longest, _TIMES).astype(np.int64)
    times: IntArray = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), far]))
    return times


def _drain(choice: str, tokens: FloatArray | IntArray) -> DrainFigures:
    trials = len(tokens)
    error = float(np.std(tokens, ddof=1)) / trials**0.5 if trials > 1 else 0.0
    return DrainFigures(choice, float(np.mean(tokens)), error, trials)


# ---- the time left of one request


@dataclass(frozen=True)
class RemainingFigures:
    """How far the median forecast of a running request's remaining tokens lies off, tokens, over ``draws`` requests."""

    forecast: str
    median_error: float
    mean_error: float
    draws: int


def remaining_tokens(
    workload: Workload, forecasts: Mapping[str, ForecastSource], *, draws: int = 20_000, seed: int = 0
) -> tuple[RemainingFigures, ...]:
    """Absolute error of each forecast's median, over requests in progress."""
    met = in_progress(workload, draws, np.random.default_rng(seed))
    rows, found = workload.row[met.request], []
    for name, source in forecasts.items():
        parts = [slice(i, i + _CHUNK) for i in range(0, draws, _CHUNK)]
        median = np.concatenate([source.curves(rows[part], met.generated[part]).quantile(0.5) for part in parts])
        error = np.abs(median - met.remaining)
        found.append(RemainingFigures(name, float(np.median(error)), float(error.mean()), draws))
    return tuple(found)
