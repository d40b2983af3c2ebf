"""``GET /v1/bundle`` and ``GET /readyz``: what is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

import endcast
from endcast.serving.context import Access, Context
from endcast.serving.endpoints import Answer, answer, json_of, json_route
from endcast.serving.schema import BundleReply, HealthReply, ReadyReply

TYPES: tuple[type, ...] = (BundleReply, HealthReply, ReadyReply)


def _read(operation: str, summary: str, reply: type) -> dict[str, Any]:
    ok = {"description": summary, "content": json_of(reply)}
    return {"get": {"operationId": operation, "summary": summary, "responses": {"200": ok}}}


PATHS: dict[str, Any] = {
    "/v1/bundle": _read("bundle", "Which bundle is served.", BundleReply),
    "/healthz": _read("healthz", "Whether the process answers.", HealthReply),
    "/readyz": _read("readyz", "Whether forecasts are served, and by which bundle.", ReadyReply),
}


def routes(context: Context) -> list[Route]:
    """The routes."""

    async def bundle(_request: Request) -> Answer:
        loaded = context.bundles.current
        return answer(
            BundleReply(
                bundle=loaded.id,
                state_version=loaded.state_version,
                endcast=endcast.__version__,
                manifest=dict(loaded.manifest),
            )
        )

    async def health(_request: Request) -> Answer:
        return answer(HealthReply(status="ok"))

    async def ready(_request: Request) -> Answer:
        loaded = context.bundles.current
        return answer(ReadyReply(status="ready", bundle=loaded.id, state_version=loaded.state_version))

    return [
        json_route(context, "GET", "/v1/bundle", bundle),
        json_route(context, "GET", "/healthz", health, access=Access.OPEN),
        json_route(context, "GET", "/readyz", ready, access=Access.OPEN),
    ]
