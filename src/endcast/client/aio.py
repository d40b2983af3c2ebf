"""The service's client for asyncio. One event loop; connections are kept and used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx

from endcast.client import wire
from endcast.client.attempts import MOST_ANSWER_BYTES, Attempts, Options, checked_url
from endcast.client.errors import ServiceUnavailable
from endcast.client.retry import Retries
from endcast.client.wire import Call
from endcast.serving.api.schema import BundleReply, ForecastsReply, HealthReply, ReadyReply, ReloadReply
from endcast.serving.outcomes.schema import OutcomesReply
from endcast.serving.streams.schema import Asked, ClosedReply, StreamReply
from endcast.types import Completion, Landmark

T = TypeVar("T")


class AsyncClient:
    """``Client`` for asyncio: the same methods, to be awaited; use it in an ``async with`` statement."""

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.options = Options() if options is None else options
        self._retries = Retries(self.options.retries)
        self._sleep = sleep
        self._http = httpx.AsyncClient(base_url=checked_url(url), transport=transport, limits=self.options.limits)

    async def forecasts(
        self,
        landmarks: Sequence[Landmark],
        *,
        horizons: Sequence[int] | None = None,
        quantiles: Sequence[float] | None = None,
        curve: bool = False,
        timeout_s: float | None = None,
    ) -> ForecastsReply:
        """``POST /v1/forecasts``: one forecast a landmark, in order."""
        call = wire.forecasts_call(landmarks, horizons=horizons, quantiles=quantiles, curve=curve)
        return await self.send(call, timeout_s=timeout_s)

    async def outcomes(self, completions: Sequence[Completion]) -> OutcomesReply:
        """``POST /v1/outcomes``: how requests ended, joined by ``request_id``; telling one twice counts once."""
        return await self.send(wire.outcomes_call(completions))

    async def open_stream(self, landmark: Landmark, *, asked: Asked | None = None) -> StreamReply:
        """``POST /v1/streams``: the service keeps the text from here on; answered with a forecast if ``asked``."""
        return await self.send(wire.open_stream_call(landmark, asked))

    async def append(
        self, stream_id: str, text: str, generated_tokens: int, *, asked: Asked | None = None
    ) -> StreamReply:
        """Add ``text``, what is new of the output; ``generated_tokens`` counts all so far."""
        return await self.send(wire.append_call(stream_id, text, generated_tokens, asked))

    async def stream_forecast(self, stream_id: str, asked: Asked | None = None) -> StreamReply:
        """Forecast from what the stream has read."""
        return await self.send(wire.stream_forecast_call(stream_id, Asked() if asked is None else asked))

    async def close_stream(self, stream_id: str, outcome: Completion | None = None) -> ClosedReply:
        """Close it, and tell how the generation ended; ``outcome.request`` is not sent."""
        return await self.send(wire.close_stream_call(stream_id, outcome))

    async def bundle(self) -> BundleReply:
        """``GET /v1/bundle``: what is served."""
        return await self.send(wire.bundle_call())

    async def reload_bundle(self, *, timeout_s: float = 60.0) -> ReloadReply:
        """``POST /v1/bundle/reload``: serve what the bundle's folder has now. Needs an admin key where keys are set."""
        return await self.send(wire.reload_call(), timeout_s=timeout_s)

    async def ready(self) -> ReadyReply:
        """``GET /readyz``; ``ServiceUnavailable`` where it is not."""
        return await self.send(wire.ready_call())

    async def health(self) -> HealthReply:
        """``GET /healthz``."""
        return await self.send(wire.health_call())

    async def send(self, call: Call[T], *, timeout_s: float | None = None) -> T:
        """Send a call, again where that is worth it, until it is answered or ``timeout_s`` is over."""
        attempts = Attempts(call, self.options, self._retries, timeout_s)
        while True:
            try:
                return await self._once(call, attempts)
            except ServiceUnavailable as error:
                await self._sleep(attempts.wait_after(error))

    async def _once(self, call: Call[T], attempts: Attempts) -> T:
        try:
            async with (
                asyncio.timeout(attempts.left_s),
                self._http.stream(
                    call.method, call.path, content=call.body, headers=attempts.headers(), timeout=attempts.timeout()
                ) as response,
            ):
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MOST_ANSWER_BYTES:
                        raise attempts.too_large()
        except TimeoutError:
            raise attempts.too_late() from None
        except httpx.RequestError as error:
            raise attempts.not_reached(error) from error
        return wire.read_answer(call, response.status_code, response.headers, bytes(body), attempts.request_id)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
