"""Where a policy's forecasts come from. The router knows this protocol and never a model.

A source is asked for each request when it arrives; afterwards the curve is conditioned on the tokens generated. A source
that reads the output so far is asked again while the request runs, each ``refresh_every`` tokens. Requests are named by
their rows in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from endcast.datasets.trace import Trace
from endcast.errors import InputError
from endcast.forecaster import Forecaster
from endcast.router.policy import BoolArray
from endcast.survival import HAZARD_MAX, HAZARD_MIN, NO_CAP, CurveTable, IntArray, SurvivalBatch
from endcast.types import EndReason, Landmark, Request


@runtime_checkable
class ForecastSource(Protocol):
    """Gives survival curves of requests."""

    @property
    def name(self) -> str | None:
        """As results name it; ``None`` if it forecasts nothing."""

    @property
    def shared(self) -> CurveTable | None:
        """The one table that all its batches point into; ``None`` if every batch brings its own, on one grid."""

    @property
    def refresh_every(self) -> int | None:
        """Tokens, ≥ 1: a running request's curve is made anew when it has generated a multiple of so many; ``None``: never."""

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """Forecasts for the log's requests ``row`` (k,), in order of arrival, which have generated tokens (k,)."""


#: A curve that never ends: what caps cut, or what stands for knowing nothing.
_ENDLESS = CurveTable(np.array([0, 1]), np.zeros((1, 2)), np.array([np.log1p(-HAZARD_MIN)]))


@dataclass(frozen=True)
class NoForecast:
    """Knows nothing: as far as the window goes, nothing ends."""

    name: None = None
    shared: CurveTable = _ENDLESS
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """The endless curve for each."""
        return SurvivalBatch(self.shared, np.zeros_like(row), generated, np.full_like(row, NO_CAP), 0)

    def at_admission(self, row: IntArray) -> SurvivalBatch:
        """The endless curve for each, which has generated nothing."""
        return self.curves(row, np.zeros_like(row))


@dataclass(frozen=True, eq=False)
class Oracle:
    """Knows true lengths: ``output`` (rows of the log,) tokens. A request ends exactly there."""

    output: IntArray
    name: str = "oracle"
    shared: CurveTable = _ENDLESS
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """The endless curve, cut where each will end."""
        return SurvivalBatch(self.shared, np.zeros_like(row), generated, self.output[row] - generated, 0)


@dataclass(frozen=True, eq=False)
class OneCurve:
    """The same curve for every request, cut at each one's own cap where one is known (``cap`` (rows of the log,))."""

    name: str
    shared: CurveTable
    cap: IntArray | None = None
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """The curve for each."""
        cap = np.full_like(row, NO_CAP) if self.cap is None else self.cap[row] - generated
        return SurvivalBatch(self.shared, np.zeros_like(row), generated, np.maximum(cap, 0), 0)


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Forecasts made at admission for every request of the log, in the log's order."""

    name: str
    batch: SurvivalBatch
    shared: None = None
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """Those of these requests, conditioned on what they have generated."""
        return self.batch.take(row).advance(generated)


@dataclass(frozen=True, eq=False)
class Landmarked:
    """Forecasts that read the output as it is written: each request's were made at 0, ``every``, 2·``every``, … tokens.

    ``batch`` holds them, each standing at its landmark: those of the log's request r in the rows ``first[r]`` …
    ``first[r] + count[r] − 1`` (both (rows of the log,)). After the last of them a request keeps that one's curve.
    """

    name: str
    batch: SurvivalBatch
    first: IntArray
    count: IntArray
    every: int
    shared: None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError("every", f"must be a whole number of tokens from 1 on, not {self.every}")
        beyond = self.first + self.count > len(self.batch)
        if self.first.shape != self.count.shape or np.any(self.first < 0) or np.any(beyond):
            raise InputError("first", f"and count must name rows of the {len(self.batch)} forecasts")

    @property
    def refresh_every(self) -> int:
        """Each landmark is news."""
        return self.every

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """The latest landmark's of each request, conditioned on the tokens since."""
        latest = np.minimum(generated // self.every, self.count[row] - 1)
        if len(row) and int(latest.min()) < 0:
            raise InputError("row", f"request {row[np.argmin(latest)]} of the log has no forecast")
        return self.batch.take(self.first[row] + latest).advance(generated - latest * self.every)


@dataclass(frozen=True, eq=False)
class AtAdmission:
    """Forecasts made by ``make``, called with the rows of those that have just arrived, in order of arrival."""

    name: str
    make: Callable[[IntArray], SurvivalBatch]
    shared: None = None
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """Made now, and conditioned on what was generated."""
        return self.make(row).advance(generated)


@dataclass(frozen=True, eq=False)
class FromForecaster:
    """Whatever keeps the Forecaster protocol, such as a bundle; ``requests`` are the log's, by row.

    Its state is left as it is: nothing that finishes in the simulation is observed.
    """

    name: str
    forecaster: Forecaster
    requests: Sequence[Request]
    shared: None = None
    refresh_every: None = None

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """One call of the forecaster for all of them."""
        landmarks = [
            Landmark(request=self.requests[r], generated_tokens=e)
            for r, e in zip(row.tolist(), generated.tolist(), strict=True)
        ]
        return self.forecaster.forecast_batch(landmarks, 0)


def kaplan_meier_curve(lengths: IntArray, ended: BoolArray) -> CurveTable:
    """The product-limit estimate (Kaplan, Meier 1958) of output length as a table of one curve.

    ``lengths`` (n,) tokens; those not ``ended`` (n,) are censored after their last token. Those without output are
    left out. The hazard lies on the token at which requests ended: edges at t − 1 and t of each such t.
    """
    counted = lengths > 0
    lengths, ended = lengths[counted], ended[counted]
    times, ends = np.unique(lengths[ended], return_counts=True)
    if len(times) == 0:
        raise InputError("lengths", "no request ended by itself, so their lengths cannot be estimated")
    at_risk = len(lengths) - np.searchsorted(np.sort(lengths), times, side="left")
    edges = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), times - 1, times]))
    hazard = np.zeros(len(edges) - 1)
    hazard[np.searchsorted(edges, times) - 1] = np.minimum(ends / at_risk, HAZARD_MAX)
    log_survival = np.concatenate([np.zeros(1), np.cumsum(np.log1p(-hazard))])
    return CurveTable.from_log_survival(edges, log_survival[None, :])


def kaplan_meier(lengths: IntArray, ended: BoolArray, cap: IntArray | None = None) -> OneCurve:
    """Forecasts from the log's own lengths; a slot frees on any end, so aborts count as ends, caps do not."""
    return OneCurve("kaplan_meier", kaplan_meier_curve(lengths, ended), cap)


def kaplan_meier_of_log(trace: Trace) -> OneCurve:
    """Kaplan-Meier over a whole log: cut by a cap or by the log's end is censored, every other end frees a slot."""
    censored = np.isin(trace.end, [EndReason.LENGTH.value, EndReason.UNFINISHED.value])
    return kaplan_meier(trace.output_tokens, ~censored, np.where(trace.cap < 0, NO_CAP, trace.cap))
