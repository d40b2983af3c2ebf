"""From prefill to decode without loss: a prompt's KV that was computed is fetched by some decode worker, whatever happens.

A prefill worker keeps the KV until it is fetched, or for minutes. So a request whose client has left, or that is turned away, between
prefill and decode still goes to a decode worker, and is aborted there once it has been taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from endcast.router.gateway.config import Worker
from endcast.router.gateway.engines.response import EngineResponse, NotConnected
from endcast.router.gateway.engines.upstream import UpstreamError

if TYPE_CHECKING:
    from endcast.router.gateway.fleet.pools import PoolAtWork

#: A decode worker has so long to take a request whose client has left, and to serve one that only fetches.
_TAKES_S, _FETCHES_S = 1.0, 5.0
#: A call to a decode worker: with the client's request, or only to fetch the KV.
Send = Callable[[Worker, bool], Coroutine[Any, Any, EngineResponse]]
Background = Callable[[Coroutine[Any, Any, None]], None]


class Handoff:
    """One prompt's KV: ``owed`` until a decode worker has taken a request that fetches it."""

    def __init__(self, pool: PoolAtWork, send: Send, background: Background) -> None:
        """``send(worker, True)`` is the client's request, ``send(worker, False)`` one that only fetches."""
        self._pool, self._send, self._background = pool, send, background
        self.owed = True

    async def call(self, worker: Worker) -> EngineResponse:
        """The decode worker's response. If the client leaves meanwhile the call goes on until it has been taken."""
        task = asyncio.create_task(self._send(worker, True))
        taken_by_s = asyncio.get_running_loop().time() + _TAKES_S
        try:
            response = await asyncio.shield(task)
        except asyncio.CancelledError:
            self.owed = False
            self._background(self._see_through(task, taken_by_s))
            raise
        except NotConnected:
            raise  # it was never sent
        except UpstreamError:
            self.owed = False  # it may have been taken, and the KV with it
            raise
        self.owed = response.status != 200  # what is refused fetches nothing
        return response

    def settle(self) -> None:
        """The request is over: what is owed still is fetched, by whoever is up, for nobody."""
        if self.owed:
            self.owed = False
            self._background(self._fetch())

    async def _see_through(self, task: asyncio.Task[EngineResponse], taken_by_s: float) -> None:
        if await _taken(task, taken_by_s - asyncio.get_running_loop().time()):
            self._pool.prefill.handoffs += 1
        else:
            await self._fetch()

    async def _fetch(self) -> None:
        pool = self._pool
        up = [worker for worker in pool.workers if pool.dispatcher.is_up(worker.index)]
        active = pool.core.active()
        for worker in sorted(up, key=lambda worker: int(active[worker.index])):
            if await _taken(asyncio.create_task(self._send(worker, False)), _FETCHES_S):
                pool.prefill.handoffs += 1
                return
        pool.prefill.stranded += 1


async def _taken(task: asyncio.Task[EngineResponse], seconds: float) -> bool:
    """Whether an engine took the call: answered it, or has been silent over it for ``seconds``; then it is aborted."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            response = await asyncio.shield(task)
            await response.readany()
            return response.status == 200
    except TimeoutError:
        return True  # as requests are that are not streamed
    except UpstreamError:
        return False
    finally:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result().close()
