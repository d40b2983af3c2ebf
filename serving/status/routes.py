"""``GET /``: the status page, and ``GET /v1/status``: the figures that it shows.

The page is one document that loads nothing from elsewhere; a content security policy names its script and style by
their digests, so that nothing that got into it would run. It holds no figures and is open to all; the figures need a key.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from endcast.pages import assembled
from endcast.serving.api.endpoints import Answer, answer, json_of, json_route
from endcast.serving.context import Context
from endcast.serving.status.activity import SAMPLE_S, Activity
from endcast.serving.status.figures import status_of
from endcast.serving.status.schema import StatusReply

TYPES: tuple[type, ...] = (StatusReply,)
_PAGE, _FIGURES = "The status page.", "What the status page shows."
PATHS: dict[str, Any] = {
    "/": {
        "get": {
            "operationId": "page",
            "summary": _PAGE,
            "responses": {"200": {"description": _PAGE, "content": {"text/html": {"schema": {"type": "string"}}}}},
        }
    },
    "/v1/status": {
        "get": {
            "operationId": "status",
            "summary": _FIGURES,
            "responses": {"200": {"description": _FIGURES, "content": json_of(StatusReply)}},
        }
    },
}


@cache
def page() -> tuple[str, str]:
    """The page and its content security policy."""
    own = importlib.resources.files("endcast.serving.status") / "page"
    return assembled(own / "page.html.j2", own / "page.js")


def routes(context: Context) -> list[Route]:
    """Both routes, and the task that samples the counters."""
    activity = Activity(context.metrics)
    started = time.monotonic()

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        task = asyncio.create_task(_sample(activity))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    context.lives.append(life)

    async def status(_request: Request) -> Answer:
        return answer(status_of(context, activity, now=time.time(), uptime_s=time.monotonic() - started))

    async def show(_request: Request) -> Response:
        text, policy = page()
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
        return HTMLResponse(text, headers=headers)

    return [Route("/", show, methods=["GET"]), json_route(context, "GET", "/v1/status", status)]


async def _sample(activity: Activity) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        activity.sample()
