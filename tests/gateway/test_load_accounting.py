"""How users of such routers have lost count of load: between two scrapes, at the headers, by a pin that is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from endcast.router.gateway.mock import server

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_fifty_arrivals_between_two_scrapes_are_spread(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=5, slots=16, t_fixed_s=0.01, health={"reconcile_s": 3600.0}) as r:
            r.fleet.steps.paused = True
            calls = [asyncio.create_task(r.chat(2)) for _ in range(50)]
            await until(lambda: r.core.running == 50)
            assert r.core.active().tolist() == [10] * 5
            r.fleet.steps.paused = False
            assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
            assert [len(rank.request_ids) for rank in r.fleet.ranks] == [10] * 5
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_load_is_held_until_the_body_has_ended(rig: RigMaker, stream: bool) -> None:
    async def run() -> None:
        async with rig(workers=1, slots=2, t_fixed_s=0.005) as r:
            rank, seen = r.fleet.ranks[0], []
            call = asyncio.create_task(r.chat(40, stream=stream))
            await until(lambda: bool(rank.running))
            while rank.running:
                seen.append(int(r.core.load().sum()))
                await asyncio.sleep(0.005)
            assert (await call).status == 200
            assert len(seen) > 5 and min(seen) > 0 and seen == sorted(seen)
            assert (seen[-1] > seen[0]) == stream, "tokens are known as they come, where they come one by one"
            await r.settled()

    asyncio.run(run())


def test_a_pin_that_an_engine_ignores_is_measured_and_shown(rig: RigMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def differences(r: Any) -> list[float]:
        lines = (await r.call("/metrics")).body.decode().splitlines()
        return [
            float(line.split()[-1]) for line in lines if line.startswith("endcast_router_engine_requests_difference{")
        ]

    async def run() -> None:
        async with rig(workers=1, ranks=2, slots=4, t_fixed_s=0.01, health={"reconcile_s": 0.05}) as r:
            r.fleet.steps.paused = True
            calls = [asyncio.create_task(r.chat(2)) for _ in range(4)]
            await until(lambda: r.core.running == 4)
            assert r.core.active().tolist() == [2, 2]
            async with asyncio.timeout(30):
                while await differences(r) != [2.0, -2.0]:
                    await asyncio.sleep(0.02)
            r.fleet.steps.paused = False
            assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
            await r.settled()

    monkeypatch.setattr(server.Engine, "_rank", lambda engine, _: engine._ranks[0])
    asyncio.run(run())
