"""The declared types of `/v1/outcomes` and of the live figures: decoded, encoded, and the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from endcast.serving.api.schema import ForecastRequest, Seconds, Tokens
from endcast.types import EndReason

#: What became of an outcome.
Status = Literal["accepted", "pending", "duplicate", "late", "unknown"]
#: Which bundle forecasts better.
Verdict = Literal["shadow is better", "served is better", "no difference shown"]


class OutcomeTold(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one generation turned out: `forecast_id` or `request_id` at least."""

    forecast_id: Annotated[str, Meta(description="Of any forecast of that generation.", max_length=512)] | None = None
    request_id: Annotated[str, Meta(description="As it was in the forecast's request.", max_length=512)] | None = None
    output_tokens: Annotated[Tokens, Meta(description="Tokens generated in all, as the engine's usage counts them.")]
    end: Annotated[EndReason, Meta(description="Why it ended; left out: by itself.")] = EndReason.STOP
    finished: Annotated[Seconds, Meta(description="When, Unix time in seconds; now if left out.")] | None = None
    request: (
        Annotated[
            ForecastRequest,
            Meta(
                description="The request itself, for generations that were never forecast; else what was served counts."
            ),
        ]
        | None
    ) = None
    output: Annotated[str, Meta(description="The whole text; kept only if the operator keeps texts.")] | None = None


class OutcomesCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/outcomes`."""

    outcomes: Annotated[list[OutcomeTold], Meta(description="In any order; taken in by `finished`.")]


class OutcomesReply(Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/outcomes`. `accepted` and `pending` ones are on disk if `durable`."""

    statuses: Annotated[list[Status], Meta(description="One an outcome, in the order of the call.")]
    accepted: Annotated[int, Meta(description="Joined with what was forecast, or told with their request.")]
    pending: Annotated[int, Meta(description="Kept for another process of the service that may have forecast it.")]
    duplicate: Annotated[int, Meta(description="Told before; counted once.")]
    late: Annotated[int, Meta(description="Forecast too long ago: forgotten, not kept.")]
    unknown: Annotated[int, Meta(description="Never forecast by this service: not kept.")]
    durable: Annotated[bool, Meta(description="Whether there is an outcome log that keeps them over a crash.")]


class ShadowCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/bundle/shadow`."""

    path: Annotated[
        str, Meta(description="Folder of the bundle, on the service's machine.", min_length=1, max_length=4096)
    ]


class IntervalReply(Struct, frozen=True, kw_only=True):
    """A mean and where it lies at 95 %, however often one looks; `low` and `high` are null before 50 generations, `mean`
    where there is nothing to compare."""

    mean: float | None
    low: float | None
    high: float | None


class ComparisonReply(Struct, frozen=True, kw_only=True):
    """Mean scores at one horizon, null where there is nothing to compare; differences are shadow − served, so that below 0
    the shadow bundle is better."""

    served_brier: float | None
    shadow_brier: float | None
    brier: Annotated[IntervalReply, Meta(description="Difference of Brier scores.")]
    served_log: float | None
    shadow_log: float | None
    log: Annotated[IntervalReply, Meta(description="Difference of log scores, in nats.")]


class ShadowReply(Struct, frozen=True, kw_only=True):
    """Answer of all calls of `/v1/bundle/shadow`: what both bundles forecast of the same landmarks, against what happened.
    Where the call changed something, this is the evidence as it was before."""

    served: Annotated[str, Meta(description="Id of the bundle that is served now.")]
    shadow: Annotated[str | None, Meta(description="Id of the shadow bundle now; null if there is none.")]
    compared: Annotated[
        list[str], Meta(description="Served and shadow bundle of the evidence; empty if there is none.")
    ]
    generations: Annotated[int, Meta(description="Outcomes that both had forecast.")]
    forecasts: Annotated[int, Meta(description="Forecasts that both made of these.")]
    skipped: Annotated[int, Meta(description="Forecasts that the shadow bundle was too busy for.")]
    horizons: Annotated[dict[str, ComparisonReply], Meta(description="By horizon in tokens.")]
    overall: Annotated[IntervalReply | None, Meta(description="Difference of Brier scores over all horizons.")]
    verdict: Annotated[Verdict, Meta(description="By `overall`, at 95 %.")]
