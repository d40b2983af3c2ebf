"""The declared types of ``GET /v1/status``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


class Rate(Struct, frozen=True, kw_only=True):
    """Calls of one stretch of some seconds that ended at `at` (Unix time)."""

    at: float
    calls_per_s: float
    forecasts_per_s: float
    errors_per_s: float
    p50_s: Annotated[float | None, Meta(description="Median seconds of a call; null if there were none.")]
    p99_s: float | None


class HorizonRow(Struct, frozen=True, kw_only=True):
    """Live calibration at one horizon, of the latest forecasts whose answer is known; null where there are none."""

    horizon: int
    forecasts: int
    forecast: Annotated[float | None, Meta(description="Mean chance to end within the horizon.")]
    happened: Annotated[float | None, Meta(description="Share that did.")]
    brier: float | None
    ece: float | None


class QuantileRow(Struct, frozen=True, kw_only=True):
    """Share of generations whose remaining tokens were within the forecast quantile, and the chance stated for that."""

    quantile: float
    forecasts: int
    coverage: float | None
    stated: float | None


class GroupRow(Struct, frozen=True, kw_only=True):
    """Live calibration of one model or tenant."""

    kind: str
    name: str
    generations: int
    horizons: list[HorizonRow]


class MeasureRow(Struct, frozen=True, kw_only=True):
    """One measure of drift: ends that happened, ends that were forecast."""

    measure: str
    happened: float
    forecast: float
    z: float | None
    alarm: bool


class DriftStatus(Struct, frozen=True, kw_only=True):
    """Whether generations end as often as was forecast."""

    alarm: Annotated[bool, Meta(description="What was served deviates by more than chance.")]
    model_alarm: Annotated[bool, Meta(description="The model without recalibration does.")]
    outcomes: int
    threshold: float
    explanation: str
    measures: list[MeasureRow]


class ShadowStatus(Struct, frozen=True, kw_only=True):
    """The shadow bundle against the served one; differences of Brier scores, below 0: the shadow is better."""

    bundle: str
    generations: int
    verdict: str
    differences: dict[str, float | None]


class StatusReply(Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/status`: what the page at `/` shows. Figures of this process, but those of outcomes."""

    status: Annotated[str, Meta(description="`ready`, or `degraded` while Kaplan-Meier answers for the model.")]
    bundle: str
    state_version: int
    endcast: str
    process: int
    processes: int
    now: Annotated[float, Meta(description="Unix time of this answer.")]
    uptime_s: float
    waiting_calls: int
    open_streams: int
    degraded_forecasts: int
    rates: Annotated[list[Rate], Meta(description="Of the last ten minutes, the latest last.")]
    outcomes: Annotated[dict[str, int], Meta(description="Told to this process, by what became of them.")]
    calibration: list[HorizonRow]
    quantiles: list[QuantileRow]
    groups: list[GroupRow]
    drift: DriftStatus | None
    shadow: ShadowStatus | None
    card: Annotated[dict[str, Any], Meta(description="What the bundle says of itself, but its files and columns.")]
