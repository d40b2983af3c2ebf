"""The declared types of ``/v1/streams``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from endcast.serving.api.schema import MAX_COLUMNS, ForecastReply, ForecastRequest, Horizon, Quantile, Seconds, Tokens
from endcast.types import EndReason


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which figures a forecast is answered with, as in `POST /v1/forecasts`."""

    horizons: Annotated[list[Horizon], Meta(max_length=MAX_COLUMNS)] | None = None
    quantiles: Annotated[list[Quantile], Meta(max_length=MAX_COLUMNS)] | None = None
    curve: bool | None = None


class StreamCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/streams`."""

    request: Annotated[ForecastRequest, Meta(description="As in `POST /v1/forecasts`; the text so far may come along.")]
    forecast: Annotated[Asked, Meta(description="Answer with a forecast as well.")] | None = None


class AppendCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/streams/{stream_id}/append`."""

    text: Annotated[str, Meta(description="What is new of the output; may be empty.")]
    generated_tokens: Annotated[Tokens, Meta(description="Tokens generated so far, all of them; it never falls.")]
    forecast: Annotated[Asked, Meta(description="Answer with a forecast as well.")] | None = None


class CloseCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/streams/{stream_id}/close`: how the generation ended, as an outcome; all null if unknown."""

    output_tokens: Annotated[Tokens, Meta(description="Tokens generated in all.")] | None = None
    end: EndReason | None = None
    finished: Annotated[Seconds, Meta(description="When, Unix time in seconds; now if left out.")] | None = None


class StreamReply(Struct, frozen=True, kw_only=True):
    """Where a stream stands."""

    stream_id: str
    bundle: Annotated[str, Meta(description="Id of the bundle that it was opened with, and keeps.")]
    generated_tokens: int
    refresh_every: Annotated[int | None, Meta(description="Tokens after which a new forecast pays; null: never.")]
    forecast: ForecastReply | UnsetType = UNSET


class ClosedReply(Struct, frozen=True, kw_only=True):
    """Answer of a call that closes a stream."""

    stream_id: str
    outcome: Annotated[
        Literal["accepted", "pending", "duplicate", "late", "unknown"] | None,
        Meta(description="What became of the outcome, as in `POST /v1/outcomes`; null if none was told."),
    ]


OPEN_DECODER = msgspec.json.Decoder(StreamCall)
APPEND_DECODER = msgspec.json.Decoder(AppendCall)
FORECAST_DECODER = msgspec.json.Decoder(Asked)
CLOSE_DECODER = msgspec.json.Decoder(CloseCall)
