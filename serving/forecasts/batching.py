"""How calls share a forecaster: small ones that come together are forecast together, long ones in parts between them.

- A small call is never delayed on purpose. While one is worked on, others arrive; all that wait then are forecast in one
  go, up to ``PART`` generations. A lone call waits for nobody.
- A long call is decoded, forecast and encoded in a thread, part by part; between its parts, small calls get their turn.
- Calls that wait are bounded by number and bytes; one more is refused with 429 and told when to come again.
- A call with a deadline that has passed is not worked on any further: 504.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from endcast.serving.api.problems import busy, deadline_passed
from endcast.serving.bundles.holder import Loaded
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import Call, decode_call, decode_long_call
from endcast.serving.forecasts.service import Made, Part, answer_of, forecast_together

T = TypeVar("T")
Pieces = tuple[bytes, ...]

#: Most generations that are forecast in one go: some milliseconds of work.
PART = 64
#: Weight of the newest call in the mean time that one takes.
_NEWEST = 0.05


@dataclass(eq=False)
class _Waiting:
    """A small call that waits for its forecasts."""

    call: Call
    size: int
    deadline: float
    done: asyncio.Future[Pieces]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Answers calls of one service, within one event loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forecasts")
        self._waiting: deque[_Waiting] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self.calls, self.bytes = 0, 0  #: that are being answered or wait
        self._seconds_a_call = 0.0

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """To be left when no more calls come."""
        yield
        self._worker.shutdown()

    @contextmanager
    def place(self, size: int) -> Iterator[None]:
        """A place among the calls that wait, for a body of ``size`` bytes; ``ServiceError`` 429 if there is none."""
        if self.full or self.bytes + size > self._context.settings.max_waiting_bytes:
            raise busy(self.retry_after_s)
        self.calls, self.bytes = self.calls + 1, self.bytes + size
        try:
            yield
        finally:
            self.calls, self.bytes = self.calls - 1, self.bytes - size

    @property
    def full(self) -> bool:
        """Whether one more call has to be refused."""
        settings = self._context.settings
        return self.calls >= settings.max_waiting_calls or self.bytes >= settings.max_waiting_bytes

    @property
    def retry_after_s(self) -> int:
        """Seconds, at least 1, in which about all calls that wait now will be answered."""
        return max(math.ceil(self.calls * self._seconds_a_call), 1)

    async def answer(self, body: bytes, deadline: float = math.inf) -> Pieces:
        """The answer, in pieces, to a body of ``POST /v1/forecasts``; ``deadline`` is a time of ``time.monotonic``."""
        with self.place(len(body)):
            if len(body) > self._context.settings.inline_body_bytes:
                call = await self._in_thread(decode_long_call, body, self._context.settings)
                return await self._long(call, deadline)
            call = decode_call(body, self._context.settings)
            if len(call.landmarks) > PART:
                return await self._long(call, deadline)
            return await self._small(call, len(body), deadline)

    async def _small(self, call: Call, size: int, deadline: float) -> Pieces:
        waiting = _Waiting(call, size, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await waiting.done

    async def _flush(self) -> None:
        """Answer small calls until none waits."""
        try:
            while self._waiting:
                loaded = self._context.bundles.current
                async with loaded.turns.turn():
                    together = self._take()
                    if together:
                        self._forecast(together, loaded)
                await asyncio.sleep(0)  # others may have something to do, or to ask
        finally:
            self._flushing = None

    def _take(self) -> list[_Waiting]:
        """The next calls that are forecast in one go: those first in line, as far as they fit in."""
        together: list[_Waiting] = []
        landmarks, size, now = 0, 0, time.monotonic()
        while self._waiting:
            first = self._waiting[0]
            landmarks, size = landmarks + len(first.call.landmarks), size + first.size
            if together and (landmarks > PART or size > self._context.settings.inline_body_bytes):
                break
            self._waiting.popleft()
            if first.done.done():  # its caller left
                continue
            if first.deadline < now:
                first.done.set_exception(deadline_passed())
                continue
            self._context.metrics.wait_seconds.observe(now - first.since)
            together.append(first)
        return together

    def _forecast(self, together: Sequence[_Waiting], loaded: Loaded) -> None:
        started = time.perf_counter()
        self._context.metrics.merged_calls.observe(len(together))
        parts = [Part(waiting.call, 0, len(waiting.call.landmarks)) for waiting in together]
        for waiting, made in zip(together, forecast_together(parts, loaded, self._context), strict=True):
            if isinstance(made, Exception):
                waiting.done.set_exception(made)
            else:
                waiting.done.set_result((b"".join(answer_of([made], loaded.id, made.state_version)),))
        self._took((time.perf_counter() - started) / len(together))

    async def _long(self, call: Call, deadline: float) -> Pieces:
        """All of a call by one bundle in one state, in parts."""
        loaded, started = self._context.bundles.current, time.perf_counter()
        made: list[Made] = []
        async with loaded.turns.long_call():
            state = loaded.state_version
            for start in range(0, len(call.landmarks), PART):
                if deadline < time.monotonic():
                    raise deadline_passed()
                part = Part(call, start, min(start + PART, len(call.landmarks)))
                async with loaded.turns.turn():
                    (found,) = await self._in_thread(forecast_together, [part], loaded, self._context)
                if isinstance(found, Exception):
                    raise found
                made.append(found)
        self._took(time.perf_counter() - started)
        return answer_of(made, loaded.id, state)

    async def _in_thread(self, work: Callable[..., T], *given: object) -> T:
        """Done before this returns, even if the caller leaves meanwhile: whoever comes next finds the forecaster free."""
        running = asyncio.get_running_loop().run_in_executor(self._worker, partial(work, *given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def _took(self, seconds: float) -> None:
        self._seconds_a_call += _NEWEST * (seconds - self._seconds_a_call)
