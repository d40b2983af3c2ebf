"""``docs/examples``: a bare asyncio proxy and a routing logic of production-stack's router, in front of the mock fleet."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pathlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any

import aiohttp
import pytest
import uvicorn

from endcast.forecaster import ForecastStream
from endcast.router.gateway.config import Limits, Pool, WorkerConfig
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet
from endcast.router.gateway.routing.core import RoutingCore
from endcast.survival import SurvivalBatch
from endcast.testing import ConstantHazardForecaster
from endcast.training.train import Trained
from endcast.types import Landmark

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"
STAND_INS = pathlib.Path(__file__).parent / "stand_ins"
CHAT = "/v1/chat/completions"


class Reader(ConstantHazardForecaster):
    """Reads outputs, and notes when it was asked."""

    refresh_every = 4

    def __init__(self) -> None:
        super().__init__(0.05)
        self.asked: list[int] = []

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        self.asked += [one.generated_tokens for one in landmarks]
        return super().forecast_batch(landmarks, horizon)


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Caller:
    """A client of a proxy at ``url``."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self.url = http, url

    async def chat(self, tokens: int, *, stream: bool = True, **more: Any) -> tuple[int, bytes]:
        """Status and body of a chat with an answer of so many tokens."""
        message = {"role": "user", "content": "hello there, what is it?"}
        body = {"model": "mock", "messages": [message], "stream": stream, "mock_output_tokens": tokens, **more}
        return await self.post(CHAT, body)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of the answer."""
        async with self._http.post(self.url + path, json=body) as answer:
            return answer.status, await answer.read()

    async def leave(self, after_s: float, *, stream: bool) -> None:
        """A client that leaves."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.chat(2000, stream=stream), after_s)

    async def loads(self) -> dict[str, Any]:
        """The books that the proxy shows."""
        async with self._http.get(f"{self.url}/loads") as answer:
            told: dict[str, Any] = await answer.json()
            return told


@asynccontextmanager
async def proxy(*arguments: str) -> AsyncIterator[Caller]:
    """The first example as a process; it must print no error."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / "asyncio_proxy.py"), "--port", "0", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert process.stdout and process.stderr
    try:
        line = (await process.stdout.readline()).decode()
        assert line.startswith("routing to 2 workers at http://127.0.0.1:"), await process.stderr.read()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Caller(http, line.split()[-1])
    finally:
        process.terminate()
        said = await process.stderr.read()
        await process.wait()
    assert said == b""


async def soon(holds: Any) -> None:
    """``holds()`` within ten seconds."""
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.02)


def in_engines(fleet: MockFleet) -> int:
    return sum(len(rank.running) + len(rank.waiting) for rank in fleet.ranks)


async def idle(caller: Caller, fleet: MockFleet) -> None:
    """Books and engines are at zero, within ten seconds."""

    async def holds() -> bool:
        told = await caller.loads()
        return told["waiting"] == told["running"] == 0 and not any(told["load"].values()) and not in_engines(fleet)

    await soon(holds)


def test_the_asyncio_proxy_places_streams_and_forgets() -> None:
    async def run() -> None:
        async with (
            MockFleet(MockSettings(workers=2, slots=2, t_fixed_s=0.005)) as fleet,
            proxy("--slots", "2", *fleet.urls) as caller,
        ):
            status, streamed = await caller.chat(4)
            assert status == 200 and streamed.endswith(b"data: [DONE]\n\n") and b'"usage"' not in streamed
            status, told = await caller.chat(6, stream_options={"include_usage": True})
            last = json.loads(told.split(b"\n\n")[-3].removeprefix(b"data: "))
            assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6, "the client asked for it"
            status, whole = await caller.chat(6, stream=False, n=2)
            assert status == 200 and len(json.loads(whole)["choices"]) == 2
            assert (await caller.chat(6, stream=False, max_tokens=0))[0] == 400, "the engine judges"
            await idle(caller, fleet)

            async def full() -> bool:
                """On each, two prompts of 19 tokens and some of what their streams have told since."""
                books = await caller.loads()
                return books["running"] == 4 and bool(min(books["load"].values()) > 50)

            many = [asyncio.create_task(caller.chat(80)) for _ in range(9)]
            await soon(full)
            assert (await caller.loads())["waiting"] == 5
            assert [len(rank.running) for rank in fleet.ranks] == [2, 2], "what waits, waits in the proxy"
            assert not any(rank.waiting for rank in fleet.ranks)
            assert {status for status, _ in await asyncio.gather(*many)} == {200}
            await idle(caller, fleet)

            await asyncio.gather(*(caller.leave(0.15, stream=i % 2 == 0) for i in range(8)))
            await idle(caller, fleet)  # of those that ran as of those that waited

            running = [asyncio.create_task(caller.chat(80)) for _ in range(4)]
            await soon(full)
            await fleet.kill(0)
            ends = [body for _, body in await asyncio.gather(*running)]
            assert all(body.endswith(b"data: [DONE]\n\n") for body in ends)
            assert sorted(b"the engine failed" in body for body in ends) == [False, False, True, True]
            assert [(await caller.chat(3))[0] for _ in range(4)] == [200] * 4, "it gets nothing for a while"
            await idle(caller, fleet)

    asyncio.run(run())


def test_the_asyncio_proxy_takes_a_bundle(bundle_of: Callable[[str], Trained]) -> None:
    module = example("asyncio_proxy")
    core: RoutingCore = module.core_for(["http://a:1", "http://b:1"], 2, str(bundle_of("kaplan_meier").path))
    ticket = core.open(module.intake_of(read_body(b'{"prompt": "hello", "max_tokens": 9}', chat=False)))
    assert core.decide(0.0) == [ticket] and (ticket.reason, ticket.intake.max_tokens) == ("br_h", 9)
    assert ticket.expected is not None and 1 <= ticket.expected <= 9


def test_the_asyncio_proxy_tells_texts_and_ends_to_a_forecaster(capsys: pytest.CaptureFixture[str]) -> None:
    module, reader = example("asyncio_proxy"), Reader()

    async def run() -> None:
        async with MockFleet(MockSettings(workers=2, slots=2, t_fixed_s=0.005)) as fleet:
            workers = tuple(WorkerConfig(url=url) for url in fleet.urls)
            pool = Pool(workers=workers, slots=2, policy="br_h", forecaster="x")
            core = RoutingCore(pool, desk=Inline(reader, ConstantHazardForecaster(0.01), horizon=pool.horizon))
            serving = asyncio.create_task(module.serve(core, "127.0.0.1", 0))
            said = ""
            while not said:
                await asyncio.sleep(0.01)
                said = capsys.readouterr().out
            async with aiohttp.ClientSession() as http:
                caller = Caller(http, said.split()[-1])
                assert (await caller.chat(14))[0] == (await caller.chat(9, stream=False))[0] == 200
                assert (await caller.chat(14, max_tokens=5))[0] == 200
                await caller.leave(0.1, stream=True)
                await idle(caller, fleet)
                for rank in fleet.ranks:
                    rank.faults.unavailable = 1
                assert [(await caller.chat(3))[0] for _ in range(2)] == [503, 503], "one after the other is left alone"
                assert not core.cluster.accepting.any()
                await idle(caller, fleet)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())
    assert reader.asked[:4] == [0, 4, 8, 12], "at admission, and every four tokens of the stream"
    ends = [(one.output_tokens, one.end.value) for one in reader.observed]
    assert ends[:3] == [(14, "stop"), (9, "stop"), (5, "length")]
    assert [end for _, end in ends[3:]] == ["abort", "error", "error"]


@pytest.fixture
def production_stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The second example, within the stand-in for production-stack's router."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    module = example("production_stack")
    monkeypatch.setattr(module, "PAUSE_S", 60.0)
    monkeypatch.setattr(module, "Limits", lambda: Limits(no_worker_wait_s=0.05))
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm_router"]:
        del sys.modules[name]


@asynccontextmanager
async def stack(
    module: ModuleType, fleet: MockFleet, monkeypatch: pytest.MonkeyPatch, *more: str
) -> AsyncIterator[Any]:
    """Its ``main``, as a server of this event loop: the router's logic, and a client."""
    arguments = ["--slots", "2", "--service-discovery", "static", "--routing-logic", "roundrobin", *more]
    models = ",".join("mock" for _ in fleet.urls)
    monkeypatch.setattr(
        sys, "argv", ["x", *arguments, "--static-backends", ",".join(fleet.urls), "--static-models", models]
    )
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.append({"app": app, **options}))
    module.main()
    app = asked[0]["app"]
    assert asked[0]["port"] == 8001, "production-stack's own options are its own"
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none"))
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # uvicorn closes connections behind an error
        async with aiohttp.ClientSession(connector=connector) as http:
            yield app, Caller(http, f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        await serving


def at_rest(core: RoutingCore, fleet: MockFleet) -> bool:
    return not (core.waiting or core.running or core.load().any() or core.active().any() or in_engines(fleet))


def test_production_stack_waits_for_slots_and_ends_exactly(
    production_stack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with (
            MockFleet(MockSettings(workers=2, slots=2, t_fixed_s=0.005)) as fleet,
            stack(production_stack, fleet, monkeypatch, "--max-instance-failover-reroute-attempts", "1") as (
                app,
                caller,
            ),
        ):
            assert (await caller.chat(6))[1].endswith(b"data: [DONE]\n\n")
            assert json.loads((await caller.chat(6, stream=False))[1])["usage"]["completion_tokens"] == 6
            (only,) = app.state.router.fleets
            core = only.core
            await soon(lambda: asyncio.sleep(0, at_rest(core, fleet)))

            many = [asyncio.create_task(caller.chat(80)) for _ in range(9)]
            await soon(lambda: asyncio.sleep(0, min(core.load()) > 40))
            assert (core.waiting, core.running) == (5, 4) and [len(rank.running) for rank in fleet.ranks] == [2, 2]
            assert {status for status, _ in await asyncio.gather(*many)} == {200}
            await soon(lambda: asyncio.sleep(0, at_rest(core, fleet)))

            await asyncio.gather(*(caller.leave(0.15, stream=True) for _ in range(8)))
            await soon(lambda: asyncio.sleep(0, at_rest(core, fleet)))

            await fleet.kill(0)
            assert {status for status, _ in await asyncio.gather(*(caller.chat(3) for _ in range(4)))} == {200}
            assert only.dispatcher.up == 1, "tried on the other one"
            await fleet.kill(1)
            status, told = await caller.chat(3)
            assert (status, json.loads(told)) == (503, {"detail": "no engine is reachable"})
            assert only.dispatcher.up == 0
            await soon(lambda: asyncio.sleep(0, at_rest(core, fleet)))

    asyncio.run(run())


def test_production_stack_follows_engines_that_come_and_go(
    production_stack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with (
            MockFleet(MockSettings(workers=3, slots=2, t_fixed_s=0.005)) as fleet,
            stack(production_stack, fleet, monkeypatch) as (app, caller),
        ):
            endpoints = app.state.endpoints
            app.state.endpoints = endpoints[:2]
            running = [asyncio.create_task(caller.chat(200)) for _ in range(5)]
            await soon(lambda: asyncio.sleep(0, in_engines(fleet) == 4))
            app.state.endpoints = endpoints[1:]
            assert (await caller.chat(3))[0] == 200
            (only,) = app.state.router.fleets
            assert only.urls == set(fleet.urls[1:]) and fleet.ranks[2].seen == 2, "what waited, and the next one"
            assert {status for status, _ in await asyncio.gather(*running)} == {200}
            await soon(lambda: asyncio.sleep(0, at_rest(only.core, fleet)))
            status, _ = await caller.post("/v1/embeddings", {"model": "mock", "input": "x"})
            assert status == 404 and at_rest(only.core, fleet), "the engine's answer; no slot is taken"
            fleet.ranks[1].faults.unavailable = 1
            await fleet.kill(2)
            assert sorted([(await caller.chat(3))[0] for _ in range(2)]) == [500, 503], "without another attempt"
            assert only.dispatcher.up == 0, "one after the other was left alone"
            await soon(lambda: asyncio.sleep(0, at_rest(only.core, fleet)))

    asyncio.run(run())
