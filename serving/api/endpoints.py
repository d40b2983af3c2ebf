"""What every endpoint shares: reading a body within its limits, JSON answers, errors as ``ErrorReply``, counting."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from endcast.serving.api.problems import (
    DEADLINE_HEADER,
    ServiceError,
    body_too_large,
    encoded_body,
    invalid_field,
    other_content,
    slow_body,
)
from endcast.serving.api.schema import ErrorReply
from endcast.serving.context import Access, Context
from endcast.serving.metrics.instruments import Metrics

JSON = "application/json"
#: What bodies may say that they are; curl calls everything a form unless it is told otherwise.
_JSON_KINDS = ("", "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded")
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
#: Seconds that a body may take to arrive.
LONGEST_BODY_S = 20.0


@dataclass(frozen=True)
class Answer:
    """The JSON of an answer, whole or in pieces, and its status."""

    body: bytes | tuple[bytes, ...]
    status: int = 200


class PiecesResponse(Response):
    """An answer that is sent piece by piece as its client reads, never copied into one. Its length is told all the same."""

    def __init__(self, pieces: Sequence[bytes], status: int) -> None:
        headers = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(None, status, headers=headers, media_type=JSON)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


Endpoint = Callable[[Request], Awaitable[Answer]]


class RouteModule(Protocol):
    """A module that offers some paths: one line in ``route_list`` adds it.

    It may have ``CONDITIONS``: more of the JSON schema of a declared type, by name.
    """

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
            made = await endpoint(request)
            if isinstance(made.body, bytes):
                return Response(made.body, made.status, media_type=JSON)
            return PiecesResponse(made.body, made.status)
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


async def read_body(request: Request, limit: int, seconds: float = LONGEST_BODY_S) -> bytes:
    """The body; ``ServiceError`` 413 as soon as it is known to be larger than ``limit`` bytes, 415 if it is compressed or
    says that it is no JSON, 408 if it has not arrived after ``seconds``."""
    _check_content(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise body_too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise slow_body(seconds) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_content(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise encoded_body()
    told = request.headers.get("content-type")
    if told is None:
        return
    kind, *parameters = (part.strip().lower() for part in told.split(";"))
    charsets = [value.partition("=")[2].strip('"') for value in parameters if value.startswith("charset=")]
    if not (kind in _JSON_KINDS or kind.endswith("+json")) or any(name not in _CHARSETS for name in charsets):
        raise other_content()


def deadline_of(request: Request) -> float:
    """When the caller stops waiting, as a time of ``time.monotonic``; infinite if it says nothing."""
    told = request.headers.get(DEADLINE_HEADER)
    if told is None:
        return math.inf
    if not (told.isascii() and told.isdecimal() and len(told) <= 8 and int(told) > 0):
        raise invalid_field(DEADLINE_HEADER, "must be a whole number of milliseconds from 1 to 99999999")
    return time.monotonic() + int(told) / 1_000


def json_of(schema: type) -> dict[str, Any]:
    """``content`` of a body or response in the OpenAPI document, for a declared type."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}


def given(**kinds: str) -> dict[str, Any]:
    """A JSON schema that holds where these fields are given, each of its JSON type: for what fields demand of each other."""
    return {"required": sorted(kinds), "properties": {name: {"type": kind} for name, kind in kinds.items()}}


def refusals(reasons: Mapping[str, str]) -> dict[str, Any]:
    """``responses`` of the OpenAPI document for errors: why, by status."""
    return {status: {"description": why, "content": json_of(ErrorReply)} for status, why in reasons.items()}
