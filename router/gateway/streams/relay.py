"""A stream from an engine to a client, event by event, until one of them ends or falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from endcast.router.gateway.engines.response import EngineResponse
from endcast.router.gateway.engines.upstream import UpstreamError
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.messages.coding import Read
from endcast.router.gateway.streams.account import Account

T = TypeVar("T")
#: How long a stream may stay open, and hold its slot, when all has been said.
_AFTER_DONE_S = 1.0
#: A client to whom more is unsent is waited for, bytes.
_LAGS_BEHIND = 64 * 1024
#: How long the end of the last answer waits for a usage event.
_HELD_S = 0.5


class ClientLeft(Exception):
    """Writing to the client failed."""


class Relay:
    """One stream. ``writing``: it is the client who is waited for."""

    def __init__(
        self,
        out: web.StreamResponse,
        account: Account,
        watched: Watched,
        read: Read,
        clock: Callable[[], float],
        response: EngineResponse | None = None,
    ) -> None:
        """``response``, where what ``read`` tells is its body as it came."""
        self._out, self._account, self._watched, self._read, self._clock = out, account, watched, read, clock
        self._response = response
        self._transport: asyncio.WriteTransport
        self.writing = False

    async def run(self, http: web.BaseRequest, data: bytes, *, ends_well: bool) -> str:
        """Answer ``http`` with ``data``, the first bytes, and what follows as it comes; what went wrong with the engine, if
        anything did.

        ``ends_well``: a stream of this status that stops before its end was cut.
        """
        account, watched, read, clock = self._account, self._watched, self._read, self._clock
        writer = await to_client(self._out.prepare(http))
        assert writer is not None  # it has not been ended
        write = writer.write  # a coroutine less for each event than the response's own
        transport = http.transport
        direct = self._response if transport is not None and getattr(writer, "chunked", False) else None
        if transport is not None:
            self._transport = transport
        broken = False
        while data:
            send = account.feed(data)
            if send:
                self.writing = True
                try:
                    await write(send)
                except ConnectionError as error:
                    raise ClientLeft from error
                self.writing = False
            watched.alive_s = clock()
            if direct is not None and not account.hesitates:
                await direct.pass_to(self._pass)
            if account.done:
                watched.patience_s = min(watched.patience_s, _AFTER_DONE_S)
            try:
                data = await (self._read_behind_end() if account.held else read())
            except UpstreamError:
                broken, data = True, b""
        rest = account.rest()
        if not account.complete and (broken or ends_well):
            return "stream_cut"  # half an event would swallow the one that tells of it
        if rest:
            await to_client(write(rest))
        return ""

    def _pass(self, data: bytes) -> bool:
        """Send on what came, in one chunk; whether more can be taken so: the client keeps up, and nothing is held back."""
        account, transport = self._account, self._transport
        send = account.feed(data)
        if send:
            transport.write(b"%x\r\n%b\r\n" % (len(send), send))
        self._watched.alive_s = self._clock()
        return not account.hesitates and transport.get_write_buffer_size() < _LAGS_BEHIND

    async def _read_behind_end(self) -> bytes:
        """What comes behind the last answer's end; where that takes long, the client gets the end without it."""
        watched, patience = self._watched, self._watched.patience_s
        watched.patience_s = min(patience, _HELD_S)
        try:
            return await self._read()
        except asyncio.CancelledError:
            if not watched.overdue:
                raise
            watched.task.uncancel()
            watched.overdue, watched.alive_s, watched.patience_s = False, self._clock(), patience
            await to_client(self._out.write(self._account.release()))
            return await self._read()
        finally:
            watched.patience_s = patience


async def to_client(writing: Awaitable[T]) -> T:
    """Await ``writing`` to the client; ``ClientLeft`` if it is gone."""
    try:
        return await writing
    except ConnectionError as error:
        raise ClientLeft from error
