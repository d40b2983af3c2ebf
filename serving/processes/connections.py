"""Connections with limits: on the head of a request, on the time it may take to arrive and its answer to leave, and on
how many there are. A body's limits are those of the endpoints."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from endcast.serving.api.problems import ServiceError

#: Most bytes of a request line with its headers, most headers, and seconds that they may take.
MOST_HEAD_BYTES, MOST_HEADERS, LONGEST_HEAD_S = 64 * 1024, 128, 20.0
#: Seconds that a client may leave an answer unread: while it is sent, and once the connection is to be closed.
LONGEST_UNREAD_S = 30.0

_LARGE_HEAD = ServiceError(431, "head_too_large", "the request line and headers are too large")
_SLOW_HEAD = ServiceError(408, "slow_head", "the request line and headers did not arrive in time")
_NO_HTTP = ServiceError(400, "malformed_http", "what arrived is no HTTP request")
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class LimitedConnection(HttpToolsProtocol):
    """One connection. What breaks a limit is answered in the shape of all errors, and the connection closed."""

    most_connections = 8_192

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_bytes, self._headers_seen = 0, 0
        self._in_head = True
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept it, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._head_came()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered: it has some time to go on."""
        super().pause_writing()
        self._unread = self.loop.call_later(LONGEST_UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads."""
        self._is_read()
        super().resume_writing()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """Parse what came; a head that grows too large is refused even if none of its headers ends."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_LARGE_HEAD)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._headers_seen = 0
        super().on_message_begin()
        if self._late is None:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count it."""
        self._headers_seen += 1
        if self._headers_seen > MOST_HEADERS or len(name) + len(value) > MOST_HEAD_BYTES:
            self._refuse(_LARGE_HEAD)
            raise ValueError("too many headers")  # ends the parsing of what came
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head, self._head_bytes = False, 0
        self._head_came()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole; a next request may follow."""
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        if not self.transport.is_closing():
            self._refuse(_NO_HTTP)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and drop it if its client does not even read what was answered."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(LONGEST_UNREAD_S, self.transport.abort)

    def _expect_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._late = self.loop.call_later(LONGEST_HEAD_S, self._refuse, _SLOW_HEAD)

    def _head_came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, error: ServiceError) -> None:
        """Answer and close; what the client goes on to send is dropped."""
        self._head_came()
        body = error.body()
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (error.status, _REASONS[error.status], len(body)) + body)
        self.transport.close()
        self.loop.call_later(LONGEST_UNREAD_S, self.transport.abort)
