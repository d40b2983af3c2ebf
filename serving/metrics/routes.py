"""``GET /metrics``: what Prometheus reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endcast.serving.api.endpoints import refuse
from endcast.serving.api.problems import ServiceError
from endcast.serving.context import Access, Context

TYPES: tuple[type, ...] = ()
_SUMMARY = "Metrics in Prometheus' text format."
PATHS: dict[str, Any] = {
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": _SUMMARY,
            "responses": {"200": {"description": _SUMMARY, "content": {"text/plain": {"schema": {"type": "string"}}}}},
        }
    }
}


def routes(context: Context) -> list[Route]:
    """The route."""
    metrics = context.metrics
    metrics.read_outcomes(lambda: None if context.outcomes is None else context.outcomes.figures())
    access = Access.OPEN if context.settings.public_metrics else Access.CALL
    if metrics.shared is not None:
        context.lives.append(partial(metrics.shared.life, _texts(context)))

    async def exposition(request: Request) -> Response:
        try:
            for guard in context.guards:
                guard(request, access)
        except ServiceError as error:
            return refuse(error, metrics)
        text = next(_texts(context))
        if metrics.shared is not None:
            text = await asyncio.to_thread(metrics.shared.merged, text)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return [Route("/metrics", exposition, methods=["GET"])]


def _texts(context: Context) -> Iterator[bytes]:
    """This process's metrics as they are each time that one is taken."""
    while True:
        loaded = context.bundles.current
        yield context.metrics.exposition(loaded.id, loaded.state_version)
