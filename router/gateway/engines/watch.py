"""Time limits on what the router waits for, without a timer for every chunk: one sweep looks at all exchanges."""

from __future__ import annotations

import asyncio
import math


class Watched:
    """Something that must show life every ``patience_s`` seconds: it sets ``alive_s``, or its task is cancelled.

    The sweep sets ``overdue`` before it cancels, so that the task can tell from a cancellation that is meant to end it.
    """

    __slots__ = ("alive_s", "overdue", "patience_s", "task")

    def __init__(self, task: asyncio.Task[object], patience_s: float, now_s: float) -> None:
        self.task, self.patience_s, self.alive_s = task, patience_s, now_s
        self.overdue = False


class Watch:
    """All that is watched, and the task that sweeps over it."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._watched: set[Watched] = set()
        self._task: asyncio.Task[None] | None = None
        self._due_s = math.inf
        self._lag_s = 0.0

    @property
    def lag_s(self) -> float:
        """How late this process has lately done what was due, seconds: with much of it, timeouts say nothing of others."""
        return max(self._lag_s, asyncio.get_running_loop().time() - self._due_s)

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, watched: Watched) -> None:
        """Watch it."""
        self._watched.add(watched)

    def remove(self, watched: Watched) -> None:
        """Watch it no more."""
        self._watched.discard(watched)

    def start(self) -> None:
        """Begin to sweep."""
        self._task = asyncio.create_task(self._sweep(), name="time limits")

    async def stop(self) -> None:
        """Sweep no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._due_s = loop.time() + self.every_s
            await asyncio.sleep(self.every_s)
            now = loop.time()
            self._lag_s = max(now - self._due_s, 0.7 * self._lag_s)
            for watched in list(self._watched):
                if not watched.overdue and now - watched.alive_s > watched.patience_s:
                    watched.overdue = True
                    watched.task.cancel()
