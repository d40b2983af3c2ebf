"""Who may use a forecaster when: it is not thread-safe, and calls that take long must not keep short ones waiting.

A *turn* is the use of the forecaster for some milliseconds. Long calls take one turn a chunk, so that short calls run
between their chunks. A *change* (completions taken in) waits until no long call is on its way, so that all chunks of a
call see one state; long calls that come while a change waits begin after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """The turns of one forecaster; within one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._long_calls = 0
        self._changes = 0
        self._moved = asyncio.Condition()

    @property
    def taken(self) -> bool:
        """Whether somebody is using the forecaster, or waits to."""
        return self._turn.locked()

    def turn(self) -> asyncio.Lock:
        """``async with turns.turn():`` use the forecaster, without changing its state."""
        return self._turn

    @asynccontextmanager
    async def long_call(self) -> AsyncIterator[None]:
        """While this is held, the state does not change; turns are to be taken inside it."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._changes == 0)
            self._long_calls += 1
        try:
            yield
        finally:
            async with self._moved:
                self._long_calls -= 1
                self._moved.notify_all()

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """Use the forecaster alone, to change its state."""
        async with self._moved:
            self._changes += 1
            try:
                await self._moved.wait_for(lambda: self._long_calls == 0)
            except BaseException:
                self._changes -= 1
                self._moved.notify_all()
                raise
        try:
            async with self._turn:
                yield
        finally:
            async with self._moved:
                self._changes -= 1
                self._moved.notify_all()
