"""Connections to engines: whatever an engine sends, however it is cut, a call ends with its response or an error."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from endcast.router.gateway.config import Health, Limits
from endcast.router.gateway.engines.connection import Connection
from endcast.router.gateway.engines.response import EngineError, EngineResponse, NotConnected
from endcast.router.gateway.engines.upstream import Engines, UpstreamError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n1;x=y\r\n,\r\n6\r\nsecond\r\n0\r\nX-T: 1\r\n\r\n"
SIZED = b"HTTP/1.1 201 Made so\r\ncontent-length: 12\r\nX-Two: a\r\nx-two: b\r\n\r\nfirst,second"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\n\r\nfirst,second"
PROVISIONAL = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED


class Wire(asyncio.Transport):
    """A transport without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = self.paused = False

    def write(self, data: Any) -> None:
        self.sent += data

    def abort(self) -> None:
        self.closed = True

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class Link:
    """A connection with its two ends in hand."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.idle, self.lost = [], []  # type: list[Connection], list[Connection]
        self.connection = Connection(self.idle.append, self.lost.append)
        self.connection.connection_made(self.wire)

    def call(self, *, bodiless: bool = False) -> asyncio.Task[EngineResponse]:
        return asyncio.create_task(self.connection.call(b"GET / HTTP/1.1\r\n\r\n", None, bodiless=bodiless))

    def feed(self, data: bytes, *cuts: int) -> None:
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            if not self.wire.closed:
                self.connection.data_received(data[start:end])

    def hang_up(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)


async def answered(link: Link, data: bytes, *cuts: int, then_closed: bool = False) -> tuple[EngineResponse, bytes]:
    call = link.call()
    await asyncio.sleep(0)
    link.feed(data, *cuts)
    if then_closed:
        link.hang_up()
    response = await call
    return response, await response.read()


@pytest.mark.parametrize("data", [CHUNKED, SIZED, UNTIL_CLOSED, PROVISIONAL], ids=["chunked", "sized", "closed", "1xx"])
def test_a_response_is_the_same_cut_at_every_byte(data: bytes) -> None:
    async def main() -> None:
        closed = data == UNTIL_CLOSED
        for cut in range(len(data)):
            link = Link()
            response, body = await answered(link, data, cut, then_closed=closed)
            assert body == b"first,second"
            assert response.status == (201 if data.endswith(SIZED) else 200)
            if response.status == 201:
                assert response.reason == "Made so" and response.headers.getall("X-Two") == ["a", "b"]
                assert response.content_length == 12
            assert link.idle == ([] if closed else [link.connection]) and link.wire.closed is False
            response.close()
            assert not link.wire.closed  # it came whole

    asyncio.run(main())


@pytest.mark.parametrize("data", [CHUNKED, SIZED], ids=["chunked", "sized"])
def test_one_that_stops_before_its_end_is_an_error_and_never_a_short_body(data: bytes) -> None:
    async def main() -> None:
        for cut in range(len(data)):
            link = Link()
            call = link.call()
            await asyncio.sleep(0)
            link.feed(data[:cut])
            link.hang_up()
            told = b""
            with pytest.raises(EngineError):
                response = await call
                while piece := await response.readany():
                    told += piece
            assert b"first,second".startswith(told) and link.lost == [link.connection]
            with pytest.raises(EngineError):
                await link.call()

    asyncio.run(main())


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: CHUNKED[:60] + tail), st.integers(0, 60))
def test_whatever_comes_a_call_ends_when_the_connection_does(data: bytes, cut: int) -> None:
    async def main() -> None:
        link = Link()
        call = link.call()
        await asyncio.sleep(0)
        link.feed(data, min(cut, len(data)))
        link.hang_up()
        async with asyncio.timeout(5):
            with suppress(EngineError):
                response = await call
                await response.read()

    asyncio.run(main())


def test_connections_are_used_again_unless_told_otherwise() -> None:
    async def main() -> None:
        link = Link()
        for _ in range(3):
            assert (await answered(link, SIZED))[1] == b"first,second"
        assert len(link.idle) == 3 and not link.wire.closed
        await answered(link, SIZED.replace(b"\r\nX-Two", b"\r\nConnection: close\r\nX-Two", 1))
        assert len(link.idle) == 3 and link.wire.closed

    asyncio.run(main())


def test_what_comes_unasked_closes_a_connection() -> None:
    async def main() -> None:
        behind, idle = Link(), Link()
        assert (await answered(behind, SIZED + b"HTTP/1.1 200 OK\r\n"))[1] == b"first,second"
        assert behind.wire.closed and not behind.idle
        await answered(idle, SIZED)
        idle.feed(SIZED)
        assert idle.wire.closed and idle.lost == [idle.connection]

    asyncio.run(main())


def test_answers_without_a_body() -> None:
    async def main() -> None:
        head = Link()
        call = head.call(bodiless=True)
        await asyncio.sleep(0)
        head.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
        response = await call
        assert response.content_length == 99 and await response.read() == b"" and head.wire.closed
        for status in (b"204 No Content", b"304 Not Modified"):
            link = Link()
            _, body = await answered(link, b"HTTP/1.1 " + status + b"\r\n\r\n")
            assert body == b"" and link.idle == [link.connection]

    asyncio.run(main())


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n",
        b"HTTP/1.1 200 OK\r\nX-Y: " + b"z",
        CHUNKED[:-9] + b"X-T: " + b"z",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"H",
    ],
    ids=["headers", "header", "trailer", "provisional", "garbage"],
)
def test_framing_without_an_end_is_bounded(endless: bytes) -> None:
    async def main() -> None:
        link = Link()
        call = link.call()
        await asyncio.sleep(0)
        link.feed(endless)
        fed = 0
        while not link.wire.closed and fed < 2_000_000:
            piece = endless[-1:] * 5000 if not endless.endswith(b"\r\n") else endless.rpartition(b"OK\r\n")[2] * 500
            link.feed(piece)
            fed += len(piece)
        assert link.wire.closed and fed < 600_000
        with pytest.raises(EngineError):
            await (await call).read()

    asyncio.run(main())


def test_a_slow_reader_stops_the_engine_and_loses_nothing() -> None:
    async def main() -> None:
        link = Link()
        call = link.call()
        await asyncio.sleep(0)
        link.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n")
        response = await call
        for _ in range(2):
            link.feed(b"x" * 100_000)
        assert not link.wire.is_reading()
        assert len(await response.readany()) == 200_000
        link.feed(b"x" * 200_000)
        assert await response.read() == b"x" * 200_000
        assert link.wire.is_reading() and link.idle == [link.connection]

    asyncio.run(main())


def test_a_sink_gets_what_comes_until_it_takes_no_more() -> None:
    async def main() -> None:
        link, got = Link(), list[bytes]()

        def sink(data: bytes) -> bool:
            got.append(data)
            return data != b"stop"

        call = link.call()
        await asyncio.sleep(0)
        link.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        response = await call
        passing = asyncio.create_task(response.pass_to(sink))
        await asyncio.sleep(0)
        link.feed(b"1\r\na\r\n1\r\nb\r\n")
        link.feed(b"4\r\nstop\r\n")
        link.feed(b"1\r\nc\r\n")
        await passing
        assert got == [b"ab", b"stop"] and await response.readany() == b"c"
        passing = asyncio.create_task(response.pass_to(sink))
        await asyncio.sleep(0)
        link.feed(b"1\r\nd\r\n0\r\n\r\n")
        await passing
        assert got[2:] == [b"d"] and await response.readany() == b""

    asyncio.run(main())


def test_an_error_in_a_sink_is_its_owners() -> None:
    async def main() -> None:
        link = Link()
        call = link.call()
        await asyncio.sleep(0)
        link.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        response = await call

        def sink(data: bytes) -> bool:
            raise LookupError(data)

        passing = asyncio.create_task(response.pass_to(sink))
        await asyncio.sleep(0)
        link.feed(b"1\r\na\r\n")
        await passing
        with pytest.raises(LookupError):
            await response.readany()
        assert link.wire.closed

    asyncio.run(main())


# ---- over a network

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(peer: Peer, test: Callable[[Engines, str], Awaitable[None]], tls: ssl.SSLContext | None = None) -> None:
    """``test`` with a way to an engine that does what ``peer`` does with each connection."""

    async def main() -> None:
        serving: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            serving.add(task)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await peer(reader, writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        async with server, asyncio.timeout(20):
            async with Engines(Limits(connect_timeout_s=5.0), Health(timeout_s=5.0)) as engines:
                await test(engines, f"{'https' if tls else 'http'}://127.0.0.1:{port}")
            await asyncio.gather(*serving)

    asyncio.run(main())


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head + await reader.readexactly(size)


def test_a_request_on_the_wire() -> None:
    seen = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await _request(reader))
            writer.write(SIZED)

    async def test(engines: Engines, url: str) -> None:
        named = url.replace("//", "//me:p%40ss@")
        headers = CIMultiDict([("X-Odd", "caf\udcc3\udca9"), ("x-odd", "2")])
        await (await engines.call("POST", f"{url}/v1/a?b=%20c", headers, b"body")).read()
        await (await engines.call("POST", named, CIMultiDict(), None)).read()
        await (await engines.call("GET", f"{named}/x", CIMultiDict(Authorization="Bearer k"), None)).read()
        host = url.removeprefix("http://").encode()
        assert seen[0] == (
            b"POST /v1/a?b=%20c HTTP/1.1\r\nHost: " + host + b"\r\nX-Odd: caf\xc3\xa9\r\nx-odd: 2\r\n"
            b"Content-Length: 4\r\n\r\nbody"
        )
        assert seen[1] == (
            b"POST / HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Basic bWU6cEBzcw==\r\nContent-Length: 0\r\n\r\n"
        )
        assert seen[2] == b"GET /x HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer k\r\n\r\n"

    against(peer, test)


@pytest.mark.parametrize(("name", "value"), [("X-A", "b\r\nX-C: d"), ("X-A", "b\nc"), ("X-A\r\nX", "b"), ("X", "a\0b")])
def test_no_header_breaks_out_of_its_line(name: str, value: str) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing is sent")

    async def test(engines: Engines, url: str) -> None:
        with pytest.raises(ValueError, match="line end"):
            await engines.call("GET", url + "/", CIMultiDict([(name, value)]), None)
        with pytest.raises(ValueError, match="line end"):
            await engines.call("GET", url + "/a HTTP/1.1\r\nX: y", CIMultiDict(), None)

    against(peer, test)


def test_only_what_is_safe_is_sent_again_when_a_kept_connection_was_closed() -> None:
    requests = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await _request(reader))
        writer.write(SIZED)
        requests.append(await _request(reader))  # and hangs up without a word

    async def test(engines: Engines, url: str) -> None:
        assert (await engines.fetch(url, CIMultiDict()))[1] == b"first,second"
        assert (await engines.fetch(url, CIMultiDict()))[1] == b"first,second"
        assert len(requests) == 3
        with pytest.raises(EngineError):
            await engines.call("POST", url, CIMultiDict(), b"x")
        assert len(requests) == 4

    against(peer, test)


def test_a_large_body_is_sent_whole_and_one_refused_early_ends() -> None:
    body = bytes(range(256)) * 40_000  # 10 MB
    got, refused = [], []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"/refused" not in await reader.readuntil(b"\r\n\r\n"):
            got.append(await reader.readexactly(len(body)))
            writer.write(SIZED)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        refused.append(len(await reader.read()))

    async def test(engines: Engines, url: str) -> None:
        response = await engines.call("POST", url + "/taken", CIMultiDict(), body)
        assert response.status == 201 and got == [body]
        response = await engines.call("POST", url + "/refused", CIMultiDict(), body)
        assert response.status == 413 and await response.read() == b"no"
        while not refused:
            await asyncio.sleep(0.01)
        assert refused[0] < len(body)

    against(peer, test)


def test_a_name_with_several_addresses_is_reached_by_one_that_answers() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(SIZED)

    async def test(engines: Engines, url: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (1, int(url[-5:]))]

        async def resolve(host: str, *_: Any, **__: Any) -> Any:
            assert host == "engine.example"
            return found

        engines._loop = cast("Any", Resolving(asyncio.get_running_loop(), resolve))
        assert (await engines.fetch("http://engine.example:8000/health", CIMultiDict()))[0] == 201

    against(peer, test)


class Resolving:
    """An event loop that finds names as it is told."""

    def __init__(self, loop: Any, resolve: Any) -> None:
        self._loop, self.getaddrinfo = loop, resolve

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_who_is_cancelled_hangs_up() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await _request(reader)
        if b"/begun" in request:
            writer.write(CHUNKED[:60])
        left.append(await reader.read(1))

    left: list[bytes] = []

    async def test(engines: Engines, url: str) -> None:
        call = asyncio.create_task(engines.call("POST", url + "/silent", CIMultiDict(), b"x"))
        await asyncio.sleep(0.05)
        call.cancel()
        response = await engines.call("POST", url + "/begun", CIMultiDict(), b"x")
        response.close()
        while len(left) < 2:
            await asyncio.sleep(0.01)
        assert left == [b"", b""]

    against(peer, test)


def test_an_engine_behind_tls_is_believed_only_with_a_certificate(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await _request(reader):
            writer.write(CHUNKED)

    async def unknown(engines: Engines, url: str) -> None:
        with pytest.raises(NotConnected, match="certificate"):
            await engines.call("POST", url, CIMultiDict(), b"x")

    async def known(engines: Engines, url: str) -> None:
        for _ in range(2):
            assert (await engines.fetch(url, CIMultiDict()))[1] == b"first,second"

    against(peer, unknown, tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    against(peer, known, tls)


def test_nobody_there_is_told_from_somebody_who_says_nothing() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)

    async def test(engines: Engines, url: str) -> None:
        with pytest.raises(EngineError) as lost:
            await engines.call("POST", url, CIMultiDict(), b"x")
        assert not isinstance(lost.value, NotConnected)
        for nobody in ("http://127.0.0.1:1", "http://no-such-host.invalid:80", url.replace("http:", "https:")):
            with pytest.raises(UpstreamError):
                await engines.call("POST", nobody, CIMultiDict(), b"x")
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:1"):
            await engines.call("POST", "http://127.0.0.1:1/v1", CIMultiDict(), b"x")

    against(peer, test)
