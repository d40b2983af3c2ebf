"""Circuits of workers: when they open, for how long, and when they close."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from endcast.router.gateway.config import Health
from endcast.router.gateway.engines.health import Circuit, HealthKeeper

SETTINGS = Health(interval_s=0.05, pause_s=0.5, longest_pause_s=4.0)


def test_pauses_double_to_a_bound_and_end_with_a_good_probe() -> None:
    circuit, now = Circuit(SETTINGS), 0.0
    for pause in (0.5, 1.0, 2.0, 4.0, 4.0):
        circuit.failed(now)
        assert circuit.open and circuit.paused_until == now + pause
        circuit.failed(now + pause / 2)
        assert circuit.paused_until == now + pause, "failures of calls on their way do not make it longer"
        circuit.passed(now + pause / 2)
        assert circuit.open, "not before its time"
        now += pause
    circuit.passed(now)
    assert not circuit.open
    circuit.failed(now)
    assert circuit.paused_until == now + 4.0, "it must serve before its failures are forgotten"
    circuit.passed(now + 4.0)
    circuit.served()
    circuit.failed(now + 5.0)
    assert circuit.paused_until == now + 5.5


def test_what_is_doubtful_counts_the_second_time() -> None:
    circuit = Circuit(SETTINGS)
    circuit.doubtful(0.0)
    assert not circuit.open
    circuit.served()
    circuit.doubtful(1.0)
    assert not circuit.open
    circuit.doubtful(1.1)
    assert circuit.open


@pytest.mark.parametrize(("lag_s", "down"), [(0.0, True), (3.0, False)])
def test_timeouts_count_unless_we_are_late_ourselves(lag_s: float, down: bool) -> None:
    async def run() -> None:
        said: list[bool] = []

        async def probe(url: str) -> bool:
            raise TimeoutError

        keeper = HealthKeeper({"u"}, SETTINGS, probe, lambda _, up: said.append(up), lambda: lag_s)
        keeper.start()
        async with asyncio.timeout(10):
            while len(said) < 4:
                await asyncio.sleep(0.01)
        await keeper.stop()
        assert said[0] is True and (False in said) is down

    asyncio.run(run())


def test_a_refused_connection_counts_at_once() -> None:
    async def run() -> None:
        said: list[bool] = []

        async def probe(url: str) -> bool:
            return True

        keeper = HealthKeeper({"u"}, SETTINGS, probe, lambda _, up: said.append(up))
        keeper.failed("u", aiohttp.ServerDisconnectedError())
        keeper.failed("u", OSError())
        assert said == [True, False]

    asyncio.run(run())
