"""The forecast service as the router's forecaster: a real one on a socket, which dies, hangs, fails and talks nonsense."""

from __future__ import annotations

import asyncio
import json
import pathlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import uvicorn

from endcast import Completion, Landmark, Request
from endcast.client import Client, Options, ServiceUnavailable, UnexpectedAnswer, service_forecaster
from endcast.client.outcomes import OutcomePoster
from endcast.errors import EndcastError
from endcast.forecaster import Forecaster, ForecastStream
from endcast.router.gateway.config import Log, parse_config
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.survival import Forecast
from endcast.testing import ConstantHazardForecaster

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


class Model(ConstantHazardForecaster):
    """The service's; its model fails when told."""

    broken = False

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        if self.broken:
            raise RuntimeError("out of order")
        return super().forecast(landmarks)


class Faults:
    """An ASGI app in front of another that does what it is told to instead."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.fault = ""
        self.calls: list[tuple[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.calls.append((scope["path"], json.loads(body or b"null")))
        if self.fault == "slow":
            await asyncio.sleep(1.5)
        if self.fault in ("500", "garbage"):
            status, said = (500, b"{}") if self.fault == "500" else (200, b"<html>hello</html>")
            await send(
                {"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(said))]}
            )
            await send({"type": "http.response.body", "body": said})
            return

        async def again() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    def told(self) -> list[Any]:
        """All outcomes that came, in calls."""
        return [call["outcomes"] for path, call in self.calls if path == "/v1/outcomes"]


@contextmanager
def service(model: Forecaster, manifest: dict[str, Any] | None = None) -> Iterator[tuple[Faults, int]]:
    """A service on a port of its own, in a thread of its own."""
    faults = Faults(create_app(Settings(), model, manifest))
    server = uvicorn.Server(uvicorn.Config(faults, host="127.0.0.1", port=0, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive(), "the service did not start"
    try:
        yield faults, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


class Wire:
    """A port that leads to another, and can be dead: connections break off, new ones are refused."""

    def __init__(self, to: int) -> None:
        self._to, self._tasks = to, set[asyncio.Task[Any]]()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def dead(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        self._tasks.add(task)
        there = None
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._to)
            await asyncio.gather(_pump(reader, there), _pump(there_reader, writer))
        except asyncio.CancelledError:
            pass  # dead
        finally:
            self._tasks.discard(task)
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def routed(rig: RigMaker, log: pathlib.Path, port: int, **pool: Any) -> AsyncIterator[Any]:
    """A gateway in front of two workers whose forecasts come from the service at ``port``."""
    url = f"http://127.0.0.1:{port}"
    settings = {"policy": "br_h", "forecaster": url, "forecast_timeout_s": 0.3, "slots": 4, **pool}
    pair = service_forecaster(url, timeout_s=settings["forecast_timeout_s"]), PRIOR
    log_settings = Log(path=str(log))
    async with rig(workers=2, slots=4, t_fixed_s=0.01, pool=settings, forecasts=lambda _: pair, log=log_settings) as r:
        yield r


async def metric(r: Any, name: str) -> float:
    text = (await r.call("/metrics")).body.decode()
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"endcast_router_{name}{{")))


async def until_up(r: Any) -> None:
    async with asyncio.timeout(20):
        while await metric(r, "forecasts_up") != 1.0:
            assert (await r.chat(2)).status == 200
            await asyncio.sleep(0.05)


def lines(log: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("fault", ["dead", "slow", "500", "garbage", "degraded"])
def test_without_the_service_routing_is_br_0_at_once_and_comes_back(
    rig: RigMaker, tmp_path: pathlib.Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    log, model = tmp_path / "log.jsonl", Model(0.05, bundle="the service's")

    async def run(faults: Faults, port: int) -> None:
        wire = Wire(port)
        await wire.up()
        async with routed(rig, log, wire.port) as r:
            await until_up(r)
            assert (await r.chat(3)).status == 200
            if fault == "dead":
                await wire.dead()
            elif fault == "degraded":
                model.broken = True
            else:
                faults.fault = fault
            for _ in range(2):
                assert (await r.chat(3)).status == 200
            assert await metric(r, "forecasts_up") == 0.0 and await metric(r, "forecast_priors_total") >= 2.0
            shown = (await r.call("/live")).json["pools"][0]["forecast"]
            assert not shown["up"] and shown["problem"]
            model.broken, faults.fault = False, ""
            if fault == "dead":
                await wire.up()
            await until_up(r)
            assert (await r.call("/live")).json["pools"][0]["forecast"]["bundle"] == "the service's"
            priors = -1.0
            async with asyncio.timeout(20):  # a busy machine may be late once more
                while priors != await metric(r, "forecast_priors_total"):
                    priors = await metric(r, "forecast_priors_total")
                    assert (await r.chat(3)).status == 200
            await r.settled()
        await wire.dead()

    with service(model) as (faults, port):
        asyncio.run(run(faults, port))
    told = lines(log)
    without = [line for line in told if line["attributes"]["reason"].startswith("br_0")]
    assert len(without) >= 2 and told[-1]["attributes"]["reason"] == "br_h"
    assert max(line["attributes"]["wait_s"] for line in without) < 1.4, "nobody waits for a service that hangs"
    said = [record.message for record in caplog.records if record.name == "endcast.router"]
    assert any("routing is br_0" in line for line in said) and any("are back" in line for line in said)


def test_ends_are_told_in_batches_and_joined_with_their_forecasts(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    async def run(port: int) -> None:
        async with routed(rig, tmp_path / "log.jsonl", port, forecast_timeout_s=5.0) as r:
            got = await asyncio.gather(*(r.chat(4) for _ in range(12)))
            assert all(answer.status == 200 for answer in got)
            async with asyncio.timeout(20):
                while await metric(r, "outcomes_posted_total") < 12.0:
                    await asyncio.sleep(0.05)
            assert await metric(r, "outcomes_waiting") == 0.0 == await metric(r, "outcomes_dropped_total")

    with service(Model(0.05)) as (faults, port):
        asyncio.run(run(port))
        told = [one for call in faults.told() for one in call]
        asked = {
            one["request_id"] for path, call in faults.calls if path == "/v1/forecasts" for one in call["requests"]
        }
        assert len(told) == 12 and {one["request_id"] for one in told} == asked
        assert {(one["output_tokens"], one["end"]) for one in told} == {(4, "stop")}
        assert len(faults.told()) <= 3, "not one call for each"


def test_a_bundle_that_reads_outputs_gets_them(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    async def run(port: int) -> None:
        async with routed(rig, tmp_path / "log.jsonl", port, forecast_timeout_s=5.0) as r:
            assert (await r.chat(3)).status == 200  # the first answer tells what the bundle reads
            assert (await r.chat(24)).status == 200

    with service(Model(0.05), {"output": {"every": 4}}) as (faults, port):
        asyncio.run(run(port))
        asked = [one for path, call in faults.calls if path == "/v1/forecasts" for one in call["requests"]]
        assert any(one.get("generated_tokens", 0) >= 4 and one.get("output") for one in asked)


def test_a_call_that_is_refused_is_no_forecast() -> None:
    model = Model(0.05)
    with service(model) as (faults, port):
        forecaster = service_forecaster(f"http://127.0.0.1:{port}", timeout_s=5.0)
        assert isinstance(forecaster, Forecaster)
        stream = forecaster.open(Request(request_id="r", prompt_tokens=4))
        assert isinstance(stream, ForecastStream) and stream.forecast().p_end(16) == pytest.approx(1 - 0.95**16)
        assert forecaster.bundle == model.bundle
        with pytest.raises(ServiceUnavailable, match="refuses"):
            forecaster.forecast([Landmark(request=Request(request_id="r" * 5000, prompt_tokens=4))])
        faults.fault = "garbage"
        with pytest.raises(UnexpectedAnswer):
            stream.forecast()
        forecaster.close()


def test_outcomes_are_kept_while_the_service_is_away() -> None:
    with service(Model(0.05)) as (faults, port):
        faults.fault = "500"
        poster = OutcomePoster(Client(f"http://127.0.0.1:{port}", Options(timeout_s=5.0)), every_s=0.02)
        ends = [Completion(request=Request(request_id=f"r{i}", prompt_tokens=1), output_tokens=5) for i in range(3)]
        poster.put([*ends, Completion(request=Request(request_id="", prompt_tokens=1), output_tokens=5)])
        for _ in range(500):
            if poster.problem:
                break
            threading.Event().wait(0.01)
        assert poster.waiting == 3 and poster.posted == 0 and poster.dropped == 1, "one had no id"
        faults.fault = ""
        poster.stop(10.0)
        assert (poster.waiting, poster.posted, poster.problem) == (0, 3, "")


POOL = '[[pools]]\nworkers = [{ url = "http://a:1" }]\n'


def test_the_file_and_the_command_line_name_the_service() -> None:
    pool = parse_config(f'{POOL}forecaster = "https://forecasts:8080"\nforecaster_key = "k"\n').pools[0]
    assert pool.forecasts_by_service and pool.policy == "olp_br_h"
    assert parse_config(f"{POOL}", forecaster="http://f:1").pools[0].forecaster == "http://f:1"
    assert not parse_config(f'{POOL}forecaster = "bundle"\n').pools[0].forecasts_by_service
    for more in ('forecaster = "http://f:1/?x=1"', 'forecaster = "bundle"\nforecaster_key = "k"'):
        with pytest.raises(EndcastError, match=r"url must be|forecaster_key"):
            parse_config(f"{POOL}{more}\n")
