"""What every endpoint shares: reading a body within its limits, JSON answers, errors as ``ErrorReply``, counting."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from endcast.serving.context import Access, Context
from endcast.serving.metrics import Metrics
from endcast.serving.problems import ServiceError, body_too_large, encoded_body
from endcast.serving.schema import ErrorReply

JSON = "application/json"


@dataclass(frozen=True)
class Answer:
    """The JSON of an answer, and its status."""

    body: bytes
    status: int = 200


Endpoint = Callable[[Request], Awaitable[Answer]]


class RouteModule(Protocol):
    """A module that offers some paths: one line in ``route_list`` adds it."""

    @property
    def TYPES(self) -> tuple[type, ...]:
        """Declared types that its part of the OpenAPI document refers to."""

    @property
    def PATHS(self) -> Mapping[str, Any]:
        """Its path items of the OpenAPI document."""

    @property
    def routes(self) -> Callable[[Context], Sequence[Route]]:
        """Makes its routes for one service."""


def answer(reply: msgspec.Struct) -> Answer:
    """A declared reply as an answer."""
    return Answer(msgspec.json.encode(reply))


def json_route(context: Context, method: str, path: str, endpoint: Endpoint, *, access: Access = Access.CALL) -> Route:
    """A route that asks the guards, answers with JSON, turns ``ServiceError`` into an ``ErrorReply``, and counts both."""
    metrics = context.metrics

    async def timed(request: Request) -> Response:
        started = time.perf_counter()
        status = 500  # of what is no ServiceError: the logging middleware answers it
        try:
            response = await answered(request)
            status = response.status_code
            return response
        finally:
            metrics.seconds.labels(path, status).observe(time.perf_counter() - started)

    async def answered(request: Request) -> Response:
        try:
            for guard in context.guards:
                guard(request, access)
            given = await endpoint(request)
            return Response(given.body, given.status, media_type=JSON)
        except ServiceError as error:
            return refuse(error, metrics)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    return Route(path, timed, methods=[method])


def refuse(error: ServiceError, metrics: Metrics, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, counted."""
    metrics.errors.labels(error.code).inc()
    told = {**error.headers, **(headers or {})}
    return Response(error.body(), status_code=error.status, media_type=JSON, headers=told)


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


def json_of(schema: type) -> dict[str, Any]:
    """``content`` of a body or response in the OpenAPI document, for a declared type."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}


def refusals(reasons: Mapping[str, str]) -> dict[str, Any]:
    """``responses`` of the OpenAPI document for errors: why, by status."""
    return {status: {"description": why, "content": json_of(ErrorReply)} for status, why in reasons.items()}
