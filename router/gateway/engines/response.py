"""What an engine answers: its headers, and its body as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from multidict import CIMultiDict, CIMultiDictProxy

#: A reader who is further behind stops the engine from sending, bytes.
_UNREAD = 128 * 1024
#: Gets what came of a body; whether it takes more.
Sink = Callable[[bytes], bool]


class EngineError(ConnectionError):
    """A call to an engine that came to nothing, or whose answer is not whole."""


class NotConnected(EngineError):
    """No connection could be made: the engine never saw the call."""


class Source(Protocol):
    """Where a body comes from."""

    def pause(self) -> None:
        """No more for now."""

    def resume(self) -> None:
        """More."""

    def abort(self) -> None:
        """No more at all."""


class EngineResponse:
    """A response whose headers have come. ``close`` it, read to its end or not."""

    def __init__(self, source: Source, status: int, reason: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.reason = status, reason
        self.headers = CIMultiDictProxy(CIMultiDict(headers))
        self._source = source
        self._pieces: list[bytes] = []
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._ended = False
        self._error: Exception | None = None

    @property
    def content_length(self) -> int | None:
        """Bytes of the body, where the engine told."""
        told = self.headers.get("Content-Length", "")
        return int(told) if told.isdecimal() else None

    @property
    def until_closed(self) -> bool:
        """Whether the body ends where the connection does, for want of another end."""
        coding = self.headers.get("Transfer-Encoding", "").lower()
        return "Content-Length" not in self.headers and not coding.endswith("chunked")

    async def readany(self) -> bytes:
        """What has come of the body since the last call, a byte at least; empty at its end. ``EngineError`` where it was
        cut."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._wait()
        pieces, unread, self._unread = self._pieces, self._unread, 0
        self._pieces = []
        if unread > _UNREAD:
            self._source.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pass_to(self, sink: Sink) -> None:
        """Hand what comes to ``sink`` as it comes, until it takes no more or the body has ended; ``readany`` then tells
        how, or what came since. An error of the sink's is raised by ``readany``.

        No task is woken in between, which for a stream of tokens is most of what passing it on costs.
        """
        if self._pieces or self._ended:
            return
        self._sink = sink
        try:
            await self._wait()
        finally:
            self._sink = None

    async def read(self) -> bytes:
        """The whole body."""
        found = []
        while data := await self.readany():
            found.append(data)
        return b"".join(found)

    def close(self) -> None:
        """Read no more: gives the call up, unless the body has come whole."""
        if not self._ended:
            self._source.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # ---- from its source

    def feed(self, data: bytes) -> None:
        """A piece of the body came."""
        self._pieces.append(data)
        self._unread += len(data)

    def deliver(self) -> None:
        """Enough pieces came for now: whoever waits for them gets them."""
        if not self._pieces:
            return
        if self._sink is None:
            if self._unread > _UNREAD:
                self._source.pause()
            self._wake()
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._unread = 0
        try:
            if self._sink(data):
                return
        except Exception as error:  # noqa: BLE001 - told to whoever waits, as if it had called the sink itself
            self.end(error)
            self._source.abort()
        self._wake()

    def end(self, error: Exception | None) -> None:
        """The body has ended, or broken off; the first word counts."""
        if not self._ended:
            self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        self._sink = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
