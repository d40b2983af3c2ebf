"""``POST /v1/forecasts``: a batch of generations, nothing kept of the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from endcast.serving.context import Context
from endcast.serving.endpoints import Answer, json_of, json_route, read_body, refusals
from endcast.serving.schema import ForecastsCall, ForecastsReply, KnownParameters
from endcast.serving.service import ForecastService

TYPES: tuple[type, ...] = (ForecastsCall, ForecastsReply, KnownParameters)
_REFUSALS = {
    "400": "The body is no JSON.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "422": "A field is not what it has to be; `field` names it.",
    "500": "The service failed.",
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


def _operation() -> dict[str, Any]:
    body = json_of(ForecastsCall)
    body["application/json"]["example"] = _EXAMPLE
    return {
        "operationId": "forecasts",
        "summary": "Forecast when generations will end; nothing is kept of the call.",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The forecasts.", "content": json_of(ForecastsReply)},
            **refusals(_REFUSALS),
        },
    }


PATHS: dict[str, Any] = {"/v1/forecasts": {"post": _operation()}}


def routes(context: Context) -> list[Route]:
    """The route, and the thread that large calls are worked on in."""
    service = ForecastService(context)
    settings = context.settings
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecasts")

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        yield
        worker.shutdown()

    context.lives.append(life)

    async def forecasts(request: Request) -> Answer:
        body = await read_body(request, settings.max_body_bytes)
        loaded = context.bundles.current
        async with loaded.turns.turn():
            if len(body) <= settings.inline_body_bytes:
                return service.forecasts(body, loaded)
            return await asyncio.get_running_loop().run_in_executor(worker, service.forecasts, body, loaded)

    return [json_route(context, "POST", "/v1/forecasts", forecasts)]
