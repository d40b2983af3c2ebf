"""Both clients against the service itself, over a socket: every method, keys, kept connections, slow answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from endcast import Completion, EndReason, Forecast, Landmark, Request
from endcast.client import (
    NO_RETRIES,
    Asked,
    AsyncClient,
    CallRefused,
    Client,
    Options,
    RemoteForecaster,
    ServiceUnavailable,
)
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import listen, make_server, url_of
from endcast.testing import ConstantHazardForecaster

KEY = "client-key-000001"
LANDMARK = Landmark(request=Request(request_id="r1", prompt_tokens=9, max_tokens=400), generated_tokens=3)


class Sluggish(ConstantHazardForecaster):
    """Takes two seconds for a model of that name."""

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        if any(each.request.model == "slow" for each in landmarks):
            time.sleep(2.0)
        return super().forecast(landmarks)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log: Path = tmp_path_factory.mktemp("outcomes")
    app = create_app(Settings(api_keys=(KEY,), outcome_log=log, inline_body_bytes=0), Sluggish(0.01))
    server = make_server(app)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until = time.monotonic() + 60
            while not server.started and time.monotonic() < until:
                time.sleep(0.01)
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join(60)


class Awaited:
    """An ``AsyncClient`` whose methods are called as those of ``Client`` are."""

    def __init__(self, url: str, options: Options) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url, options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *given, **named: self._loop.run_until_complete(method(*given, **named))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.close()


both = pytest.mark.parametrize("kind", [Client, Awaited], ids=["sync", "async"])


@both
def test_every_call(url: str, kind: Callable[..., Any]) -> None:
    with kind(url, Options(key=KEY, timeout_s=30.0)) as client:
        assert client.health().status == "ok" and client.ready().status == "ready"
        assert client.bundle().bundle == "constant-hazard"
        name = f"call-{kind.__name__}"
        request = Request(request_id=name, prompt_tokens=9, max_tokens=400)
        reply = client.forecasts([Landmark(request=request)], horizons=[16], quantiles=[0.5], curve=True)
        (forecast,) = reply.forecasts
        assert forecast.request_id == name and forecast.p_end["16"] == pytest.approx(1 - 0.99**16, abs=1e-6)
        assert forecast.curve.further_tokens[:3] == [0, 1, 2]
        done = Completion(request=request, output_tokens=50, end=EndReason.LENGTH, finished_s=1.7e9)
        assert client.outcomes([done]).statuses == ["accepted"]
        assert client.outcomes([done]).statuses == ["duplicate"], "told again, it counts once"


@both
def test_streams(url: str, kind: Callable[..., Any]) -> None:
    with kind(url, Options(key=KEY, timeout_s=30.0)) as client:
        request = Request(request_id=f"stream-{kind.__name__}", prompt_tokens=9)
        opened = client.open_stream(Landmark(request=request), asked=Asked(horizons=[10]))
        assert opened.forecast.p_end == pytest.approx({"10": 1 - 0.99**10}, abs=1e-6)
        assert client.append(opened.stream_id, "some text", 7).generated_tokens == 7
        assert client.stream_forecast(opened.stream_id).forecast.expected_output_tokens == pytest.approx(107, rel=1e-3)
        end = Completion(request=request, output_tokens=20)
        assert client.close_stream(opened.stream_id, end).outcome == "accepted"
        with pytest.raises(CallRefused) as error:
            client.append(opened.stream_id, "more", 8)
        assert error.value.status == 410


@both
def test_a_key_is_needed_and_wrong_ones_are_said(url: str, kind: Callable[..., Any]) -> None:
    for key in (None, "x" * 20):
        with kind(url, Options(key=key)) as client, pytest.raises(CallRefused) as error:
            client.forecasts([LANDMARK])
        assert error.value.status == 401 and error.value.code == "unauthenticated" and error.value.request_id


@both
def test_a_forecast_key_reloads_nothing(url: str, kind: Callable[..., Any]) -> None:
    with kind(url, Options(key=KEY)) as client, pytest.raises(CallRefused) as error:
        client.reload_bundle()
    assert error.value.status == 403


@both
def test_a_slow_answer_is_not_waited_for(url: str, kind: Callable[..., Any]) -> None:
    slow = Landmark(request=Request(request_id="slow", prompt_tokens=1, model="slow"))
    with kind(url, Options(key=KEY, retries=NO_RETRIES)) as client:
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable):
            client.forecasts([slow], timeout_s=0.3)
        assert time.monotonic() - began < 1.9


@both
def test_what_arrives_too_slowly_is_given_up(kind: Callable[..., Any]) -> None:
    """Each byte comes in time, the answer does not."""

    async def drip(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})

    server = make_server(drip, Settings(grace_s=0))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with kind(url_of(listening), Options(retries=NO_RETRIES)) as client:
                began = time.monotonic()
                with pytest.raises(ServiceUnavailable, match=r"no answer within 0\.5 s"):
                    client.forecasts([LANDMARK], timeout_s=0.5)
                assert time.monotonic() - began < 3.0
        finally:
            server.should_exit = True
            thread.join(60)


def test_connections_are_used_again(url: str) -> None:
    with Client(url, Options(key=KEY)) as client:
        opened = count_connections(client)
        for _ in range(20):
            client.forecasts([LANDMARK])
        assert opened() == 1


def count_connections(client: Client) -> Callable[[], int]:
    transport = client._http._transport
    assert isinstance(transport, httpx.HTTPTransport)
    return lambda: len(transport._pool.connections)


def test_threads_share_a_client(url: str) -> None:
    with Client(url, Options(key=KEY, timeout_s=30.0)) as client:
        results: list[str | None] = []

        def ask(i: int) -> None:
            request = Request(request_id=f"t{i}", prompt_tokens=1)
            results.append(client.forecasts([Landmark(request=request)]).forecasts[0].request_id)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(filter(None, results)) == sorted(f"t{i}" for i in range(16))


def test_a_router_can_use_it(url: str) -> None:
    with Client(url, Options(key=KEY, timeout_s=30.0)) as client:
        remote = RemoteForecaster(client)
        stream = remote.open(Request(request_id="routed", prompt_tokens=5, max_tokens=100))
        stream.append("text", 8)
        batch = remote.forecast_batch([stream, LANDMARK], 16)
        assert batch.p_end == pytest.approx([1 - 0.99**16] * 2, abs=1e-6)
        assert batch.advance(4).p_end == pytest.approx([1 - 0.99**16] * 2, abs=1e-5)
        stream.close(end="stop", output_tokens=12)
        assert remote.dropped_completions == 0
