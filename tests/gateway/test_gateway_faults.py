"""What goes wrong between clients and engines: each client gets an answer or a clear error, and the books empty out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import aiohttp
import pytest

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["unavailable", "reset", "empty"])
def test_a_failure_before_the_first_byte_is_tried_elsewhere(rig: RigMaker, fault: str, stream: bool) -> None:
    async def run() -> None:
        async with rig(workers=2) as r:
            for rank in r.fleet.ranks:
                setattr(rank.faults, fault, 1)
            got = await r.chat(4, stream=stream)
            assert got.status == 200
            seen = sum(rank.seen for rank in r.fleet.ranks)
            assert seen == 1 if fault == "empty" and not stream else seen in (2, 3)
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["unavailable", "reset", "empty"])
def test_when_every_attempt_fails_the_client_is_told(rig: RigMaker, fault: str) -> None:
    async def run() -> None:
        async with rig(workers=1, limits={"retries": 1, "no_worker_wait_s": 20.0}) as r:
            setattr(r.fleet.ranks[0].faults, fault, 100)
            got = await r.chat(4)
            assert got.status == (503 if fault == "unavailable" else 502) and "error" in got.json
            assert r.fleet.ranks[0].seen == 2
            await r.settled()
            setattr(r.fleet.ranks[0].faults, fault, 0)
            assert (await r.chat(4)).status == 200, "it is let in again"

    asyncio.run(run())


def test_a_stream_that_is_cut_ends_in_an_error_and_is_not_repeated(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, t_fixed_s=0.005) as r:
            for rank in r.fleet.ranks:
                rank.faults.cut_after = 3
            got = await r.chat(9)
            assert got.status == 200
            *said, error, done = got.frames
            assert done == "[DONE]" and error["error"]["code"] == "stream_cut"
            assert len(said) >= 3 and all("error" not in frame for frame in said)
            assert sum(rank.seen for rank in r.fleet.ranks) == 1
            await r.settled()

    asyncio.run(run())


def test_an_engines_own_error_frame_passes(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            r.fleet.ranks[0].faults.error_after = 2
            got = await r.chat(9)
            assert got.frames[-1] == "[DONE]" and got.frames[-2]["error"]["message"] == "the engine broke"
            assert sum("error" in frame for frame in got.frames if frame != "[DONE]") == 1
            await r.settled()

    asyncio.run(run())


def test_a_stream_that_falls_silent_is_ended(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, limits={"inter_chunk_timeout_s": 1.0}) as r:
            r.fleet.ranks[0].faults.silent_after = 2
            got = await r.chat(4000)
            assert got.frames[-1] == "[DONE]" and got.frames[-2]["error"]["code"] == "inter_chunk_timeout"
            await until(lambda: r.fleet.ranks[0].aborted == 1)
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_never_answers(rig: RigMaker, stream: bool) -> None:
    async def run() -> None:
        async with rig(workers=1, limits={"first_byte_timeout_s": 0.5}) as r:
            r.fleet.ranks[0].faults.hang = True
            got = await r.chat(9, stream=stream)
            assert got.status == 504 and got.json["error"]["code"] == "first_byte_timeout"
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("when", ["waiting", "silent", "streaming", "whole"])
def test_a_client_that_leaves_is_gone_within_a_second(rig: RigMaker, when: str) -> None:
    async def run() -> None:
        async with rig(workers=1, slots=1, t_fixed_s=0.01) as r:
            rank = r.fleet.ranks[0]
            other = None
            if when == "waiting":
                other = asyncio.create_task(r.chat(500))
                await until(lambda: r.core.running == 1)
            if when == "silent":
                rank.faults.silent_after = 1
            call = asyncio.create_task(r.chat(1000, stream=when != "whole"))
            if when == "waiting":
                await until(lambda: r.core.waiting == 1)
            else:
                await until(lambda: bool(rank.running))
            await asyncio.sleep(0.05)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            if other is None:
                await until(lambda: rank.aborted == 1, 1.0)
            else:
                await until(lambda: r.core.waiting == 0, 1.0)
                other.cancel()
                with suppress(asyncio.CancelledError):
                    await other
            await r.settled()

    asyncio.run(run())


def test_a_full_queue_and_a_long_wait(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, slots=1, t_fixed_s=0.01, limits={"max_waiting": 1, "max_wait_s": 0.4}) as r:
            running = asyncio.create_task(r.chat(300))
            await until(lambda: r.core.running == 1)
            waiting = asyncio.create_task(r.chat(3))
            await until(lambda: r.core.waiting == 1)
            refused = await r.chat(3)
            assert refused.status == 429 and refused.json["error"]["code"] == "queue_full"
            assert int(refused.headers["Retry-After"]) >= 1
            late = await waiting
            assert late.status == 503 and late.json["error"]["code"] == "wait_exceeded"
            assert int(late.headers["Retry-After"]) >= 1
            assert (await running).status == 200
            await r.settled()
            told = (await r.call("/metrics")).body.decode()
            assert 'endcast_router_turned_away_total{pool="default",reason="queue_full"} 1.0' in told

    asyncio.run(run())


def test_engines_that_die_and_come_back(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=4, t_fixed_s=0.01, limits={"no_worker_wait_s": 0.3}) as r:
            calls = [asyncio.create_task(r.chat(100)) for _ in range(6)]
            await until(lambda: all(len(rank.running) == 3 for rank in r.fleet.ranks))
            await until(lambda: all(generation.made[0] > 5 for generation in r.fleet.ranks[0].running))
            await r.fleet.kill(0)
            got = await asyncio.gather(*calls)
            assert all(answer.status == 200 and answer.frames[-1] == "[DONE]" for answer in got)
            assert sum("error" in answer.frames[-2] for answer in got) == 3
            assert all([(await r.chat(2)).status == 200 for _ in range(4)]), "the other one serves"
            assert (await r.call("/ready")).status == 200
            await r.fleet.kill(1)
            refused = await r.chat(2)
            assert refused.status in (502, 503)
            await until(lambda: r.gateway.pools[0].dispatcher.up == 0)
            assert (await r.call("/ready")).status == 503 and (await r.call("/health")).status == 200
            refused = await r.chat(2)
            assert refused.status == 503 and refused.json["error"]["code"] == "no_worker"
            await r.fleet.revive(0)
            await until(lambda: r.gateway.pools[0].dispatcher.up == 1)
            assert (await r.chat(2)).status == 200
            await r.settled()

    asyncio.run(run())


def test_a_request_waits_for_an_engine_that_restarts(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, limits={"no_worker_wait_s": 20.0}) as r:
            await r.fleet.kill(0)
            await until(lambda: r.gateway.pools[0].dispatcher.up == 0)
            call = asyncio.create_task(r.chat(3))
            await until(lambda: r.core.waiting == 1)
            await r.fleet.revive(0)
            assert (await call).status == 200
            await r.settled()

    asyncio.run(run())


def test_draining_finishes_what_runs_and_takes_nothing_new(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.01) as r:
            await r.chat(1)  # a kept-alive connection
            call = asyncio.create_task(r.chat(40))
            await until(lambda: r.core.running == 1)
            drained = asyncio.create_task(r.server.drain())
            await until(lambda: r.gateway.draining)
            with suppress(aiohttp.ClientError):
                assert (await r.chat(1)).status == 503
            assert (await call).frames[-1] == "[DONE]"
            await drained
            assert not r.core.running

    asyncio.run(run())


def test_a_client_that_reads_nothing_is_dropped(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(
            workers=1, tokens_per_step=20_000, context_limit=10**9, limits={"inter_chunk_timeout_s": 1.0}
        ) as r:
            host, port = r.server.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            body = b'{"prompt": "x", "stream": true, "max_tokens": 100000000, "mock_output_tokens": 100000000}'
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: r.core.running == 1)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: r.fleet.ranks[0].aborted == 1, 60.0)
            writer.transport.abort()
            await r.settled()

    asyncio.run(run())


def test_many_open_streams(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=100) as r:
            r.fleet.steps.paused = True
            calls = [asyncio.create_task(r.chat(2)) for _ in range(200)]
            await until(lambda: r.core.running == 200, 60.0)
            r.fleet.steps.paused = False
            got = await asyncio.gather(*calls)
            assert all(answer.status == 200 and answer.frames[-1] == "[DONE]" for answer in got)
            await r.settled()

    asyncio.run(run())


def busy_tasks() -> list[str]:
    """Tasks but those that wait on kept-alive connections, one for each."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name != "RequestHandler.start"]


def test_cancelled_anywhere_the_books_empty_out(rig: RigMaker) -> None:
    """Clients leave after random times; engines fail at random; no task, stream or slot is left."""

    async def run() -> None:
        rng = random.Random(1)
        async with rig(workers=3, slots=3, t_fixed_s=0.003, health={"pause_s": 0.02}) as r:
            await until(lambda: busy_tasks().count("Event.wait") == 3)  # health checks between two probes
            before = len(busy_tasks())

            async def one() -> None:
                await asyncio.sleep(rng.random() * 2.0)
                if rng.random() < 0.1:
                    faults = rng.choice(r.fleet.ranks).faults
                    setattr(faults, rng.choice(["unavailable", "reset", "empty"]), 1)
                with suppress(TimeoutError, aiohttp.ClientError):
                    async with asyncio.timeout(rng.random() * 0.3):
                        await r.chat(rng.randint(1, 60), stream=rng.random() < 0.7, n=rng.choice([1, 1, 1, 2, 3]))

            await asyncio.gather(*(one() for _ in range(250)))
            await r.settled()
            await until(lambda: not any(rank.running or rank.waiting for rank in r.fleet.ranks))
            await until(lambda: len(busy_tasks()) <= before + 1)
            assert not r.gateway.pools[0].dispatcher._futures and not r.core._entries

    asyncio.run(run())


def test_the_last_answers_end_waits_only_briefly_for_usage(rig: RigMaker) -> None:
    """The end is kept back for what a usage event may add; where the engine then says nothing, the client gets it all the same."""

    async def run() -> None:
        async with rig(workers=1, limits={"inter_chunk_timeout_s": 3.0}) as r:
            r.fleet.ranks[0].faults.silent_after = 2
            got = asyncio.create_task(r.chat(2))
            await until(lambda: r.core.running == 1)
            begun = asyncio.get_running_loop().time()
            answer = await got
            assert answer.frames[-1]["choices"][0]["finish_reason"] == "stop" and answer.text
            assert asyncio.get_running_loop().time() - begun > 2.0, "and may still say something"
            await r.settled()

    asyncio.run(run())
