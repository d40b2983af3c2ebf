"""The service over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from endcast.errors import EndcastError
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import listen, make_server, url_of
from endcast.testing import ConstantHazardForecaster


@pytest.fixture
def url() -> Iterator[str]:
    server = make_server(create_app(Settings(max_body_bytes=10_000), ConstantHazardForecaster(0.01)))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        yield url_of(listening)
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


def test_forecasts_over_a_socket(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.get("/healthz").status_code == 200
        response = client.post("/v1/forecasts", json={"requests": [{"prompt_tokens": 1}], "horizons": [10]})
        assert response.json()["forecasts"][0]["p_end"]["10"] == pytest.approx(1 - 0.99**10)
        assert client.post("/v1/forecasts", content=b"x" * 20_000).status_code == 413
        assert client.get("/readyz").json()["status"] == "ready"


def test_many_clients_at_once(url: str) -> None:
    def ask(i: int) -> list[str]:
        with httpx.Client(base_url=url) as client:
            body = {"requests": [{"request_id": f"{i}-{k}", "prompt_tokens": 1} for k in range(16)]}
            answers = [client.post("/v1/forecasts", json=body).json() for _ in range(3)]
            return [forecast["request_id"] for answer in answers for forecast in answer["forecasts"]]

    with ThreadPoolExecutor(8) as pool:
        for i, ids in enumerate(pool.map(ask, range(8))):
            assert ids == [f"{i}-{k}" for k in range(16)] * 3


def test_a_client_that_leaves_harms_nobody(url: str) -> None:
    import socket

    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(b"POST /v1/forecasts HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EndcastError, match=f"cannot listen on 127.0.0.1 port {port}: .*in use"):
            listen("127.0.0.1", port)


def test_a_host_that_is_none_is_said() -> None:
    with pytest.raises(EndcastError, match=r"cannot listen on no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0)


def test_urls_are_reachable_ones() -> None:
    with listen("0.0.0.0", 0) as anywhere:
        assert url_of(anywhere) == f"http://127.0.0.1:{anywhere.getsockname()[1]}"
