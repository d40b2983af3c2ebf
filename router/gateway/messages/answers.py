"""What the router itself says to clients, in the shape of an OpenAI error."""

from __future__ import annotations

import math

import msgspec
from aiohttp import web


def error_body(status: int, code: str, message: str) -> bytes:
    """``{"error": {"message", "type", "code", "param"}}``."""
    kind = "invalid_request_error" if 400 <= status < 500 and status != 429 else "router_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": code, "param": None}})


def error_frames(status: int, code: str, message: str) -> bytes:
    """The same as the end of a stream: an error event, then ``[DONE]``, as engines end theirs."""
    return b"data: " + error_body(status, code, message) + b"\n\ndata: [DONE]\n\n"


def error_answer(status: int, code: str, message: str, retry_after_s: float | None = None) -> web.Response:
    """An answer of the router's own."""
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=status, body=error_body(status, code, message), content_type="application/json", headers=headers
    )
