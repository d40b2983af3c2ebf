"""A gateway in front of a mock fleet, in one event loop."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
import uvloop
from yarl import URL

from endcast.router.gateway.config import (
    Auth,
    Config,
    Health,
    Limits,
    Listen,
    Log,
    Pool,
    PrefillConfig,
    WorkerConfig,
)
from endcast.router.gateway.fleet.pools import Forecasts
from endcast.router.gateway.gateway import Gateway
from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet
from endcast.router.gateway.serve import Server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def frames(self) -> list[Any]:
        """The data of a stream's events, as plain values; ``[DONE]`` as text."""
        data = [event[6:] for event in self.body.decode().split("\n\n") if event.startswith("data: ")]
        return [one if one == "[DONE]" else msgspec.json.decode(one) for one in data]

    @property
    def text(self) -> str:
        """What the first answer says."""
        said = [frame["choices"][0] for frame in self.frames if frame != "[DONE]" and frame.get("choices")]
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in said if c["index"] == 0)


@dataclass
class Rig:
    """A running gateway with its fleet and a client."""

    fleet: MockFleet
    server: Server
    client: aiohttp.ClientSession

    @property
    def gateway(self) -> Gateway:
        return self.server.gateway

    @property
    def core(self) -> Any:
        return self.gateway.pools[0].core

    async def call(self, path: str, body: Any = None, *, to: str | None = None, **options: Any) -> Answer:
        """Call the gateway, or ``to`` an engine itself; a dict is sent as JSON."""
        data = msgspec.json.encode(body) if isinstance(body, dict) else body
        method = options.pop("method", "GET" if data is None else "POST")
        url = URL((to or self.server.url) + path, encoded=True)
        data = io.BytesIO(data) if data and len(data) > 100_000 else data
        async with self.client.request(method, url, data=data, allow_redirects=False, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def chat(self, tokens: int = 5, *, to: str | None = None, stream: bool = True, **more: Any) -> Answer:
        """A chat whose first answer has so many tokens."""
        message = {"role": "user", "content": "hello there, what is it?"}
        body = {"model": "mock", "messages": [message], "stream": stream, "mock_output_tokens": tokens, **more}
        return await self.call(CHAT, body, to=to)

    async def settled(self) -> None:
        """Nothing runs or waits any more; ``AssertionError`` after ten seconds."""
        async with asyncio.timeout(10):
            while self.core.running or self.core.waiting or self.gateway.busy:
                await asyncio.sleep(0.01)
        core = self.core
        core.decide(0.0)
        prefill = self.gateway.pools[0].prefill
        assert not any(worker.requests or worker.tokens for worker in prefill.workers)
        assert not core.load().any() and not core.active().any() and len(self.gateway.watch) == 0


@pytest.fixture(autouse=True)
def loop_of_production() -> Iterator[None]:
    """Event loops as ``endcast route`` has them; those of the standard library with ``ENDCAST_TEST_LOOP=asyncio``."""
    before = asyncio.get_event_loop_policy()
    if os.environ.get("ENDCAST_TEST_LOOP", "uvloop") == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(before)


RigMaker = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def rig() -> RigMaker:
    """``async with rig(limits={…}, pool={…}, auth=…, log=…, forecasts=…, workers=2, …)``; the rest sets up the mock
    fleet, whose first ``prefill`` engines compute prompts for the others."""

    @asynccontextmanager
    async def make(
        *,
        limits: dict[str, Any] | None = None,
        pool: dict[str, Any] | None = None,
        auth: Auth | None = None,
        log: Log | None = None,
        forecasts: Forecasts | None = None,
        health: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        prefill: int = 0,
        **fleet: Any,
    ) -> AsyncIterator[Rig]:
        settings = MockSettings(**fleet)
        async with MockFleet(settings) as mock:
            workers = tuple(WorkerConfig(url=url, ranks=settings.ranks) for url in mock.urls[prefill:])
            computing = tuple(PrefillConfig(url=url) for url in mock.urls[:prefill])
            told = Config(
                pools=(Pool(workers=workers, prefill=computing, **{"slots": settings.slots, **(pool or {})}),),
                listen=Listen(port=0),
                limits=Limits(**{"drain_s": 5.0, **(limits or {})}),
                health=Health(**{"interval_s": 0.2, "pause_s": 0.05, "timeout_s": 5.0, **(health or {})}),
                auth=auth or Auth(),
                log=log or Log(),
                **(config or {}),
            )
            async with (
                Server(Gateway(told, forecasts=forecasts, rng=np.random.default_rng(0)), told.listen) as server,
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=60),
                ) as client,
            ):
                yield Rig(mock, server, client)

    return make
