"""What routes unless a policy is given: ``olp_br_h`` with forecasts, and priorities reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.gateway.config import Pool, WorkerConfig
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import Intake, Phase
from endcast.router.policy import ClusterView, Decisions
from endcast.testing import ConstantHazardForecaster

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
PRIOR = ConstantHazardForecaster(0.02, bundle="prior")


def default_core(*, workers: int = 2, slots: int = 2, **more: Any) -> RoutingCore:
    addresses = tuple(WorkerConfig(url=f"http://w{i}") for i in range(workers))
    pool = Pool(workers=addresses, slots=slots, forecaster="cold_start", **more)
    return RoutingCore(pool, desk=Inline(PRIOR, PRIOR, horizon=pool.horizon), rng=np.random.default_rng(0))


@settings(max_examples=30, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    widths=st.lists(st.integers(1, 2), min_size=25, max_size=25),
    bounded=st.booleans(),
)
def test_everything_is_served_and_the_books_return_to_zero(
    prompts: list[int], widths: list[int], bounded: bool
) -> None:
    core = default_core(kv_capacity=200 if bounded else None)
    assert core.policy_name == "olp_br_h"
    tickets = [core.open(Intake(prompt_tokens=p, width=w)) for p, w in zip(prompts, widths, strict=False)]
    now = 0.0
    while core.waiting or core.running:
        core.decide(now)
        running = [ticket for ticket in tickets if ticket.phase is Phase.RUNNING]
        assert running, "something runs while anything waits"
        assert core.active().max() <= 2
        for ticket in running:
            for answer in range(ticket.intake.width):
                core.on_tokens(ticket, 1 + ticket.generated[answer], now, answer)
            if ticket.generated[0] == 3:
                core.on_end(ticket)
        now += 0.02
    assert core.failed_rounds == 0 and not core.load().any() and not core.active().any()


def test_the_policy_sees_priorities_and_puts_the_urgent_first() -> None:
    core = default_core(workers=1, slots=1)
    seen: list[list[float]] = []
    decide = core.policy.decide

    def looked(view: ClusterView, rng: np.random.Generator) -> Decisions:
        seen.append(view.waiting_weight.tolist())
        return decide(view, rng)

    core.policy.decide = looked  # type: ignore[method-assign]
    running = core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    waiting = [core.open(Intake(prompt_tokens=10, weight=weight)) for weight in (1.0, 0.25, 8.0)]
    core.on_tokens(running, 1, 0.02)
    core.decide(0.02)
    core.on_end(running)
    core.decide(0.04)
    assert seen[-1] == [1.0, 0.25, 8.0]
    assert [ticket.phase is Phase.RUNNING for ticket in waiting] == [False, False, True]


def test_over_http_the_priority_of_a_body_orders_the_queue(rig: RigMaker) -> None:
    done: list[int] = []

    async def run() -> None:
        pool = {"forecaster": "cold_start", "slots": 1, "forecast_timeout_s": 5.0}
        async with rig(workers=1, slots=1, t_fixed_s=0.01, pool=pool, forecasts=lambda _: (PRIOR, PRIOR)) as r:

            async def ask(priority: int) -> None:
                assert (await r.chat(3, priority=priority)).status == 200
                done.append(priority)

            first = asyncio.create_task(r.chat(60))
            while not r.core.running:
                await asyncio.sleep(0.005)
            others = [asyncio.create_task(ask(priority)) for priority in (5, 0, -5)]
            while r.core.waiting < 3:
                await asyncio.sleep(0.005)
            await asyncio.gather(first, *others)
            await r.settled()

    asyncio.run(run())
    assert done == [-5, 0, 5]
