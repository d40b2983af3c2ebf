"""Streams that callers hold open: the text so far is read as it comes, each call pays for what is new. Knows no HTTP.

A stream keeps the bundle that it was opened with, also when another is served by then. Bounded are: how many streams are
open, the bytes that they hold on to, how long one may be left alone, and of how many bundles there may be streams (those of
the oldest are dropped). Of a stream that was closed or dropped nothing is kept; its id tells that there was one (``names``).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from endcast.forecaster import ForecastStream
from endcast.serving.api.problems import ServiceError, busy, stream_gone, unknown_stream
from endcast.serving.bundles.holder import Loaded
from endcast.serving.context import Context
from endcast.serving.forecasts.degraded import degraded_forecasts, model_works
from endcast.serving.streams.names import StreamNames
from endcast.survival import Forecast
from endcast.types import Landmark

#: Of how many bundles there may be streams.
MOST_BUNDLES = 3
#: Bytes that a stream takes beside the texts it was opened with: curves, and what its reader remembers.
BASE_BYTES = 32 * 1024
#: Characters that are read in one turn: some milliseconds of work.
PIECE = 16 * 1024


@dataclass(eq=False)
class OpenStream:
    """One open stream; ``seen`` is when it was last called for (monotonic)."""

    id: str
    loaded: Loaded
    stream: ForecastStream
    size: int
    seen: float
    forecast_id: str | None = None  #: of its latest forecast
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)


class StreamBook:
    """All open streams of one process."""

    def __init__(
        self, context: Context, names: StreamNames | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context, self._names, self._clock = context, names or StreamNames(), clock
        self._open: OrderedDict[str, OpenStream] = OrderedDict()  # the one left alone for longest first
        self._of_bundle: dict[Loaded, set[str]] = {}  # ids by bundle, oldest bundle first
        self.bytes = 0
        context.metrics.open_streams.set_function(lambda: len(self._open))
        context.metrics.stream_bytes.set_function(lambda: self.bytes)

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, landmark: Landmark, size: int) -> OpenStream:
        """Open one for ``landmark.request``, with the text so far if there is any; ``size`` bytes were sent. 429 if there
        is no room."""
        self.expire()
        settings, held = self._context.settings, size + BASE_BYTES
        if len(self._open) >= settings.max_streams or self.bytes + held > settings.max_stream_bytes:
            raise busy(1)
        loaded = self._context.bundles.current
        name = self._names.new()
        self.bytes += held  # before anybody else is asked: the room is taken
        try:
            async with loaded.turns.turn():
                stream = loaded.forecaster.open(landmark.request)
            one = OpenStream(name, loaded, stream, held, self._clock())
            self._open[name] = one
            self._of_bundle.setdefault(loaded, set()).add(name)
        except BaseException:
            self.bytes -= held
            raise
        self._drop_oldest_bundle()
        if landmark.output or landmark.generated_tokens:
            await self.append(name, landmark.output or "", landmark.generated_tokens)
        return one

    def find(self, name: str) -> OpenStream:
        """The open stream of this id; 410 if there is none any more, 404 if there never was."""
        self.expire()
        one = self._open.get(name)
        if one is None:
            raise self._missing(name)
        one.seen = self._clock()
        self._open.move_to_end(name)
        return one

    async def append(self, name: str, text: str, generated_tokens: int) -> OpenStream:
        """Read ``text``, in pieces between which others get their turn. The count never falls: a smaller one is ignored."""
        one = self.find(name)
        async with one.alone:
            for start in range(0, len(text), PIECE) or (0,):
                piece = text[start : start + PIECE]
                async with one.loaded.turns.turn():
                    one.stream.append(piece, max(generated_tokens, one.stream.generated_tokens))
                if len(text) > PIECE:
                    await asyncio.sleep(0)
        return one

    async def forecast(self, name: str) -> tuple[OpenStream, Forecast]:
        """Its forecast from what is known now."""
        one = self.find(name)
        async with one.alone, one.loaded.turns.turn():
            landmark = Landmark(request=one.stream.request, generated_tokens=one.stream.generated_tokens)
            try:
                made = one.stream.forecast()
                model_works(self._context)
            except Exception as error:  # noqa: BLE001  logged and counted there
                (made,) = degraded_forecasts([landmark], one.loaded, self._context, error)
            one.forecast_id = made.forecast_id
            self._context.metrics.landmarks.observe(1)
            self._context.tell_served([made], [landmark])
        return one, made

    def close(self, name: str, how: str = "closed") -> OpenStream:
        """End it; 410 if there is none any more, 404 if there never was."""
        one = self._open.pop(name, None)
        if one is None:
            raise self._missing(name)
        self.bytes -= one.size
        of_bundle = self._of_bundle[one.loaded]
        of_bundle.remove(name)
        if not of_bundle:
            del self._of_bundle[one.loaded]
        self._context.metrics.streams_ended.labels(how).inc()
        return one

    def _missing(self, name: str) -> ServiceError:
        return stream_gone() if self._names.gave(name) else unknown_stream()

    def expire(self) -> None:
        """Drop those that were left alone for too long."""
        before = self._clock() - self._context.settings.stream_idle_s
        while self._open and (first := next(iter(self._open.values()))).seen < before:
            self.close(first.id, "idle")

    def _drop_oldest_bundle(self) -> None:
        """Let no bundle live on for its streams when there are newer ones enough."""
        while len(self._of_bundle) > MOST_BUNDLES:
            for name in list(next(iter(self._of_bundle.values()))):
                self.close(name, "dropped")

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Drop idle streams, also when nobody calls."""
        sweeping = asyncio.get_running_loop().create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            for name in [*self._open]:
                self.close(name, "dropped")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._context.settings.stream_idle_s / 4, 30.0))
            self.expire()
