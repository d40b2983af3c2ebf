"""One of several processes of the service: serves, and does what its ``supervisor`` tells it to."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from endcast.errors import EndcastError
from endcast.serving.bundles.reload import Reloader
from endcast.serving.context import Context
from endcast.serving.operations.settings import Settings


class Message(msgspec.Struct, frozen=True):
    """What a supervisor and a process tell each other.

    Process: ``serving``, ``reload`` (somebody asked for one), ``prepared``, ``committed``, ``refused``. Supervisor:
    ``prepare``, ``commit``, ``reloaded`` and ``refused`` (the result for whoever asked).
    """

    kind: str
    bundle: str = ""
    path: str = ""
    why: str | None = None


class Link:
    """A process's end of the connection to its supervisor."""

    def __init__(self, context: Context, reloader: Reloader, connection: Connection) -> None:
        self._context, self._reloader, self._connection = context, reloader, connection
        self._asking: asyncio.Future[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        reloader.everywhere = self.ask

    async def ask(self) -> str:
        """Have all processes load what the folder has; the id that all serve then."""
        self._asking = asyncio.get_running_loop().create_future()
        self._tell(Message("reload"))
        try:
            return await self._asking
        finally:
            self._asking = None

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Listen to the supervisor."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._connection.fileno(), self._hear)
        self._tell(Message("serving", bundle=self._context.bundles.current.id))
        try:
            yield
        finally:
            loop.remove_reader(self._connection.fileno())

    def _tell(self, message: Message) -> None:
        self._connection.send_bytes(msgspec.json.encode(message))

    def _hear(self) -> None:
        try:
            while self._connection.poll():
                message = msgspec.json.decode(self._connection.recv_bytes(), type=Message)
                task = asyncio.get_running_loop().create_task(self._do(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except (EOFError, OSError):  # the supervisor is gone: nobody would start this process again, nor stop it
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    async def _do(self, message: Message) -> None:
        asking = self._asking
        match message.kind:
            case "prepare":
                await self._try("prepared", self._prepare(message.path))
            case "commit":
                self._reloader.agreed = message.bundle
                await self._try("committed", self._commit(message.bundle))
            case "reloaded" if asking is not None and not asking.done():
                asking.set_result(message.bundle)
            case "refused" if asking is not None and not asking.done():
                asking.set_exception(EndcastError(message.why or "a process refused the bundle"))

    async def _try(self, kind: str, work: Coroutine[Any, Any, str]) -> None:
        try:
            self._tell(Message(kind, bundle=await work))
        except EndcastError as error:
            self._tell(Message("refused", why=error.message))

    async def _prepare(self, path: str) -> str:
        return await self._reloader.prepare(Path(path))

    async def _commit(self, bundle: str) -> str:
        return self._reloader.commit(bundle)


def work(folder: str, settings: Settings, listening: socket.socket, connection: Connection, bundle: str) -> None:
    """Serve until told to stop: the life of one process."""
    from endcast.serving.app import build_app
    from endcast.serving.launch import folder_context
    from endcast.serving.metrics import shared
    from endcast.serving.metrics.shared import SharedMetrics
    from endcast.serving.operations.logs import configure_logging
    from endcast.serving.processes.run import serve_until_stopped
    from endcast.serving.streams import peers

    configure_logging(settings)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is meant for the supervisor
    settings = dataclasses.replace(settings, outcome_peers=True)
    context = folder_context(Path(folder), settings)
    assert context.reloader is not None
    context.reloader.agreed = bundle
    copies = Path(folder).parent.parent
    context.metrics.shared = SharedMetrics(shared.shared_folder(copies))
    context.stream_folder = peers.shared_folder(copies)
    context.lives.append(Link(context, context.reloader, connection).life)
    serve_until_stopped(build_app(context), listening, settings)
