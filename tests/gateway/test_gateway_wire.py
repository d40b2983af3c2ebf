"""On the wire: old and odd clients, many streams at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
BODY = b'{"prompt": "x", "stream": true, "mock_output_tokens": 2}'


async def exchanged(r: Any, request: bytes, *, until: bytes = b"") -> bytes:
    """Send bytes to the gateway; what comes back, to the end or to ``until``."""
    host, port = r.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await (reader.readuntil(until) if until else reader.read())
    finally:
        writer.close()
        await writer.wait_closed()


def test_http_1_0_and_close(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(BODY)
            got = await exchanged(r, head + BODY)
            assert got.startswith(b"HTTP/1.0 200") and got.endswith(b"\n\ndata: [DONE]\n\n")
            assert b"transfer-encoding" not in got.lower()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
                BODY
            )
            got = await exchanged(r, head + BODY)
            assert got.startswith(b"HTTP/1.1 200") and got.endswith(b"0\r\n\r\n")
            await r.settled()

    asyncio.run(run())


def test_chunked_bodies_and_pipelined_requests(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            pieces = b"".join(b"%x\r\n%s\r\n" % (len(BODY[i : i + 7]), BODY[i : i + 7]) for i in range(0, len(BODY), 7))
            one = head + pieces + b"0\r\n\r\n"
            last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            got = await exchanged(r, one + one + last)
            assert got.count(b"HTTP/1.1 200") == 3 and got.count(b"data: [DONE]") == 2
            assert r.fleet.ranks[0].seen == 2
            await r.settled()

    asyncio.run(run())


def test_a_request_that_never_becomes_whole_costs_nothing(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            host, port = r.server.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
            async with asyncio.timeout(10):
                while not r.gateway.open_calls:
                    await asyncio.sleep(0.01)
            writer.close()
            await r.settled()
            assert r.fleet.ranks[0].seen == 0

    asyncio.run(run())


def test_methods_that_have_no_body(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            got = await exchanged(r, b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 200") and got.endswith(b"\r\n\r\n")
            got = await exchanged(r, b"OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 404"), "the engine's own answer"
            got = await exchanged(r, b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 404")

    asyncio.run(run())


def test_tokens_come_as_they_are_made(rig: RigMaker) -> None:
    """The first event is there long before the last one is made."""

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.02) as r:
            body = b'{"prompt": "x", "stream": true, "max_tokens": 3000, "mock_output_tokens": 3000}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            await exchanged(r, head + body, until=b"\n\n\r\n")
            async with asyncio.timeout(5):
                while r.fleet.ranks[0].aborted == 0:
                    await asyncio.sleep(0.01)
            await r.settled()

    asyncio.run(run())
