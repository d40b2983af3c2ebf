"""Who asks late for a place that a round has given, or refused, already is told at once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from endcast.router.gateway.config import Limits, Pool, WorkerConfig
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.dispatch import Dispatcher, NotServed
from endcast.router.gateway.tickets import Intake, Phase
from endcast.types import EndReason

POOL = Pool(workers=(WorkerConfig(url="http://a:1"),), slots=1, kv_capacity=1000)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.REFUSED])
def test_a_place_that_is_asked_for_late(phase: Phase) -> None:
    async def run() -> None:
        dispatcher = Dispatcher(RoutingCore(POOL, rng=np.random.default_rng(0)), Limits())
        ticket = dispatcher.enter(Intake(prompt_tokens=10))
        dispatcher.wake()
        await asyncio.sleep(0.01)
        assert ticket.phase is Phase.RUNNING
        ticket.phase = phase  # a policy may refuse it instead
        async with asyncio.timeout(5):
            if phase is Phase.RUNNING:
                assert await dispatcher.place(ticket) == 0
            else:
                with pytest.raises(NotServed) as refused:
                    await dispatcher.place(ticket)
                assert refused.value.code == "shed"
                ticket.phase = Phase.RUNNING
        dispatcher.leave(ticket, EndReason.STOP, 1)
        assert not dispatcher.core.load().any() and dispatcher.core.waiting == 0

    asyncio.run(run())
