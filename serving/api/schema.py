"""The declared types of the HTTP API: what is decoded, what is encoded, and the source of the OpenAPI document.

Bounds stand here once; msgspec checks them while it decodes, and says which field breaks one.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from endcast.types import MAX_SECONDS, MAX_TOKENS

#: Most windows, and most quantiles, that one call may ask for.
MAX_COLUMNS = 64
INT64 = 2**63

Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Cap = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Horizon = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Quantile = Annotated[float, Meta(gt=0.0, lt=1.0)]
Block = Annotated[int, Meta(ge=-INT64, le=INT64 - 1)]
Seconds = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
NonNegative = Annotated[float, Meta(ge=0.0)]


class KnownParameters(Struct, frozen=True, kw_only=True):
    """The sampling parameters whose type is checked; any other may be sent and is handed to the model as it is."""

    max_tokens: Cap | None = None
    max_completion_tokens: Cap | None = None
    min_tokens: Tokens | None = None
    n: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    temperature: NonNegative | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: NonNegative | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None


Parameters = Annotated[
    dict[str, Any],
    Meta(
        description="OpenAI-style sampling parameters; those of `KnownParameters` are checked. `max_tokens` is a cap."
    ),
]


class ForecastRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation, running or waiting: `prompt_tokens`, `prompt` or `messages` at least; null means unknown."""

    request_id: Annotated[str, Meta(description="Comes back in the reply.", max_length=512)] | None = None
    arrival: Annotated[Seconds, Meta(description="When it arrived, Unix time in seconds.")] | None = None
    model: Annotated[str, Meta(max_length=512)] | None = None
    tenant: Annotated[str, Meta(description="Whose request it is: user, key or app.", max_length=512)] | None = None
    session: Annotated[str, Meta(description="The conversation it belongs to.", max_length=512)] | None = None
    prompt_tokens: Annotated[Tokens, Meta(description="Tokens of the prompt, as the engine counts them.")] | None = None
    prompt: Annotated[str, Meta(description="The prompt's text.")] | None = None
    messages: Annotated[list[dict[str, Any]], Meta(description="The prompt as OpenAI chat messages.")] | None = None
    context_limit: Annotated[Cap, Meta(description="Most tokens of prompt and output together.")] | None = None
    parameters: Parameters | None = None
    prefix_blocks: (
        Annotated[
            list[Block], Meta(description="Ids of the leading prefix-cache blocks, in order, as 64-bit integers.")
        ]
        | None
    ) = None
    attributes: Annotated[dict[str, Any], Meta(description="Anything else that the model was trained with.")] | None = (
        None
    )
    generated_tokens: Annotated[Tokens, Meta(description="Tokens generated so far; 0 if left out.")] | None = None
    output: Annotated[str, Meta(description="The whole text generated so far.")] | None = None


class ForecastsCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/forecasts`."""

    requests: Annotated[list[ForecastRequest], Meta(description="The generations to forecast, in any order.")]
    horizons: (
        Annotated[
            list[Horizon],
            Meta(description="Windows in tokens; the service's default if left out.", max_length=MAX_COLUMNS),
        ]
        | None
    ) = None
    quantiles: (
        Annotated[list[Quantile], Meta(description="Quantiles of the remaining tokens.", max_length=MAX_COLUMNS)] | None
    ) = None
    curve: Annotated[bool, Meta(description="Whether to answer with whole survival curves.")] | None = None


class Curve(Struct, frozen=True, kw_only=True, gc=False):
    """`survival[i]` = P(more than `further_tokens[i]` tokens are still to come), rounded to 7 decimals."""

    further_tokens: list[int]
    survival: list[float]


class ForecastReply(Struct, frozen=True, kw_only=True, gc=False):
    """When one generation will end. R is the tokens that it has still to generate; all its caps are respected."""

    forecast_id: Annotated[str, Meta(description="Joins this forecast with what happens.")]
    request_id: str | None
    p_end: Annotated[dict[str, float], Meta(description="P(R ≤ horizon), by horizon; in [0, 1].")]
    expected_within: Annotated[dict[str, float], Meta(description="E[min(R, horizon)] in tokens, by horizon.")]
    expected_remaining: Annotated[float, Meta(description="E[R] in tokens.")]
    expected_output_tokens: Annotated[float, Meta(description="Tokens so far plus E[R].")]
    quantiles: Annotated[dict[str, float], Meta(description="Least r with P(R ≤ r) ≥ q, in tokens, by q.")]
    known: Annotated[dict[str, bool], Meta(description="Which inputs the model had, and knew, for this forecast.")]
    curve: Curve | UnsetType = UNSET


class ForecastsReply(Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/forecasts`."""

    bundle: Annotated[str, Meta(description="Id of the bundle that made all of these forecasts.")]
    state_version: Annotated[int, Meta(description="Version of the history that they saw.")]
    forecasts: Annotated[list[ForecastReply], Meta(description="One a request, in the order of the requests.")]


class BundleReply(Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/bundle`."""

    bundle: str
    state_version: int
    endcast: Annotated[str, Meta(description="Version of endcast that serves it.")]
    manifest: Annotated[dict[str, Any], Meta(description="What the bundle says of itself; empty if it has none.")]
    refused: Annotated[str | None, Meta(description="Why the last attempt to load another one failed, if it did.")]


class ReloadReply(Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/bundle/reload`."""

    bundle: Annotated[str, Meta(description="Id of the bundle that is served now.")]
    before: Annotated[str, Meta(description="Id of the one that was served before.")]
    changed: bool


class HealthReply(Struct, frozen=True, kw_only=True):
    """Answer of `GET /healthz`: the process runs its event loop."""

    status: str


class ReadyReply(Struct, frozen=True, kw_only=True):
    """Answer of `GET /readyz`: forecasts are served, and by which bundle."""

    status: str
    bundle: str
    state_version: int


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was wrong with a call."""

    code: Annotated[str, Meta(description="For machines: one of those listed in the service's documentation.")]
    message: Annotated[str, Meta(description="One sentence.")]
    field: Annotated[str, Meta(description="Path of the field, such as `requests[3].prompt_tokens`.")] | None = None
    hint: Annotated[str, Meta(description="What to do about it.")] | None = None


class ErrorReply(Struct, frozen=True, kw_only=True):
    """Answer of every call that failed."""

    error: ErrorDetail


CALL_DECODER = msgspec.json.Decoder(ForecastsCall)
REQUEST_DECODER = msgspec.json.Decoder(ForecastRequest)
