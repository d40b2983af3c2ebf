"""``/v1/streams``: for callers that stream text. Open, append, forecast, close; each pays for what is new."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.routing import Route

from endcast.errors import InputError
from endcast.serving.api.endpoints import Answer, Endpoint, given, json_of, json_route, read_body, refusals
from endcast.serving.api.problems import invalid_field
from endcast.serving.api.schema import ForecastReply
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import ascending, decode_body, landmark_of
from endcast.serving.forecasts.reply import forecasts_json
from endcast.serving.outcomes.disk import LogRefused
from endcast.serving.outcomes.routes import unavailable
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.serving.outcomes.waiting import Told
from endcast.serving.streams.book import OpenStream, StreamBook
from endcast.serving.streams.names import StreamNames, owner_of
from endcast.serving.streams.peers import Handed, Peers
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
    "404": "There is no such stream.",
    "408": "The body did not arrive in time.",
    "410": "The stream is no longer open: it was closed or dropped.",
    "413": "The body is too large.",
    "415": "The body is compressed, or says that it is no JSON.",
    "422": "A field is not what it has to be; `field` names it.",
    "429": "Too many streams are open, or they hold too much.",
    "500": "The service failed.",
    "503": "The process that holds the stream does not answer.",
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
    "/v1/streams": {"post": _operation("open_stream", "Open a stream.", StreamCall, StreamReply, "404 410 503")},
    f"{_ONE}/append": {
        "post": _operation("append", "Add what is new of the text.", AppendCall, StreamReply, "429"),
    },
    f"{_ONE}/forecast": {
        "post": _operation("forecast_stream", "Forecast from what is known now.", Asked, StreamReply, "429"),
    },
    f"{_ONE}/close": {
        "post": _operation("close_stream", "Close it, and say how it ended.", CloseCall, ClosedReply, "429"),
    },
    _ONE: {
        "delete": _operation("drop_stream", "Close it, and say nothing.", None, ClosedReply, "400 408 413 415 422 429"),
    },
}


def routes(context: Context) -> list[Route]:
    """The routes, and the streams that they speak of."""
    settings = context.settings
    peers = None if context.stream_folder is None else Peers(context.stream_folder)
    calls = StreamCalls(context, StreamBook(context, StreamNames(None if peers is None else peers.own)))
    context.lives.append(calls.book.life)
    if peers is not None:
        context.lives.append(partial(peers.life, calls.do))

    async def body_of(request: Request) -> bytes:
        return await read_body(request, settings.max_body_bytes, settings.body_timeout_s)

    async def opened(request: Request) -> Answer:
        return Answer(await calls.open(await body_of(request)))

    def about(what: str) -> Endpoint:
        async def endpoint(request: Request) -> Answer:
            handed = Handed(what, request.path_params["stream_id"], b"" if what == "drop" else await body_of(request))
            owner = owner_of(handed.name)
            if peers is None or owner is None or owner == peers.own:
                return Answer(await calls.do(handed))
            return Answer(await peers.ask(owner, handed))

        return endpoint

    return [
        json_route(context, "POST", "/v1/streams", opened),
        *(json_route(context, "POST", f"{_ONE}/{what}", about(what)) for what in ("append", "forecast", "close")),
        json_route(context, "DELETE", _ONE, about("drop")),
    ]


class StreamCalls:
    """Calls about the streams of this process, whoever took them: the body in, the JSON of the answer out."""

    def __init__(self, context: Context, book: StreamBook) -> None:
        self._context, self.book = context, book
        self._of = {"append": self._append, "forecast": self._forecast, "close": self._close, "drop": self._drop}

    async def do(self, call: Handed) -> bytes:
        """The answer to a call about an open stream."""
        return msgspec.json.encode(await self._of[call.what](call.name, call.body))

    async def open(self, body: bytes) -> bytes:
        """The answer to ``POST /v1/streams``."""
        told = decode_body(body, OPEN_DECODER)
        landmark = landmark_of(told.request, "request")
        try:
            one = await self.book.open(landmark, len(body))
        except InputError as error:
            raise invalid_field(f"request.{error.field}", "has a value that the bundle cannot forecast with") from error
        return msgspec.json.encode(await self._standing(one, told.forecast))

    async def _append(self, name: str, body: bytes) -> StreamReply:
        told = decode_body(body, APPEND_DECODER)
        one = await self.book.append(name, told.text, told.generated_tokens)
        return await self._standing(one, told.forecast)

    async def _forecast(self, name: str, body: bytes) -> StreamReply:
        told = decode_body(body, FORECAST_DECODER)
        return await self._standing(self.book.find(name), told)

    async def _close(self, name: str, body: bytes) -> ClosedReply:
        told = decode_body(body, CLOSE_DECODER)
        if told.output_tokens is None and (told.end is not None or told.finished is not None):
            raise invalid_field("output_tokens", "must be given where end or finished is")
        one = self.book.close(name)
        return ClosedReply(stream_id=one.id, outcome=await _outcome(self._context, one, told))

    async def _drop(self, name: str, _body: bytes) -> ClosedReply:
        return ClosedReply(stream_id=self.book.close(name).id, outcome=None)

    async def _standing(self, one: OpenStream, asked: Asked | None) -> StreamReply:
        made: ForecastReply | msgspec.Raw | UnsetType = UNSET
        settings = self._context.settings
        if asked is not None:
            _, forecast = await self.book.forecast(one.id)
            horizons = settings.default_horizons if asked.horizons is None else asked.horizons
            quantiles = settings.default_quantiles if asked.quantiles is None else asked.quantiles
            made = msgspec.Raw(
                forecasts_json(
                    [forecast],
                    [one.stream.request.request_id or None],
                    horizons=ascending(horizons),
                    quantiles=ascending(quantiles),
                    curve=bool(asked.curve),
                )
            )
        return StreamReply(
            stream_id=one.id,
            bundle=one.loaded.id,
            generated_tokens=one.stream.generated_tokens,
            refresh_every=getattr(one.loaded.forecaster, "refresh_every", None),
            forecast=cast(ForecastReply, made),
        )


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
