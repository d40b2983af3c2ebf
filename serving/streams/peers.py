"""Calls about a stream that another process of the service holds are handed to it, over a socket of its own.

Each process listens at ``PID.sock`` in a folder that only its user may enter. A call is a frame there, and so is its answer:
four bytes of length, then MessagePack. Keys and limits were checked by the process that took the call. A process that has
died took its streams with it: they are unknown then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from endcast.errors import EndcastError
from endcast.serving.api.problems import ServiceError, internal, stream_unreachable, unknown_stream

LOG = logging.getLogger("endcast.streams")
#: Seconds that another process has for its answer, and connections to it that are kept for the next calls.
LONGEST_S, MOST_IDLE = 30.0, 32
_LENGTH = 4
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Handed(Struct, frozen=True):
    """A call about the stream ``name``: what to do (``append``, ``forecast``, ``close``, ``drop``) and its body."""

    what: str
    name: str
    body: bytes


class Refusal(Struct, frozen=True):
    """A ``ServiceError``, as it goes from one process to another."""

    status: int
    code: str
    message: str
    field: str | None
    hint: str
    headers: dict[str, str]


class Told(Struct, frozen=True):
    """The JSON of an answer, or why there is none."""

    body: bytes
    refusal: Refusal | None = None


Do = Callable[[Handed], Awaitable[bytes]]
_HANDED, _TOLD = msgspec.msgpack.Decoder(Handed), msgspec.msgpack.Decoder(Told)


class Peers:
    """One process's end of the sockets in ``folder``."""

    def __init__(self, folder: Path, own: int | None = None) -> None:
        self._folder = folder
        self.own = os.getpid() if own is None else own
        self._idle: defaultdict[int, list[_Connection]] = defaultdict(list)
        self._serving: set[asyncio.Task[None]] = set()

    async def ask(self, owner: int, call: Handed) -> bytes:
        """The answer of the process ``owner``; ``ServiceError`` as it refuses, 404 if it is no more, 503 if it is silent."""
        try:
            async with asyncio.timeout(LONGEST_S):
                told = _TOLD.decode(await self._exchanged(owner, msgspec.msgpack.encode(call)))
        except TimeoutError:
            raise stream_unreachable() from None
        except (OSError, asyncio.IncompleteReadError):
            raise unknown_stream() from None
        if told.refusal is None:
            return told.body
        why = told.refusal
        raise ServiceError(
            why.status, why.code, why.message, field=why.field, hint=why.hint, headers=why.headers
        )  # fmt: skip

    async def _exchanged(self, owner: int, frame: bytes) -> bytes:
        idle = self._idle[owner]
        reader, writer = idle.pop() if idle else await asyncio.open_unix_connection(self._path(owner))
        try:
            await _write(writer, frame)
            told = await _read(reader)
        except BaseException:  # what is left of this exchange must not be taken for the next one's
            writer.close()
            raise
        if len(idle) < MOST_IDLE:
            idle.append((reader, writer))
        else:
            writer.close()
        return told

    @asynccontextmanager
    async def life(self, do: Do) -> AsyncIterator[None]:
        """Answer the other processes by ``do`` until no more calls come."""
        path = self._path(self.own)
        path.unlink(missing_ok=True)
        try:
            server = await asyncio.start_unix_server(lambda *ends: self._begin(do, *ends), path)
        except OSError as error:  # such as a path of more than a hundred bytes
            raise EndcastError(f"cannot listen at {path}: {error}", hint="Set TMPDIR to a shorter path") from error
        try:
            yield
        finally:
            server.close()
            for _, writer in [end for idle in self._idle.values() for end in idle]:
                writer.close()
            for task in self._serving:
                task.cancel()
            path.unlink(missing_ok=True)

    def _path(self, owner: int) -> Path:
        return self._folder / f"{owner}.sock"

    def _begin(self, do: Do, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(do, reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, do: Do, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection, one after the other."""
        with suppress(
            OSError, asyncio.IncompleteReadError, asyncio.CancelledError
        ):  # the other end is gone, or this is
            while True:
                told = await _answered(do, _HANDED.decode(await _read(reader)))
                await _write(writer, msgspec.msgpack.encode(told))
        writer.close()


async def _answered(do: Do, call: Handed) -> Told:
    try:
        return Told(await do(call))
    except ServiceError as error:
        why = error
    except Exception:
        LOG.exception("the service failed on a call that another process handed on")
        why = internal()
    return Told(b"", Refusal(why.status, why.code, why.message, why.field, why.hint, why.headers))


async def _read(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(_LENGTH)))


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(_LENGTH) + frame)
    await writer.drain()


def shared_folder(copies: Path) -> Path:
    """Where the processes of one supervisor have their sockets, below the folder that it made for them."""
    folder = copies / "streams"
    folder.mkdir(exist_ok=True)
    return folder
