"""Forecasts in the loop: asked for once, fed with text, and done without where they are late or broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from endcast.forecaster import Forecaster, ForecastStream
from endcast.router.gateway.config import Pool, WorkerConfig
from endcast.router.gateway.forecasts.desk import Inline, Threaded
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import Intake, Phase
from endcast.survival import SurvivalBatch
from endcast.testing import ConstantHazardForecaster
from endcast.types import EndReason, Landmark

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


class Moody(ConstantHazardForecaster):
    """Reads outputs, and fails or hangs when told."""

    refresh_every = 4

    def __init__(self) -> None:
        super().__init__(0.05)
        self.broken = False
        self.answering = threading.Event()
        self.answering.set()
        self.asked: list[list[int]] = []

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        self.answering.wait(20)
        if self.broken:
            raise RuntimeError("out of order")
        self.asked.append([landmark.generated_tokens for landmark in landmarks])
        return super().forecast_batch(landmarks, horizon)


def br_h(**settings: Any) -> Pool:
    return Pool(
        workers=(WorkerConfig(url="http://a"), WorkerConfig(url="http://b")), policy="br_h", forecaster="x", **settings
    )


def test_forecasts_are_made_at_admission_and_every_few_tokens_and_ends_are_told() -> None:
    forecaster = Moody()
    core = RoutingCore(br_h(slots=2), desk=Inline(forecaster, PRIOR, horizon=20), rng=np.random.default_rng(0))
    tickets = [core.open(Intake(prompt_tokens=10)) for _ in range(2)]
    assert len(core.decide(0.0)) == 2 and forecaster.asked == [[0, 0]]
    assert tickets[0].expected == pytest.approx(20.0, rel=0.02), "1 / hazard"
    for tokens in range(1, 10):
        core.on_tokens(tickets[0], tokens, 0.1 * tokens)
        core.on_text(tickets[0], "a")
        core.decide(0.1 * tokens)
    assert forecaster.asked == [[0, 0], [4], [8]]
    core.on_end(tickets[0], EndReason.LENGTH)
    core.on_end(tickets[1], EndReason.ABORT, output_tokens=3)
    core.decide(2.0)
    assert [(c.output_tokens, c.end.value) for c in forecaster.observed] == [(9, "length"), (3, "abort")]
    assert not core.load().any()


def test_a_broken_forecaster_is_br_0_until_it_is_well() -> None:
    forecaster = Moody()
    desk = Inline(forecaster, PRIOR, horizon=20)
    core = RoutingCore(br_h(slots=2), desk=desk, rng=np.random.default_rng(0))
    forecaster.broken = True
    first = core.open(Intake(prompt_tokens=10))
    assert core.decide(0.0) == [first] and first.reason.startswith("br_0") and first.expected is None
    assert not desk.healthy and (desk.failures, desk.priors) == (1, 1) and "out of order" in desk.problem
    forecaster.broken = False
    second = core.open(Intake(prompt_tokens=10))
    assert core.decide(0.1) == [second] and second.reason == "br_h" and desk.healthy


def test_a_hanging_forecaster_delays_nothing() -> None:
    forecaster, now, woken = Moody(), [0.0], threading.Event()
    desk = Threaded(forecaster, PRIOR, horizon=20, timeout_s=0.05, wake=woken.set, clock=lambda: now[0])
    core = RoutingCore(br_h(slots=4), desk=desk, rng=np.random.default_rng(0))

    def decided() -> list[Any]:
        assert woken.wait(20)
        woken.clear()
        return core.decide(now[0])

    good = core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    assert decided() == [good] and good.reason == "br_h"
    forecaster.answering.clear()
    late = core.open(Intake(prompt_tokens=10))
    assert core.decide(now[0]) == [] and late.phase is Phase.ARRIVING
    now[0] = 0.06
    assert core.decide(now[0]) == [late] and late.reason.startswith("br_0")
    assert (desk.late, desk.healthy) == (1, False)
    while_down = core.open(Intake(prompt_tokens=10))
    assert core.decide(now[0]) == [while_down], "no waiting at all"
    core.on_text(good, "text")
    core.on_end(late)
    forecaster.answering.set()
    assert woken.wait(20)
    woken.clear()
    core.decide(now[0])
    assert desk.healthy
    well = core.open(Intake(prompt_tokens=10))
    core.decide(now[0])
    for _ in range(3):
        if well.phase is Phase.RUNNING:
            break
        decided()
    assert well.reason == "br_h"
    desk.stop()


def test_a_failing_thread_is_asked_again_after_a_while() -> None:
    forecaster, now, woken = Moody(), [0.0], threading.Event()
    desk = Threaded(forecaster, PRIOR, horizon=20, retry_s=1.0, wake=woken.set, clock=lambda: now[0])
    core = RoutingCore(br_h(slots=8), desk=desk, rng=np.random.default_rng(0))
    forecaster.broken = True
    core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    assert woken.wait(20)
    woken.clear()
    assert len(core.decide(0.0)) == 1 and desk.failures == 1
    forecaster.broken = False
    core.open(Intake(prompt_tokens=10))
    assert len(core.decide(0.5)) == 1 and forecaster.asked == [], "not asked before its time"
    now[0] = 1.1
    core.open(Intake(prompt_tokens=10))
    core.decide(1.1)
    assert woken.wait(20)
    assert len(core.decide(1.1)) == 1 and bool(desk.healthy)
    desk.stop()


def test_over_http_forecasts_go_and_come_back_visibly(rig: RigMaker) -> None:
    forecaster = Moody()
    pair: tuple[Forecaster, Forecaster] = forecaster, PRIOR

    async def run() -> None:
        pool = {"policy": "br_h", "forecaster": "x", "forecast_timeout_s": 0.3, "slots": 2}
        async with rig(workers=2, slots=2, t_fixed_s=0.01, pool=pool, forecasts=lambda _: pair) as r:

            async def told(name: str) -> float:
                text = (await r.call("/metrics")).body.decode()
                return float(
                    next(line.split()[-1] for line in text.splitlines() if line.startswith(f"endcast_router_{name}"))
                )

            got = await asyncio.gather(*(r.chat(10) for _ in range(6)))
            assert all(answer.status == 200 and len(answer.text) > 10 for answer in got)
            assert await told("forecasts_up") == 1.0
            assert any(4 in asked or 8 in asked for asked in forecaster.asked), "its text was read"
            forecaster.answering.clear()
            assert (await r.chat(3)).status == 200
            assert await told("forecasts_up") == 0.0 and await told("forecast_late_total") == 1.0
            assert (await r.chat(3)).status == 200
            assert await told("forecast_priors_total") == 2.0
            forecaster.answering.set()
            async with asyncio.timeout(20):
                while await told("forecasts_up") != 1.0:
                    await r.chat(3)
            await r.settled()

    asyncio.run(run())
    assert len(forecaster.observed) >= 6
