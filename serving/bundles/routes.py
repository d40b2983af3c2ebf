"""``GET /v1/bundle``, ``GET /readyz``: what is served. ``POST /v1/bundle/reload``: serve what the folder has now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

import endcast
from endcast.errors import EndcastError
from endcast.serving.api.endpoints import Answer, answer, json_of, json_route, refusals
from endcast.serving.api.problems import bundle_refused, not_ready
from endcast.serving.api.schema import BundleReply, HealthReply, ReadyReply, ReloadReply
from endcast.serving.context import Access, Context

TYPES: tuple[type, ...] = (BundleReply, ReloadReply, HealthReply, ReadyReply)


def _read(operation: str, summary: str, reply: type, more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    ok = {"description": summary, "content": json_of(reply)}
    return {"get": {"operationId": operation, "summary": summary, "responses": {"200": ok, **more}}}


_NOT_READY = refusals({"503": "This process serves another bundle than the others."})
_RELOAD = {
    "operationId": "reload",
    "summary": "Serve the bundle that the folder has now; the old one is served on if it is refused. Needs an admin key.",
    "responses": {
        "200": {"description": "What is served.", "content": json_of(ReloadReply)},
        **refusals({"409": "The bundle was refused, or there is no folder; the message says why."}),
    },
}
PATHS: dict[str, Any] = {
    "/v1/bundle/reload": {"post": _RELOAD},
    "/v1/bundle": _read("bundle", "Which bundle is served.", BundleReply),
    "/healthz": _read("healthz", "Whether the process answers.", HealthReply),
    "/readyz": _read("readyz", "Whether forecasts are served, and by which bundle.", ReadyReply, _NOT_READY),
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
                refused=None if context.reloader is None else context.reloader.refused,
            )
        )

    async def reload(_request: Request) -> Answer:
        reloader = context.reloader
        if reloader is None:
            raise bundle_refused("the bundle did not come from a folder")
        before = context.bundles.current.id
        try:
            served = await reloader.reload()
        except EndcastError as error:
            raise bundle_refused(error.message, error.hint) from error
        return answer(ReloadReply(bundle=served, before=before, changed=served != before))

    async def health(_request: Request) -> Answer:
        return answer(HealthReply(status="ok"))

    async def ready(_request: Request) -> Answer:
        loaded, reloader = context.bundles.current, context.reloader
        if reloader is not None and reloader.disagrees:
            raise not_ready("this process serves another bundle than the others are to serve")
        return answer(ReadyReply(status="ready", bundle=loaded.id, state_version=loaded.state_version))

    return [
        json_route(context, "GET", "/v1/bundle", bundle),
        json_route(context, "POST", "/v1/bundle/reload", reload, access=Access.ADMIN),
        json_route(context, "GET", "/healthz", health, access=Access.OPEN),
        json_route(context, "GET", "/readyz", ready, access=Access.OPEN),
    ]
