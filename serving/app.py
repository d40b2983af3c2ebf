"""The app: routes from ``api.route_list``, middleware in one order, errors of HTTP itself in the shape of all others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

import endcast
from endcast.forecaster import Forecaster
from endcast.serving.api.endpoints import refuse
from endcast.serving.api.openapi import Keys, openapi_document
from endcast.serving.api.problems import ServiceError
from endcast.serving.api.route_list import ROUTE_MODULES
from endcast.serving.bundles.holder import BundleHolder, Loaded
from endcast.serving.context import Context
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.auth import key_guard
from endcast.serving.operations.logs import request_logging
from endcast.serving.operations.settings import Settings

#: What every call goes through, outermost first; each wraps an ASGI app for one service.
MIDDLEWARE: tuple[Callable[[ASGIApp, Context], ASGIApp], ...] = (request_logging,)


def create_app(settings: Settings, forecaster: Forecaster, manifest: Mapping[str, Any] | None = None) -> FastAPI:
    """The service for one forecaster; ``manifest`` is what ``GET /v1/bundle`` tells of its bundle."""
    return build_app(Context(settings, Metrics(), BundleHolder(Loaded(forecaster, dict(manifest or {})))))


def build_app(context: Context) -> FastAPI:
    """The service of a context; its routes may add hooks to it."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for life in context.lives:
                await stack.enter_async_context(life())
            yield

    app = FastAPI(title="endcast", version=endcast.__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.openapi = partial(openapi_document, Keys.of(context.settings))  # type: ignore[method-assign]
    app.state.context = context
    context.guards.append(key_guard(context.settings))
    for module in ROUTE_MODULES:
        app.router.routes += module.routes(context)
    for wrap in reversed(MIDDLEWARE):  # the last one that is added is the outermost
        app.add_middleware(wrap, context)
    _shape_errors(app, context)
    return app


def _shape_errors(app: FastAPI, context: Context) -> None:
    async def no_such_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:  # a path has one route for each method, and starlette asks the first
            matching = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
            headers["Allow"] = ", ".join(
                sorted({m for route in matching for m in getattr(route, "methods", None) or ()})
            )
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
        refused = ServiceError(error.status_code, code, str(error.detail).lower())
        return refuse(refused, context.metrics, headers)

    app.add_exception_handler(HTTPException, no_such_route)
