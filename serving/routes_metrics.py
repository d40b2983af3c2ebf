"""``GET /metrics``: what Prometheus reads."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from endcast.serving.context import Access, Context
from endcast.serving.endpoints import refuse
from endcast.serving.problems import ServiceError

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

    context.metrics.read_outcomes(lambda: None if context.outcomes is None else context.outcomes.figures())
    access = Access.OPEN if context.settings.public_metrics else Access.CALL

    async def exposition(request: Request) -> Response:
        try:
            for guard in context.guards:
                guard(request, access)
        except ServiceError as error:
            return refuse(error, context.metrics)
        loaded = context.bundles.current
        return Response(context.metrics.exposition(loaded.id, loaded.state_version), media_type=CONTENT_TYPE_LATEST)

    return [Route("/metrics", exposition, methods=["GET"])]
