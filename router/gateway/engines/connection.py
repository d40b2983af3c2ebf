"""One connection to an engine: a request goes out, its response comes in. What its bytes mean is the parser's affair.

Nothing stands between the network and whoever reads a response: a piece of its body is in the reader's hands in the call
that it came with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from endcast.router.gateway.engines.response import EngineError, EngineResponse

#: Headers, trailers and framing in one go are shorter, bytes.
_FRAMING = 256 * 1024
#: What is sent of a body in one piece, bytes; others are served between pieces.
_PIECE = 256 * 1024
_NO_VALUE = (b"\r", b"\n", b"\0")


class Connection(asyncio.Protocol):
    """One request after another: ``idle`` is told whenever it may be given the next, ``lost`` when there is none for it."""

    def __init__(self, idle: Callable[[Connection], None], lost: Callable[[Connection], None]) -> None:
        self._idle, self._lost = idle, lost
        self.idle_since_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._transport: asyncio.Transport | None = None
        self._awaited: asyncio.Future[EngineResponse] | None = None  # of the call under way, done once headers came
        self._response: EngineResponse | None = None  # whose body is coming
        self._writable: asyncio.Future[None] | None = None
        self._reason, self._headers = b"", list[tuple[str, str]]()
        self._bodiless = False  # it is an answer to HEAD
        self._sent = True  # all of the request
        self._whole = self._again = False  # the response came whole; the connection may be used again
        self._framing = 0  # bytes since the last of a body

    @property
    def closed(self) -> bool:
        """Whether it can carry no more."""
        return self._transport is None

    async def call(self, head: bytes, body: bytes | None, *, bodiless: bool) -> EngineResponse:
        """The response to a request, its headers read; ``bodiless``: no body follows whatever they say.

        ``EngineError`` where none comes. A caller who is cancelled takes the connection with it.
        """
        transport = self._transport
        if transport is None:
            raise EngineError("the engine closed the connection")
        awaited: asyncio.Future[EngineResponse] = asyncio.get_running_loop().create_future()
        self._awaited = awaited
        self._bodiless, self._sent, self._whole, self._again, self._framing = bodiless, False, False, False, 0
        try:
            if body is None or len(body) <= _PIECE:
                transport.write(head if body is None else head + body)
                self._sent = True
            else:
                await self._send(transport, head, memoryview(body))
            return await awaited
        except BaseException:
            self.abort()
            if awaited.done() and not awaited.cancelled():
                awaited.exception()  # nobody else will look at it
            raise

    async def _send(self, transport: asyncio.Transport, head: bytes, body: memoryview) -> None:
        """All of it, or what the engine took before it answered or went."""
        transport.write(head)
        for start in range(0, len(body), _PIECE):
            if self._awaited is None or self._awaited.done():
                return
            transport.write(body[start : start + _PIECE])
            if self._writable is not None:
                await self._writable
            else:
                await asyncio.sleep(0)
        self._sent = True

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        transport = self._part()
        if transport is not None:
            transport.abort()
        self._break_off("the call was given up")

    def pause(self) -> None:
        """Its reader has enough for now."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Its reader wants more."""
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    # ---- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._awaited is None:
            self.abort()  # nobody asked
            return
        self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._whole:
                self._break_off(f"the engine's answer is no HTTP: {error.__context__ or error}")
                self.abort()
                return
            self._again = False  # what came behind its end is nobody's
        if self._response is not None:
            self._response.deliver()
        if self._whole:
            self._finish()
        elif self._framing > _FRAMING:
            self._break_off(f"the engine's headers are longer than {_FRAMING} bytes")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._part()
        response = self._response
        if response is not None and response.until_closed and exc is None:
            response.end(None)
            self._response = self._awaited = None
        self._break_off("the engine closed the connection" if exc is None else f"the connection was lost: {exc}")

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # ---- from the parser

    def on_message_begin(self) -> None:
        if self._whole:
            raise EngineError("it goes on behind its end")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            return  # a trailer
        if any(sign in value for sign in _NO_VALUE):
            raise EngineError(f"a line end within the header {name[:80]!r}")
        told = name.decode("utf-8", "surrogateescape"), value.rstrip(b" \t").decode("utf-8", "surrogateescape")
        self._headers.append(told)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        reason, headers = self._reason.decode("utf-8", "surrogateescape"), self._headers
        self._reason, self._headers = b"", []
        if status < 200:
            return  # a provisional answer: another follows
        self._response = response = EngineResponse(self, status, reason, headers)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(response)
        if self._bodiless:
            self._whole = True

    def on_body(self, data: bytes) -> None:
        self._framing = 0
        if self._response is not None and not self._bodiless:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        if self._response is not None:
            self._whole, self._again = True, self._parser.should_keep_alive() and not self._bodiless

    # ---- ends

    def _finish(self) -> None:
        """The response came whole."""
        response, self._response, self._awaited = self._response, None, None
        transport = self._transport
        if transport is not None and self._again and self._sent and not transport.get_write_buffer_size():
            self.resume()
            self._idle(self)
        elif transport is not None:
            self._part()
            transport.abort()
        if response is not None:
            response.end(None)
        self.resume_writing()

    def _part(self) -> asyncio.Transport | None:
        """The connection is gone, or about to be: what it was."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._lost(self)
        return transport

    def _break_off(self, why: str) -> None:
        """Whoever waits for anything here waits in vain."""
        awaited, self._awaited = self._awaited, None
        response, self._response = self._response, None
        if response is not None:
            response.end(EngineError(why))
        elif awaited is not None and not awaited.done():
            awaited.set_exception(EngineError(why))
        self.resume_writing()
