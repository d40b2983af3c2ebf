"""What hostile or broken clients do to a service on a socket: 4xx in a small answer, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn

from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.processes import connections
from endcast.serving.processes.run import listen, make_server, url_of
from endcast.testing import ConstantHazardForecaster

FORECASTS = b"POST /v1/forecasts HTTP/1.1\r\nhost: x\r\n"
BODY = b'{"requests": [{"prompt_tokens": 1}]}'


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[uvicorn.Server, tuple[str, int]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "LONGEST_HEAD_S", 0.5)
        patch.setattr(connections, "LONGEST_UNREAD_S", 0.5)
        told = Settings(max_body_bytes=2_000_000, body_timeout_s=0.5, max_connections=80)
        server = make_server(create_app(told, ConstantHazardForecaster(0.01)), told)
        with listen("127.0.0.1", 0) as listening:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()
            until = time.monotonic() + 20
            while not server.started and time.monotonic() < until:
                time.sleep(0.01)
            host, port = url_of(listening).removeprefix("http://").split(":")
            httpx.post(f"http://{host}:{port}/v1/forecasts", content=BODY)  # compiled by now
            yield server, (host, int(port))
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def address(running: tuple[uvicorn.Server, tuple[str, int]]) -> tuple[str, int]:
    return running[1]


@pytest.fixture
def connection(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=10) as opened:
        yield opened


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and all that comes until the service closes."""
    came = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            came += part
            head, found, rest = came.partition(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if found and length and len(rest) >= int(length[0].split(b":")[1]):
                break
    assert came.startswith(b"HTTP/1.1 "), came[:100]
    return int(came.split()[1]), came


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def code(came: bytes) -> str:
    found: str = json.loads(came.partition(b"\r\n\r\n")[2])["error"]["code"]
    return found


@pytest.mark.parametrize(
    ("data", "status", "name"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, 400, "malformed_http"),
        (b"GET / NOT/HTTP\r\n\r\n", 400, "malformed_http"),
        (FORECASTS + b"content-length: -1\r\n\r\n", 400, "malformed_http"),
        (FORECASTS + b"content-length: 9\r\ncontent-length: 8\r\n\r\n", 400, "malformed_http"),
        (FORECASTS + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "malformed_http"),
        (FORECASTS + b"x: y\r\n" * 1_000 + b"\r\n", 431, "head_too_large"),
        (FORECASTS + b"x: " + b"y" * 200_000, 431, "head_too_large"),
        (FORECASTS + b"y" * 200_000, 431, "head_too_large"),
        (b"GET /" + b"y" * 200_000, 431, "head_too_large"),
        (FORECASTS + b"content-length: 100000000\r\n\r\n", 413, "body_too_large"),
        (FORECASTS + b"content-length: 99999999999999999999999\r\n\r\n", 400, "malformed_http"),
        (FORECASTS + b"transfer-encoding: chunked\r\n\r\n" + b"100000\r\n" + b" " * 0x100000 + b"\r\n100000\r\n" + b" " * 0x100000,
         413, "body_too_large"),
        (FORECASTS + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(gzip.compress(b" " * 10**7))
         + gzip.compress(b" " * 10**7), 415, "encoded_body"),
        (FORECASTS + b"content-encoding: br\r\ncontent-length: 0\r\n\r\n", 415, "encoded_body"),
        (FORECASTS + b"content-type: application/xml\r\ncontent-length: 0\r\n\r\n", 415, "other_content"),
        (FORECASTS + b"content-length: 0\r\n\r\n", 400, "malformed_json"),
    ],
)  # fmt: skip
def test_what_breaks_a_limit_is_refused(connection: socket.socket, data: bytes, status: int, name: str) -> None:
    send(connection, data)
    told, came = answer(connection)
    assert (told, code(came)) == (status, name)
    assert len(came) < 4_096


def test_a_head_that_drips_is_refused(connection: socket.socket) -> None:
    send(connection, b"POST /v1/forecasts HT")
    told, came = answer(connection)
    assert told == 408 and code(came) == "slow_head"


def test_a_connection_that_says_nothing_is_closed(connection: socket.socket) -> None:
    assert answer(connection)[0] == 408


def test_a_body_that_drips_is_refused(connection: socket.socket) -> None:
    send(connection, FORECASTS + b"content-length: 100\r\n\r\n{")
    told, came = answer(connection)
    assert told == 408 and code(came) == "slow_body"
    assert b"connection: close" in came


def test_a_deadline_ends_the_wait_for_a_body(connection: socket.socket) -> None:
    started = time.monotonic()
    send(connection, FORECASTS + b"endcast-deadline-ms: 30\r\ncontent-length: 100\r\n\r\n{")
    assert answer(connection)[0] == 504 and time.monotonic() - started < 0.45


def test_several_calls_on_one_connection_are_answered_in_order(connection: socket.socket) -> None:
    """Also with limits on heads, which begin anew with each."""
    call = FORECASTS + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    for _ in range(3):
        send(connection, call)
        assert answer(connection)[0] == 200
        time.sleep(0.3)  # in all longer than a head may take
    send(connection, FORECASTS + b"x: y\r\n" * 1_000 + b"\r\n")
    assert answer(connection)[0] == 431


def test_a_client_that_never_reads_is_dropped(running: tuple[uvicorn.Server, tuple[str, int]]) -> None:
    server, address = running
    requests = ",".join(['{"prompt_tokens": 1}'] * 4_000)
    body = f'{{"requests": [{requests}], "curve": true}}'.encode()
    with socket.create_connection(address, timeout=30) as deaf:
        deaf.sendall(FORECASTS + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.2)
        assert httpx.get(f"http://{address[0]}:{address[1]}/healthz").status_code == 200
        until = time.monotonic() + 60
        while len(server.server_state.connections) > 0:
            assert time.monotonic() < until, "it is still being served"
            time.sleep(0.1)


def test_a_large_answer_comes_whole_to_whoever_reads_it(address: tuple[str, int]) -> None:
    requests = [{"prompt_tokens": 1, "request_id": str(i)} for i in range(4_000)]
    answer = httpx.post(
        f"http://{address[0]}:{address[1]}/v1/forecasts", json={"requests": requests, "curve": True}, timeout=60
    )
    told = answer.json()["forecasts"]
    assert answer.headers["content-length"] == str(len(answer.content)) and len(answer.content) > 2_000_000
    assert [one["request_id"] for one in told] == [one["request_id"] for one in requests]


def test_no_more_connections_than_there_may_be(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(100)]
        time.sleep(0.1)
        for connection in opened:
            connection.settimeout(0.05)
        closed = 0
        for connection in opened:
            try:
                closed += connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed += 1
        assert closed >= 15
    time.sleep(0.1)
    assert httpx.get(f"http://{address[0]}:{address[1]}/healthz").status_code == 200


def test_nobody_waits_for_large_batches(address: tuple[str, int]) -> None:
    """Health checks beside batches of 4,096: far quicker than a batch. (How quick, ``benchmarks/bench_service.py`` says.)"""
    url = f"http://{address[0]}:{address[1]}"
    requests = ",".join(['{"prompt_tokens": 1}'] * 4_096)
    body = f'{{"requests": [{requests}], "horizons": [16]}}'.encode()

    def batch(_: int) -> float:
        started = time.perf_counter()
        assert httpx.post(f"{url}/v1/forecasts", content=body, timeout=60).status_code == 200
        return time.perf_counter() - started

    waits = []
    with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=url) as client:
        running = [pool.submit(batch, i) for i in range(2)]
        while not all(one.done() for one in running):
            started = time.perf_counter()
            assert client.get("/healthz").status_code == 200
            waits.append(time.perf_counter() - started)
    assert sorted(waits)[len(waits) // 2] < max(one.result() for one in running) / 3
