"""The HTTP face of the forecast service: routes, limits on the body, and metrics; everything else is ``service``.

Forecasts are made one call after the other, since a forecaster is not thread-safe. A large call is worked on in a thread
apart from the event loop, so that ``/healthz`` answers meanwhile; for a small one that would cost more than it takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import endcast
from endcast.forecaster import Forecaster
from endcast.serving.metrics import Metrics
from endcast.serving.openapi import openapi_document
from endcast.serving.problems import ServiceError, body_too_large, encoded_body, internal
from endcast.serving.service import Answer, ForecastService
from endcast.serving.settings import Settings

JSON = "application/json"
Endpoint = Callable[[Request], Awaitable[Answer]]


def create_app(settings: Settings, forecaster: Forecaster, manifest: Mapping[str, Any] | None = None) -> FastAPI:
    """The service for one forecaster; ``manifest`` is what ``GET /v1/bundle`` tells of its bundle."""
    service = ForecastService(settings, forecaster, manifest)
    metrics = Metrics()
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecasts")
    one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown()

    async def forecasts(request: Request) -> Answer:
        body = await read_body(request, settings.max_body_bytes)
        async with one_at_a_time:
            if len(body) <= settings.inline_body_bytes:
                answer = service.forecasts(body)
            else:
                answer = await asyncio.get_running_loop().run_in_executor(worker, service.forecasts, body)
        metrics.landmarks.observe(answer.landmarks)
        return answer

    async def exposition(_request: Request) -> Response:
        text = metrics.exposition(service.forecaster.bundle, service.forecaster.state_version)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app = FastAPI(title="endcast", version=endcast.__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.openapi = openapi_document  # type: ignore[method-assign]
    app.state.service = service
    app.router.routes += [
        _route("POST", "/v1/forecasts", forecasts, metrics),
        _route("GET", "/v1/bundle", _at_once(service.bundle), metrics),
        _route("GET", "/healthz", _at_once(service.health), metrics),
        _route("GET", "/readyz", _at_once(service.ready), metrics),
        Route("/metrics", exposition, methods=["GET"]),
    ]

    async def no_such_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        return _refuse(ServiceError(error.status_code, code, str(error.detail).lower()), metrics, error.headers)

    async def failed(_request: Request, _error: Exception) -> Response:
        return _refuse(internal(), metrics)  # starlette raises the error again, so that the server logs it

    app.add_exception_handler(HTTPException, no_such_route)
    app.add_exception_handler(Exception, failed)
    return app


async def read_body(request: Request, limit: int) -> bytes:
    """The body; ``ServiceError`` 413 as soon as it is known to be larger than ``limit`` bytes, 415 if compressed."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise encoded_body()
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise body_too_large(limit)
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > limit:
            raise body_too_large(limit)
    return bytes(parts)


def _at_once(answer: Callable[[], Answer]) -> Endpoint:
    async def endpoint(_request: Request) -> Answer:
        return answer()

    return endpoint


def _route(method: str, path: str, endpoint: Endpoint, metrics: Metrics) -> Route:
    """A route that answers with JSON, turns errors into ``ErrorReply`` and counts both."""

    async def timed(request: Request) -> Response:
        started = time.perf_counter()
        try:
            response = Response((await endpoint(request)).body, media_type=JSON)
        except ServiceError as error:
            response = _refuse(error, metrics)
        except ClientDisconnect:
            response = Response(status_code=400)  # nobody reads it
        metrics.seconds.labels(path, response.status_code).observe(time.perf_counter() - started)
        return response

    return Route(path, timed, methods=[method])


def _refuse(error: ServiceError, metrics: Metrics, headers: Mapping[str, str] | None = None) -> Response:
    metrics.errors.labels(error.code).inc()
    return Response(error.body(), status_code=error.status, media_type=JSON, headers=dict(headers or {}))
