"""Another bundle is loaded while calls go on: by call, by signal, or because the folder has a new one.

The new bundle is read, checked and tried out beside the event loop; only a whole and working one is ever served, and
until then the old one answers. With several processes, all prepare it before any serves it (``processes.supervisor``).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from endcast.errors import EndcastError
from endcast.serving.bundles.holder import Loaded, folder_id, load_bundle
from endcast.serving.context import Context

LOG = logging.getLogger("endcast.bundles")

Load = Callable[[Path], Loaded]


class Reloader:
    """Loads the bundle that the folder has now, for one process.

    ``everywhere`` is asked instead where several processes have to agree: it answers with the id that all serve then, or
    raises ``EndcastError`` if one of them refused.
    """

    def __init__(self, context: Context, folder: Path, load: Load | None = None) -> None:
        self._context = context
        self.folder = folder
        self._load = load or (lambda path: load_bundle(path, context.settings))
        self._one = asyncio.Lock()
        self._prepared: Loaded | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.everywhere: Callable[[], Awaitable[str]] | None = None
        self.agreed: str | None = None  #: the id that all processes are to serve, where there are several
        self.refused: str | None = None  #: why the last attempt failed, if it did

    async def reload(self) -> str:
        """Serve what the folder has; the id that is served then. ``EndcastError`` says why it was refused: the old
        bundle is served on."""
        async with self._one:
            before = self._context.bundles.current.id
            try:
                if self.everywhere is not None:
                    served = await self.everywhere()
                elif folder_id(self.folder) == before:
                    served = before
                else:
                    served = self.commit(await self.prepare(self.folder))
            except EndcastError as error:
                self._count("refused")
                self.refused = error.message
                LOG.error("bundle refused", extra={"fields": {"why": error.message, "served": before}})
                raise
            self._count("unchanged" if served == before else "served")
            self.refused = None
            LOG.info("bundle served", extra={"fields": {"bundle": served, "before": before}})
            return served

    def _count(self, result: str) -> None:
        self._context.metrics.reloads.labels(result).inc()

    async def prepare(self, folder: Path) -> str:
        """Load the bundle of ``folder`` beside the event loop, without serving it; its id."""

        def work() -> Loaded:
            try:
                loaded = self._load(folder)
                self._context.bundles.prepare(loaded)
            except EndcastError:
                raise
            except Exception as error:
                LOG.exception("a bundle failed")
                raise EndcastError(f"the bundle failed when it was tried out: {type(error).__name__}") from error
            return loaded

        self._prepared = await asyncio.to_thread(work)
        return self._prepared.id

    def commit(self, bundle: str) -> str:
        """Serve the bundle that was prepared, which has this id."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.id == bundle:
            self._context.bundles.swap(prepared)
        served = self._context.bundles.current.id
        if served != bundle:
            raise EndcastError("the bundle that is to be served was not prepared")
        return served

    @property
    def disagrees(self) -> bool:
        """Whether this process serves another bundle than all are to serve."""
        return self.agreed is not None and self._context.bundles.current.id != self.agreed

    def soon(self) -> None:
        """Reload in the background; what is refused is logged and counted."""
        task = asyncio.get_running_loop().create_task(self._quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self) -> None:
        try:
            await self.reload()
        except EndcastError:
            return  # logged and counted by then

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Reload on SIGHUP, and look at the folder now and then, where this process is the only one."""
        if self.everywhere is not None:
            yield
            return
        loop = asyncio.get_running_loop()
        signals = threading.current_thread() is threading.main_thread()
        if signals:
            loop.add_signal_handler(signal.SIGHUP, self.soon)
        watching = loop.create_task(self._watch()) if self._context.settings.watch_s > 0 else None
        try:
            yield
        finally:
            if signals:
                loop.remove_signal_handler(signal.SIGHUP)
            if watching is not None:
                watching.cancel()

    async def _watch(self) -> None:
        seen = signature(self.folder)
        while True:
            await asyncio.sleep(self._context.settings.watch_s)
            now = await asyncio.to_thread(signature, self.folder)
            if now != seen:  # a refused one is looked at again when a file of it changes
                seen = now
                await self._quietly()


def signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a folder's files: what changes while one is copied there. Empty if there is no folder."""
    try:
        files = sorted((path.name, path.stat()) for path in folder.iterdir())
    except OSError:
        return ()
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in files)
