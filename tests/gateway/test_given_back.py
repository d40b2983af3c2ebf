"""Requests that an engine gave back, in the books and to forecasters: they go on with what they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from endcast.router.gateway.config import Pool, WorkerConfig
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import Intake, Phase
from endcast.testing import ConstantHazardForecaster
from endcast.types import EndReason, Request

PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


class Asked(ConstantHazardForecaster):
    """Notes at how many tokens it is asked."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__(0.05)
        self.at: list[list[int]] = []
        if reads:
            self.refresh_every = 4

    def forecast_batch(self, landmarks: Any, horizon: int) -> Any:
        self.at.append([landmark.generated_tokens for landmark in landmarks])
        return super().forecast_batch(landmarks, horizon)


def core_of(forecaster: ConstantHazardForecaster | None = None, workers: str = "ab", **settings: Any) -> RoutingCore:
    policy = "br_0" if forecaster is None else "br_h"
    told = {"policy": policy, "forecaster": None if forecaster is None else "x", "slots": 1} | settings
    pool = Pool(workers=tuple(WorkerConfig(url=f"http://{name}") for name in workers), **told)
    desk = None if forecaster is None else Inline(forecaster, PRIOR, horizon=20)
    return RoutingCore(pool, desk=desk, rng=np.random.default_rng(0))


def test_it_holds_nothing_until_it_may_be_placed_and_then_all_that_it_has() -> None:
    core = core_of(workers="a")
    ticket, *others = (core.open(Intake(prompt_tokens=size)) for size in (10, 50, 60))
    assert core.decide(0.0) == [ticket]
    core.on_tokens(ticket, 7, 0.1)
    core.give_back(ticket, 9)
    assert ticket.phase is Phase.AWAY and not core.load().any() and (core.waiting, core.running) == (2, 0)
    core.give_back(ticket, 12)
    assert ticket.carried == 9, "once"
    core.again(ticket)
    assert core.decide(0.2) == [ticket], "before what has waited longer: its client is being served"
    assert core.load().tolist() == [19] and ticket.generated == [9]
    core.on_prompt(ticket, 12)
    core.on_tokens(ticket, 11, 0.3)
    assert core.load().tolist() == [23]
    core.on_end(ticket)
    for other in others:
        core.on_end(other)
    core.decide(1.0)
    assert not core.load().any() and not core.tickets


@pytest.mark.parametrize("again", [False, True])
def test_it_may_end_while_it_is_away(again: bool) -> None:
    forecaster = Asked(reads=False)
    core = core_of(forecaster)
    ticket = core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    core.give_back(ticket, 9)
    if again:
        core.again(ticket)
    core.on_end(ticket, EndReason.ABORT)
    core.decide(1.0)
    assert (core.waiting, core.running, len(core.tickets)) == (0, 0, 0) and not core.load().any()
    assert [(done.output_tokens, done.end) for done in forecaster.observed] == [(9, EndReason.ABORT)]


def test_a_worker_that_fails_then_keeps_what_was_carried() -> None:
    core = core_of()
    ticket = core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    core.give_back(ticket, 9)
    core.again(ticket)
    core.decide(0.1)
    core.again(ticket)
    assert core.decide(0.2) == [ticket] and core.load().sum() == 19 and ticket.generated == [9]


def test_what_has_outgrown_every_worker_is_left_to_the_engines() -> None:
    core = core_of(kv_capacity=15, admission="optimistic:0")
    ticket = core.open(Intake(prompt_tokens=10))
    core.decide(0.0)
    core.give_back(ticket, 9)
    core.again(ticket)
    assert core.decide(0.1) == [ticket] and core.load().max() == 14


@pytest.mark.parametrize("reads", [False, True])
def test_forecasts_go_on_and_the_end_is_told_once(reads: bool) -> None:
    forecaster = Asked(reads=reads)
    core = core_of(forecaster)
    ticket = core.open(Intake(prompt_tokens=10, max_tokens=30, request=Request(request_id="r", max_tokens=30)))
    core.decide(0.0)
    expected = ticket.expected
    core.on_tokens(ticket, 7, 0.1)
    core.on_text(ticket, "abc")
    core.decide(0.1)
    core.give_back(ticket, 9)
    core.again(ticket)
    core.decide(0.2)
    assert forecaster.at == ([[0], [7], [9]] if reads else [[0], [9]]) and ticket.expected == expected
    assert forecaster.observed == []
    slots = core.cluster.slots
    assert core.cluster.book is not None
    batch = core.cluster.book.batch(slots.entries[3, ticket.slots], slots.generated[ticket.slots])
    assert batch.cap.tolist() == [21], "what is left of its cap"
    core.on_tokens(ticket, 14, 0.3)
    core.on_text(ticket, "def")
    core.decide(0.3)
    core.on_end(ticket, EndReason.STOP)
    core.decide(0.4)
    assert [(done.output_tokens, done.end) for done in forecaster.observed] == [(14, EndReason.STOP)]
    assert len(core.cluster.book) == 0


def test_the_prior_knows_how_far_it_is() -> None:
    forecaster = Asked(reads=False)
    core = core_of(forecaster)
    ticket = core.open(Intake(prompt_tokens=10, max_tokens=30, request=Request(request_id="r", max_tokens=30)))
    core.decide(0.0)
    core.give_back(ticket, 9)
    assert core.desk is not None and core.desk.prior([ticket]).cap.tolist() == [21]
