"""``POST /v1/forecasts``: a batch of generations, nothing kept of the call."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.routing import Route

from endcast.serving.api.endpoints import Answer, deadline_of, given, json_of, json_route, read_body, refusals
from endcast.serving.api.problems import DEADLINE_HEADER, busy, deadline_passed
from endcast.serving.api.schema import ForecastsCall, ForecastsReply, KnownParameters
from endcast.serving.context import Context
from endcast.serving.forecasts.batching import Batcher

TYPES: tuple[type, ...] = (ForecastsCall, ForecastsReply, KnownParameters)
CONDITIONS: dict[str, Any] = {
    "ForecastRequest": {
        "anyOf": [given(prompt_tokens="integer"), given(prompt="string"), given(messages="array")],
        "not": given(prompt="string", messages="array"),
    }
}
_REFUSALS = {
    "400": "The body is no JSON.",
    "413": "The body is too large.",
    "408": "The body did not arrive in time.",
    "415": "The body is compressed, or says that it is no JSON.",
    "422": "A field is not what it has to be; `field` names it.",
    "429": "Too many calls wait; `retry-after` says when to call again.",
    "500": "The service failed.",
    "504": "The call's own deadline passed.",
}
_EXAMPLE = {
    "horizons": [16, 64],
    "quantiles": [0.5, 0.9],
    "requests": [
        {
            "request_id": "r1",
            "model": "m",
            "prompt_tokens": 374,
            "parameters": {"max_tokens": 512},
            "generated_tokens": 64,
            "output": "text so far",
        }
    ],
}


_DEADLINE = {
    "name": DEADLINE_HEADER,
    "in": "header",
    "required": False,
    "description": "Milliseconds that the caller waits for its answer at most.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 99_999_999},
}


def _operation() -> dict[str, Any]:
    body = json_of(ForecastsCall)
    body["application/json"]["example"] = _EXAMPLE
    return {
        "operationId": "forecasts",
        "summary": "Forecast when generations will end; nothing is kept of the call.",
        "parameters": [_DEADLINE],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The forecasts.", "content": json_of(ForecastsReply)},
            **refusals(_REFUSALS),
        },
    }


PATHS: dict[str, Any] = {"/v1/forecasts": {"post": _operation()}}


def routes(context: Context) -> list[Route]:
    """The route, and the thread that long calls are worked on in."""
    settings, batcher = context.settings, Batcher(context)
    context.lives.append(batcher.life)
    watch_queue(batcher, context.metrics.registry)

    async def forecasts(request: Request) -> Answer:
        deadline = deadline_of(request)
        if batcher.full:
            raise busy(batcher.retry_after_s)
        try:
            async with asyncio.timeout(None if deadline == math.inf else deadline - time.monotonic()):
                body = await read_body(request, settings.max_body_bytes, settings.body_timeout_s)
        except TimeoutError:
            raise deadline_passed() from None
        pieces = await batcher.answer(body, deadline)
        return Answer(pieces[0] if len(pieces) == 1 else pieces)

    return [json_route(context, "POST", "/v1/forecasts", forecasts)]


def watch_queue(batcher: Batcher, registry: CollectorRegistry) -> None:
    """Metrics of the calls that wait."""
    for name, about, read in (
        ("endcast_waiting_calls", "Calls that wait for forecasts or are being answered.", lambda: batcher.calls),
        ("endcast_waiting_bytes", "Bytes of their bodies.", lambda: batcher.bytes),
    ):
        Gauge(name, about, registry=registry).set_function(read)
