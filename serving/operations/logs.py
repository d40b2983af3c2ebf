"""Structured logs: one JSON object a line, each with the id of the call that it belongs to.

A call's id is its ``X-Request-Id`` header where that is short and plain, else it is made here; the answer carries it.
Lines hold no prompts, outputs or keys; with ``log_prompts`` those of calls hold the body.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import time
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TextIO

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endcast.serving.api.endpoints import refuse
from endcast.serving.api.problems import internal
from endcast.serving.context import Context
from endcast.serving.operations.auth import CALLER
from endcast.serving.operations.settings import Settings

CALLS = logging.getLogger("endcast.calls")
REQUEST_ID = "x-request-id"
#: Most bytes of a body that ``log_prompts`` writes.
LOGGED_BODY_BYTES = 16_384
#: Paths that probes call all the time: logged only with log_level = "debug".
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_SANE_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_SHOWN_PATH = 200

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def request_logging(app: ASGIApp, context: Context) -> ASGIApp:
    """Middleware: gives each call an id, returns it as ``X-Request-Id``, and logs one line when the call is answered."""
    keep_body = context.settings.log_prompts

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        call = _Call(scope, keep_body)
        token = request_id.set(call.id)
        try:
            await app(scope, call.receiving(receive) if keep_body else receive, call.sending(send))
        except Exception:
            CALLS.exception("the service failed on this call")
            if call.answering:
                raise  # the server closes the connection, so that nobody takes half an answer for a whole one
            await refuse(internal(), context.metrics)(scope, receive, call.sending(send))
        finally:
            call.log()
            request_id.reset(token)

    return logged


def sane_request_id(told: str | None) -> str:
    """``told`` where it is short and plain, else a new id."""
    return told if told is not None and _SANE_ID.fullmatch(told) else secrets.token_hex(8)


class _Call:
    """What is known of one call while it runs."""

    def __init__(self, scope: Scope, keep_body: bool) -> None:
        self.id = sane_request_id(Headers(scope=scope).get(REQUEST_ID))
        self._scope = scope
        self._started = time.perf_counter()
        self._status: int | None = None
        self._sent = 0
        self._body = bytearray() if keep_body else None

    @property
    def answering(self) -> bool:
        """Whether the answer has begun."""
        return self._status is not None

    def receiving(self, receive: Receive) -> Receive:
        """``receive``, keeping the body's beginning."""

        async def kept() -> Message:
            message = await receive()
            if self._body is not None and len(self._body) < LOGGED_BODY_BYTES:
                self._body += message.get("body", b"")[: LOGGED_BODY_BYTES - len(self._body)]
            return message

        return kept

    def sending(self, send: Send) -> Send:
        """``send``, adding the id and counting."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = self.id
            elif message["type"] == "http.response.body":
                self._sent += len(message.get("body", b""))
            await send(message)

        return counted

    def log(self) -> None:
        """One line; its level is that of the answer."""
        level = self._level()
        if CALLS.isEnabledFor(level):
            CALLS.log(level, "call", extra={"fields": self._fields()})

    def _level(self) -> int:
        if self._status is None or self._status >= 500:
            return logging.ERROR
        if self._status >= 400:
            return logging.WARNING
        return logging.DEBUG if self._scope["path"] in _QUIET else logging.INFO

    def _fields(self) -> dict[str, Any]:
        fields = {
            "method": self._scope["method"],
            "path": self._scope["path"][:_SHOWN_PATH],
            "status": self._status,
            "seconds": round(time.perf_counter() - self._started, 6),
            "bytes_sent": self._sent,
            "caller": self._scope.get(CALLER),
        }
        if self._body is not None:
            fields["body"] = self._body.decode("utf-8", "replace")
        return fields


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, message, process, request_id, and its ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return _encoded(self._line(record))

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        line: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.created * 1000) % 1000:03d}+00:00",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": os.getpid(),
        }
        if (current := request_id.get()) is not None:
            line["request_id"] = current
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return line


class TextFormatter(JsonFormatter):
    """The same for people: time, level, message, then ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it."""
        line = self._line(record)
        traceback = line.pop("traceback", None)
        head = f"{line.pop('time')} {line.pop('level'):<7} {line.pop('logger')}: {_encodable(line.pop('message'))}"
        rest = " ".join(f"{name}={_encoded(value)}" for name, value in line.items())
        return f"{head} {rest}" if traceback is None else f"{head} {rest}\n{_encodable(traceback)}"


@lru_cache(maxsize=8)
def _second(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def _encoded(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate cannot be written
        return _encodable(json.dumps(value, default=repr, ensure_ascii=False))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def configure_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Send every logger of this process to ``stream`` (stderr) in one format; replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    logging.captureWarnings(True)
    # nothing of this is written, and finding it out takes longer than all the rest of a line
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
