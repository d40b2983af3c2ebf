"""Books set up anew under running requests: nothing is lost, nothing counted twice, forecasts stay."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.gateway.config import Pool, Worker, WorkerConfig, workers_of
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.rebuild import rebuild
from endcast.router.gateway.tickets import NOWHERE, Intake, Phase, Ticket
from endcast.router.pool import OVERTAKEN
from endcast.testing import ConstantHazardForecaster

PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


def pool_of(names: str, policy: str = "br_0", **more: Any) -> Pool:
    workers = tuple(WorkerConfig(url=f"http://{name}") for name in names)
    told = {"slots": 4, "policy": policy, "forecaster": "x", **more}
    return Pool(workers=workers, **told)


def desk_of(pool: Pool, hazard: float = 0.02) -> Inline | None:
    return Inline(ConstantHazardForecaster(hazard), PRIOR, horizon=pool.horizon) if pool.needs_forecasts else None


def core_of(pool: Pool) -> RoutingCore:
    return RoutingCore(pool, desk=desk_of(pool), rng=np.random.default_rng(0))


def moved(core: RoutingCore, pool: Pool, desk: Any = None) -> None:
    """To the workers of ``pool``, told apart by their addresses."""
    workers = workers_of(pool)
    index = {worker.url: worker.index for worker in workers}
    rebuild(core, pool, workers, [index.get(worker.url, NOWHERE) for worker in core.workers], desk or core.desk)


def loads(core: RoutingCore) -> dict[str, int]:
    return dict(zip([worker.url[-1] for worker in core.workers], core.load().tolist(), strict=True))


@pytest.mark.parametrize("policy", ["br_0", "br_h", "olp_br_h", "least_kv", "round_robin"])
def test_what_runs_and_waits_goes_on(policy: str) -> None:
    core = core_of(pool_of("ab", policy))
    tickets = [core.open(Intake(prompt_tokens=10 * (i + 1))) for i in range(11)]
    placed = core.decide(0.0)
    assert len(placed) == 8
    for ticket in placed:
        core.on_tokens(ticket, 5, 0.1)
    core.on_prompt(placed[0], 1000)
    before, waiting = loads(core), [t for t in tickets if t.phase is Phase.WAITING]
    moved(core, pool_of("cba", policy))
    assert loads(core) == {**before, "c": 0} and (core.waiting, core.running) == (3, 8)
    assert [core.workers[t.worker].url for t in placed] and core.active().tolist() == [0, 4, 4]
    core.on_tokens(placed[1], 7, 0.2)
    assert sum(loads(core).values()) == sum(before.values()) + 2
    more = core.decide(0.3)
    if not core.policy.immediate_dispatch:
        assert [t.worker for t in more] == [0, 0, 0] and set(more) == set(waiting), "the new worker's slots are free"
    for ticket in tickets:
        core.on_end(ticket)
    assert not core.load().any() and not core.tickets and core.decide(1.0) == []
    assert core.cluster.book is None or len(core.cluster.book) == 0


def test_forecasts_of_what_runs_and_waits_are_kept() -> None:
    core = core_of(pool_of("ab", "br_h"))
    tickets = [core.open(Intake(prompt_tokens=10 * (i + 1), max_tokens=100)) for i in range(12)]
    for ticket in core.decide(0.0):
        core.on_tokens(ticket, 30 + ticket.key, 0.1)
    core._step.close()

    def seen() -> tuple[Any, Any]:
        forecast = core.cluster.view(0.2).forecast
        assert forecast is not None
        return forecast.load.copy(), forecast.waiting_load[forecast.waiting_row].copy()

    running, waiting = seen()
    moved(core, pool_of("ab", "br_h"))
    again, waiting_again = seen()
    np.testing.assert_allclose(again, running, rtol=1e-5)
    np.testing.assert_allclose(waiting_again, waiting, rtol=1e-5)
    assert len(waiting) == 4 and tickets[-1].phase is Phase.WAITING


def test_another_forecaster_is_asked_about_what_waits_and_knows_what_runs_by_the_prior() -> None:
    core = core_of(pool_of("ab"))
    tickets = [core.open(Intake(prompt_tokens=10, max_tokens=50)) for _ in range(10)]
    core.decide(0.0)
    pool = pool_of("ab", "br_h")
    forecaster = ConstantHazardForecaster(0.05)
    moved(core, pool, Inline(forecaster, PRIOR, horizon=20))
    assert [t.phase for t in tickets].count(Phase.ARRIVING) == 2 and core.waiting == 2
    core.on_end(tickets[0])
    (placed,) = core.decide(1.0)
    assert placed.reason == "br_h" and placed.expected == pytest.approx(20.0, rel=0.02)
    for ticket in tickets:
        core.on_end(ticket, output_tokens=3)
    core.decide(2.0)
    assert not core.load().any() and len(forecaster.observed) >= 2


def test_wide_requests_keep_their_slots_and_their_hold() -> None:
    core = core_of(pool_of("a"))
    wide = core.open(Intake(prompt_tokens=10, width=3))
    (first,) = core.decide(0.0)
    assert first is wide
    second = core.open(Intake(prompt_tokens=10, width=3))
    assert core.decide(0.1) == []
    core.on_answer_end(wide, 1)
    moved(core, pool_of("ab"))
    assert core.active().tolist() == [2, 0] and wide.slots[1] == NOWHERE
    assert core.decide(0.2) == [second] and core.active().tolist() == [2, 3]
    core.on_end(wide)
    core.on_end(second)
    assert not core.active().any() and not core._holds.any_wide


EVENTS = st.lists(
    st.tuples(st.sampled_from(["open", "wide", "token", "back", "end", "round", "move"]), st.integers(0, 50))
)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, policy=st.sampled_from(["br_0", "br_h", "round_robin"]))
def test_books_are_exact_however_often_they_move(events: list[tuple[str, int]], policy: str) -> None:
    core, tickets, now = core_of(pool_of("ab", policy)), list[Ticket](), 0.0
    for what, which in events:
        now += 1.0
        live = [t for t in tickets if t.phase is not Phase.GONE]
        if what in ("open", "wide"):
            tickets.append(core.open(Intake(prompt_tokens=1 + which, width=3 if what == "wide" else 1)))
        elif what == "round":
            core.decide(now)
        elif what == "move":
            new = pool_of(("abc", "ba", "cab")[which % 3], policy)
            if not any(core.workers[t.worker].url == "http://c" for t in live if t.phase is Phase.RUNNING):
                moved(core, new)
        elif live and what == "token":
            ticket = live[which % len(live)]
            core.on_tokens(ticket, ticket.generated[0] + 1, now)
        elif live and what == "back":
            ticket = live[which % len(live)]
            if ticket.intake.width == 1:
                core.give_back(ticket, ticket.generated[0])
                if which % 2:
                    core.again(ticket)
        elif live:
            core.on_end(live[which % len(live)])
        runs = [t for t in tickets if t.phase is Phase.RUNNING]
        assert core.load().sum() == sum(
            (t.prompt if i == 0 else 0) + t.generated[i]
            for t in runs
            for i in range(len(t.slots))
            if t.slots[i] != NOWHERE
        )
        assert core.running == len(runs) and core.tickets == {t for t in tickets if t.phase is not Phase.GONE}
    for ticket in tickets:
        core.on_end(ticket)
    core.decide(now + 1)
    core.decide(now + 2)
    assert not core.load().any() and not core.active().any() and not core._entries


def test_settings_of_policies_change() -> None:
    core = core_of(pool_of("ab"))
    moved(core, msgspec.structs.replace(pool_of("ab"), policy="least_kv", kv_capacity=100))
    assert core.policy_name == "least_kv" and isinstance(core.workers[0], Worker)
    assert core.cluster.capacity.tolist() == [100, 100]


@pytest.mark.parametrize("asks_anew", [False, True])
def test_counts_of_overtaking_are_kept(asks_anew: bool) -> None:
    pool = pool_of("ab", "br_h")
    core, sizes = core_of(pool), np.random.default_rng(1).integers(1, 3000, 40).tolist()
    for size in sizes:
        core.open(Intake(prompt_tokens=size))
    running = core.decide(0.0)
    for now_s in range(1, 9):
        core.on_end(running.pop(0))
        running += core.decide(float(now_s))
    counts = core.cluster.pool.field(OVERTAKEN).tolist()
    assert len(counts) == 24 and max(counts) > 0
    moved(core, pool_of("ba", "br_h"), desk_of(pool) if asks_anew else None)
    assert core.decide(9.0) == [] and core.cluster.pool.field(OVERTAKEN).tolist() == counts
    core.on_end(running.pop(0))
    assert len(core.decide(10.0)) == 1
    left = core.cluster.pool.field(OVERTAKEN).tolist()
    assert len(left) == 23 and sum(left) >= sum(counts) - max(counts)


@pytest.mark.parametrize("policy", ["br_0", "br_h", "olp", "olp_br_h"])
def test_what_the_policy_learned_is_kept_while_fleet_and_settings_stay(policy: str) -> None:
    core = core_of(pool_of("ab", policy))
    tickets = [core.open(Intake(prompt_tokens=10 * (i + 1))) for i in range(12)]
    for step in range(1, 30):
        for ticket in core.tickets:
            core.on_tokens(ticket, step, 0.01 * step)
        core.decide(0.01 * step)
    learned, steps = core.policy, core.cluster.steps
    assert steps > 0
    moved(core, pool_of("ba", policy, usage_options=False))
    assert core.policy is learned and core.cluster.steps == steps
    core.on_end(next(ticket for ticket in tickets if ticket.phase is Phase.RUNNING))
    assert len(core.decide(1.0)) == 1
    moved(core, pool_of("ba", policy, discount=0.5))
    assert core.policy is not learned and core.cluster.dispatched == 0
    again = core.policy
    moved(core, pool_of("bac", policy, discount=0.5))
    assert core.policy is not again
    assert len(core.decide(1.1)) == 3
