"""The HTTP server of gateway and mock fleet: no routes, handlers end when their client leaves, bodies bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

#: A client's headers may be this long in total, as engines allow.
_HEADERS = 64 * 1024


def http_server(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], max_body_bytes: Callable[[], int]
) -> web.Server:
    """A server that answers with ``handle``; made within a running event loop."""
    loop = asyncio.get_running_loop()

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes())

    return web.Server(
        handle,
        request_factory=make,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=75.0,
        max_line_size=_HEADERS,
        max_field_size=_HEADERS,
    )
