"""Many streams, many faults, many clients who leave: every client gets an answer or a clear error, and nothing is left.

The full numbers (2,000 streams, 10,000 cancellations, memory of the process) are measured by ``benchmarks/bench_gateway_faults.py``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import aiohttp
import pytest

from endcast.router.gateway.exchange.exchange import Exchange
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.tickets import Ticket

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
#: What a mock rank does, by phase of a response.
FAULTS = [
    ("reset", 4), ("empty", 4), ("unavailable", 4), ("cut_after", 1), ("cut_after", 4), ("cut_after", 8),
    ("error_after", 1), ("error_after", 8), ("silent_after", 1), ("silent_after", 5),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_fleet() -> Iterator[None]:
    """The mock fleet's server logs what it breaks off itself."""
    logger = logging.getLogger("aiohttp.server")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def judged(answer: Any, stream: bool = True) -> str:
    """``whole``, ``told`` (a stream that ends in an error event), ``refused``, or ``bad``: nothing a client can use."""
    if answer.status != 200:
        return "refused" if answer.json["error"]["message"] else "bad"
    if not stream:
        return "whole" if all(choice["finish_reason"] for choice in answer.json["choices"]) else "bad"
    frames = answer.frames
    if any(isinstance(frame, dict) and "error" in frame for frame in frames):
        return "told" if frames[-1] == "[DONE]" else "bad"
    ended = {c["index"] for f in frames if f != "[DONE]" for c in f["choices"] if c["finish_reason"]}
    return "whole" if ended else "bad"


def test_half_of_the_workers_die_under_open_streams(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=4, slots=75, health={"pause_s": 0.2}) as r:
            r.fleet.steps.paused = True
            calls = [asyncio.create_task(r.chat(30)) for _ in range(300)]
            async with asyncio.timeout(60):
                while sum(len(rank.running) + len(rank.waiting) for rank in r.fleet.ranks) < 300:
                    await asyncio.sleep(0.02)
            assert r.core.running == 300
            r.fleet.steps.paused = False
            await asyncio.sleep(0.02)
            for worker in (0, 1):
                await r.fleet.kill(worker)
            seen = Counter(judged(answer) for answer in await asyncio.gather(*calls))
            assert seen["bad"] == 0 and seen["whole"] >= 150 and seen.total() == 300
            assert (await r.chat(2)).status == 200, "the others serve"
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize(("name", "value"), FAULTS)
def test_whatever_breaks_in_whatever_phase_clients_are_told(rig: RigMaker, name: str, value: int) -> None:
    async def run() -> None:
        limits = {"first_byte_timeout_s": 1.0, "inter_chunk_timeout_s": 1.0}
        async with rig(workers=2, slots=8, limits=limits, health={"pause_s": 0.05}) as r:
            setattr(r.fleet.ranks[0].faults, name, value)
            kinds = [(i % 3 > 0, 1 + (i % 4 == 0)) for i in range(24)]
            got = await asyncio.gather(*(r.chat(8, stream=stream, n=n) for stream, n in kinds))
            seen = [judged(answer, stream) for answer, (stream, _) in zip(got, kinds, strict=True)]
            assert "bad" not in seen and seen.count("whole") >= 8
            await r.settled()

    asyncio.run(run())


def left_over() -> Counter[str]:
    """Objects that belong to requests and still live."""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in (Ticket, Exchange, Account))


def test_a_thousand_clients_leave_at_any_time_and_nothing_is_left(rig: RigMaker) -> None:
    async def run() -> None:
        rng = random.Random(7)
        async with rig(workers=3, slots=24, t_fixed_s=0.004) as r:

            async def one() -> str:
                stream, n = rng.random() < 0.8, rng.choice([1, 1, 1, 2])
                patience_s = rng.random() * rng.choice([0.01, 0.1, 0.5])
                with suppress(TimeoutError, aiohttp.ClientError):
                    async with asyncio.timeout(patience_s):
                        return judged(await r.chat(rng.randint(1, 60), stream=stream, n=n), stream)
                return "left"

            turns = asyncio.Semaphore(100)

            async def in_turn() -> str:
                async with turns:
                    return await one()

            seen = Counter(await asyncio.gather(*(in_turn() for _ in range(1000))))
            assert seen["bad"] == 0 and seen["left"] > 500
            await r.settled()
            async with asyncio.timeout(10):
                while any(rank.running or rank.waiting for rank in r.fleet.ranks):
                    await asyncio.sleep(0.01)
            core, dispatcher = r.core, r.gateway.pools[0].dispatcher
            assert not core.tickets and not core._entries and not dispatcher._futures
            async with asyncio.timeout(10):  # calls of clients who left at once may come in late
                while left_over():
                    await asyncio.sleep(0.1)

    asyncio.run(run())
