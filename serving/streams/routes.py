"""``/v1/streams``: for callers that stream text. Open, append, forecast, close; each pays for what is new."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.routing import Route

from endcast.errors import InputError
from endcast.serving.api.endpoints import Answer, answer, given, json_of, json_route, read_body, refusals
from endcast.serving.api.problems import invalid_field
from endcast.serving.api.schema import ForecastReply
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import ascending, decode_body, landmark_of
from endcast.serving.forecasts.reply import forecast_replies
from endcast.serving.outcomes.disk import LogRefused
from endcast.serving.outcomes.routes import unavailable
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.serving.outcomes.waiting import Told
from endcast.serving.streams.book import OpenStream, StreamBook
from endcast.serving.streams.schema import (
    APPEND_DECODER,
    CLOSE_DECODER,
    FORECAST_DECODER,
    OPEN_DECODER,
    AppendCall,
    Asked,
    CloseCall,
    ClosedReply,
    StreamCall,
    StreamReply,
)
from endcast.types import EndReason

TYPES: tuple[type, ...] = (StreamCall, AppendCall, Asked, CloseCall, StreamReply, ClosedReply)
CONDITIONS: dict[str, Any] = {
    "CloseCall": {
        "anyOf": [
            given(output_tokens="integer"),
            {"properties": {"end": {"type": "null"}, "finished": {"type": "null"}}},
        ]
    }
}
_REFUSALS = {
    "400": "The body is no JSON.",
    "404": "There is no such stream, or no longer.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is compressed, or says that it is no JSON.",
    "422": "A field is not what it has to be; `field` names it.",
    "429": "Too many streams are open, or they hold too much.",
    "500": "The service failed.",
    "503": "The outcome log refused it; the stream is closed.",
}
_ID = {"name": "stream_id", "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(name: str, summary: str, body: type | None, reply: type, leave_out: str) -> dict[str, Any]:
    answers = {status: why for status, why in _REFUSALS.items() if status not in leave_out.split()}
    out: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": json_of(reply)}, **refusals(answers)},
    }
    if body is not None:
        out["requestBody"] = {"required": True, "content": json_of(body)}
    if name != "open_stream":
        out["parameters"] = [_ID]
    return out


_ONE = "/v1/streams/{stream_id}"
PATHS: dict[str, Any] = {
    "/v1/streams": {"post": _operation("open_stream", "Open a stream.", StreamCall, StreamReply, "404 503")},
    f"{_ONE}/append": {
        "post": _operation("append", "Add what is new of the text.", AppendCall, StreamReply, "429 503"),
    },
    f"{_ONE}/forecast": {
        "post": _operation("forecast_stream", "Forecast from what is known now.", Asked, StreamReply, "429 503"),
    },
    f"{_ONE}/close": {
        "post": _operation("close_stream", "Close it, and say how it ended.", CloseCall, ClosedReply, "429"),
    },
    _ONE: {
        "delete": _operation(
            "drop_stream", "Close it, and say nothing.", None, ClosedReply, "400 408 413 415 422 429 503"
        ),
    },
}


def routes(context: Context) -> list[Route]:
    """The routes, and the streams that they speak of."""
    book, settings = StreamBook(context), context.settings
    context.lives.append(book.life)

    async def body_of(request: Request) -> bytes:
        return await read_body(request, settings.max_body_bytes, settings.body_timeout_s)

    async def standing(one: OpenStream, asked: Asked | None) -> Answer:
        made: ForecastReply | UnsetType = UNSET
        if asked is not None:
            _, forecast = await book.forecast(one.id)
            horizons = settings.default_horizons if asked.horizons is None else asked.horizons
            quantiles = settings.default_quantiles if asked.quantiles is None else asked.quantiles
            (made,) = forecast_replies(
                [forecast],
                [one.stream.request.request_id or None],
                horizons=ascending(horizons),
                quantiles=ascending(quantiles),
                curve=bool(asked.curve),
            )
        return answer(
            StreamReply(
                stream_id=one.id,
                bundle=one.loaded.id,
                generated_tokens=one.stream.generated_tokens,
                refresh_every=getattr(one.loaded.forecaster, "refresh_every", None),
                forecast=made,
            )
        )

    async def opened(request: Request) -> Answer:
        body = await body_of(request)
        told = decode_body(body, OPEN_DECODER)
        landmark = landmark_of(told.request, "request")
        try:
            one = await book.open(landmark, len(body))
        except InputError as error:
            raise invalid_field(f"request.{error.field}", "has a value that the bundle cannot forecast with") from error
        return await standing(one, told.forecast)

    async def append(request: Request) -> Answer:
        told = decode_body(await body_of(request), APPEND_DECODER)
        one = await book.append(_id(request), told.text, told.generated_tokens)
        return await standing(one, told.forecast)

    async def forecast(request: Request) -> Answer:
        told = decode_body(await body_of(request), FORECAST_DECODER)
        return await standing(book.find(_id(request)), told)

    async def close(request: Request) -> Answer:
        told = decode_body(await body_of(request), CLOSE_DECODER)
        if told.output_tokens is None and (told.end is not None or told.finished is not None):
            raise invalid_field("output_tokens", "must be given where end or finished is")
        one = book.close(_id(request))
        return answer(ClosedReply(stream_id=one.id, outcome=await _outcome(context, one, told)))

    async def drop(request: Request) -> Answer:
        return answer(ClosedReply(stream_id=book.close(_id(request)).id, outcome=None))

    return [
        json_route(context, "POST", "/v1/streams", opened),
        json_route(context, "POST", f"{_ONE}/append", append),
        json_route(context, "POST", f"{_ONE}/forecast", forecast),
        json_route(context, "POST", f"{_ONE}/close", close),
        json_route(context, "DELETE", _ONE, drop),
    ]


def _id(request: Request) -> str:
    name: str = request.path_params["stream_id"]
    return name


async def _outcome(context: Context, one: OpenStream, told: CloseCall) -> Any:
    """What became of the outcome of a stream; it is known by the latest forecast."""
    if told.output_tokens is None or context.outcomes is None:
        return None
    if one.forecast_id is None:
        return "unknown"
    outcome = OutcomeTold(
        forecast_id=one.forecast_id,
        output_tokens=told.output_tokens,
        end=told.end or EndReason.STOP,
        finished=told.finished,
    )
    try:
        (status,) = await context.outcomes.take([Told(outcome, None)])
    except LogRefused as error:
        raise unavailable(error) from error
    return status
