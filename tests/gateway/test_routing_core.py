"""The routing core without HTTP: placements, and books that are exact whatever happens in whatever order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from endcast.router.gateway.config import Pool, WorkerConfig
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import NOWHERE, Intake, Phase, Ticket
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.testing import ConstantHazardForecaster
from endcast.types import EndReason


def make_core(policy: str = "br_0", *, workers: int = 3, slots: int = 2, **settings: Any) -> RoutingCore:
    forecaster = "cold_start" if policy in ("br_h", "olp") else None
    pool = Pool(
        workers=tuple(WorkerConfig(url=f"http://w{i}") for i in range(workers)),
        slots=slots,
        policy=policy,
        forecaster=forecaster,
        **settings,
    )
    desk = None
    if forecaster is not None:
        desk = Inline(ConstantHazardForecaster(0.05), ConstantHazardForecaster(0.01), horizon=pool.horizon)
    return RoutingCore(pool, desk=desk, rng=np.random.default_rng(0))


def opened(core: RoutingCore, *prompts: int, **intake: Any) -> list[Ticket]:
    return [core.open(Intake(prompt_tokens=prompt, **intake)) for prompt in prompts]


def expected_load(core: RoutingCore, tickets: list[Ticket]) -> list[int]:
    """Books as they should be, from what was told of each request."""
    load = [0] * len(core.workers)
    for ticket in tickets:
        if ticket.phase is Phase.RUNNING:
            for answer, slot in enumerate(ticket.slots):
                if slot != NOWHERE:
                    load[ticket.worker] += ticket.generated[answer] + (ticket.prompt if answer == 0 else 0)
    return load


def test_the_lightest_worker_gets_the_next_request_and_load_follows_the_stream() -> None:
    core = make_core()
    first = opened(core, 100, 50, 10)
    placed = core.decide(0.0)
    assert sorted(t.key for t in placed) == [1, 2, 3]
    assert sorted(t.worker for t in first) == [0, 1, 2] and core.waiting == 0
    (fourth,) = opened(core, 5)
    core.decide(1.0)
    assert fourth.worker == first[2].worker, "10 tokens are the lightest load"
    core.on_tokens(first[0], 7, 1.0)
    core.on_prompt(first[0], 90)
    assert core.load()[first[0].worker] == 97
    core.on_end(first[0])
    assert core.load()[first[0].worker] == 0
    core.on_end(first[0])
    assert core.load().min() == 0 and core.running == 3


def test_counts_that_fall_or_repeat_change_nothing() -> None:
    core = make_core(workers=1)
    (ticket,) = opened(core, 10)
    core.decide(0.0)
    for told in (5, 5, 3, 0, -1):
        core.on_tokens(ticket, told, 0.0)
    assert core.load().tolist() == [15]


def test_what_does_not_fit_waits_and_starts_when_a_slot_is_free() -> None:
    core = make_core(workers=1, slots=1)
    first, second = opened(core, 10, 20)
    assert core.decide(0.0) == [first] and second.phase is Phase.WAITING
    assert core.decide(1.0) == []
    core.on_end(first)
    assert core.decide(2.0) == [second]
    assert core.load().tolist() == [20]


def test_a_worker_that_accepts_nothing_keeps_its_books() -> None:
    core = make_core(workers=2)
    (ticket,) = opened(core, 10)
    core.decide(0.0)
    core.accept(ticket.worker, False)
    later = opened(core, 1, 1, 1)
    core.decide(1.0)
    assert {t.worker for t in later if t.phase is Phase.RUNNING} == {1 - ticket.worker}
    assert core.load()[ticket.worker] == 10
    core.accept(ticket.worker, True)
    core.decide(2.0)
    assert all(t.phase is Phase.RUNNING for t in later)


def test_answers_of_one_request_take_slots_of_one_worker() -> None:
    core = make_core(workers=2, slots=4)
    (narrow,) = opened(core, 500)
    core.decide(0.0)
    (wide,) = opened(core, 10, width=3)
    core.decide(1.0)
    assert wide.worker == 1 - narrow.worker and core.active()[wide.worker] == 3
    for answer in range(3):
        core.on_tokens(wide, 4 + answer, 1.0, answer)
    assert core.load()[wide.worker] == 10 + 4 + 5 + 6
    core.on_answer_end(wide, 1)
    assert core.active()[wide.worker] == 2 and core.load()[wide.worker] == 20
    core.on_end(wide)
    assert core.active()[wide.worker] == 0 and core.load()[wide.worker] == 0


def test_a_worker_held_for_a_wide_request_still_takes_what_the_same_round_placed_there() -> None:
    core = make_core(workers=1, slots=2)
    narrow, wide = opened(core, 10) + opened(core, 10, width=2)
    assert core.decide(0.0) == [narrow] and core.failed_rounds == 0
    core.on_end(narrow)
    assert core.decide(0.1) == [wide]


def test_a_wide_request_gets_its_slots_though_narrow_ones_keep_coming() -> None:
    core = make_core(workers=2, slots=2)
    running = opened(core, 10, 10, 10, 10)
    core.decide(0.0)
    (wide,) = opened(core, 10, width=2)
    for step in range(1, 20):
        running += opened(core, 10)
        core.decide(float(step))
        if wide.phase is Phase.RUNNING:
            break
        core.on_end(next(t for t in running if t.phase is Phase.RUNNING))
    assert wide.phase is Phase.RUNNING and step <= 8
    assert core.active()[wide.worker] == 2


def test_more_answers_than_slots_take_them_all() -> None:
    core = make_core(workers=1, slots=2)
    (wide,) = opened(core, 10, width=9)
    assert core.decide(0.0) == [wide] and core.active().tolist() == [2]
    core.on_tokens(wide, 3, 0.0, 8)
    core.on_end(wide)
    assert core.active().tolist() == [0]


def test_steps_are_seen_in_streams() -> None:
    core = make_core(workers=2, slots=2)
    tickets = opened(core, 10, 10, 10)
    core.decide(0.0)
    new = [core.on_tokens(ticket, step + 1, step * 0.02) for step in range(30) for ticket in tickets]
    assert new == [False] * 3 + [True, False, False] * 29
    assert core.beats.step_s == pytest.approx(0.02) and core.beats.tokens_per_step == pytest.approx(1.0)


def test_another_attempt_waits_again() -> None:
    core = make_core(workers=2, slots=1)
    (ticket,) = opened(core, 10)
    core.decide(0.0)
    failed = ticket.worker
    core.accept(failed, False)
    core.again(ticket)
    assert core.load().tolist() == [0, 0] and core.waiting == 1
    assert core.decide(1.0) == [ticket] and ticket.worker == 1 - failed
    core.on_end(ticket)
    assert (core.waiting, core.running, core.load().tolist()) == (0, 0, [0, 0])


def test_bounded_kv_memory_is_kept() -> None:
    core = make_core(workers=1, slots=8, kv_capacity=100, admission="optimistic:0")
    tickets = opened(core, 60, 60, 30)
    core.decide(0.0)
    assert [t.phase is Phase.RUNNING for t in tickets].count(True) == 2
    assert core.load()[0] == 90
    opened(core, 5, width=4)
    core.decide(1.0)
    assert core.load()[0] <= 100


def test_a_policy_that_decides_the_impossible_is_br_0() -> None:
    class Confused(type(make_core().policy)):  # type: ignore[misc]
        def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
            return Decisions(np.array([0, 0]), np.array([0, 1]))

    core = make_core()
    core.policy = Confused(PolicySettings())
    (ticket,) = opened(core, 10)
    assert core.decide(0.0) == [ticket] and ticket.reason == "br_0: policy failed"
    assert core.failed_rounds == 1 and "twice" in core.problem and core.load().sum() == 10


def test_a_policy_may_refuse_requests() -> None:
    class Strict(type(make_core().policy)):  # type: ignore[misc]
        def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
            return Decisions(np.array([1]), np.array([0]), refused=np.array([0, 2]))

    core = make_core()
    core.policy = Strict(PolicySettings())
    tickets = opened(core, 10, 20, 30)
    told = core.decide(0.0)
    assert [t.phase for t in told] == [Phase.RUNNING, Phase.REFUSED, Phase.REFUSED] and told[0] is tickets[1]
    for ticket in tickets:
        core.on_end(ticket)
    assert (core.waiting, core.running, core.load().sum()) == (0, 0, 0)


POLICIES = ["br_0", "br_h", "least_kv", "round_robin", "olp"]


class Books(RuleBasedStateMachine):
    """Anything may happen to any request at any time; the books always say what was told, and empty out."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        workers=st.integers(1, 3),
        slots=st.integers(1, 3),
        capacity=st.sampled_from([None, 60]),
    )
    def begin(self, policy: str, workers: int, slots: int, capacity: int | None) -> None:
        self.core = make_core(policy, workers=workers, slots=slots, kv_capacity=capacity)
        self.tickets: list[Ticket] = []
        self.now_s = 0.0
        self.down: set[int] = set()

    def _one(self, pick: int) -> Ticket:
        return self.tickets[pick % len(self.tickets)]

    @rule(prompt=st.integers(1, 40), width=st.sampled_from([1, 1, 1, 2, 4]), cap=st.integers(1, 50))
    def open(self, prompt: int, width: int, cap: int) -> None:
        self.tickets += opened(self.core, prompt, width=width, max_tokens=cap)

    @rule()
    def decide(self) -> None:
        self.now_s += 0.01
        for ticket in self.core.decide(self.now_s):
            assert ticket.phase is Phase.RUNNING and ticket.slots[0] != NOWHERE
            if not self.core.policy.immediate_dispatch:  # else it may have been in that worker's queue before
                assert ticket.worker not in self.down

    @precondition(lambda self: bool(self.tickets))
    @rule(pick=st.integers(0, 1000), tokens=st.integers(-1, 60), answer=st.integers(-1, 4))
    def tokens(self, pick: int, tokens: int, answer: int) -> None:
        self.core.on_tokens(self._one(pick), tokens, self.now_s, answer)

    @precondition(lambda self: bool(self.tickets))
    @rule(pick=st.integers(0, 1000), prompt=st.integers(0, 60))
    def prompt(self, pick: int, prompt: int) -> None:
        self.core.on_prompt(self._one(pick), prompt)

    @precondition(lambda self: bool(self.tickets))
    @rule(pick=st.integers(0, 1000), answer=st.integers(-1, 4))
    def answer_end(self, pick: int, answer: int) -> None:
        self.core.on_answer_end(self._one(pick), answer)

    @precondition(lambda self: bool(self.tickets))
    @rule(pick=st.integers(0, 1000), end=st.sampled_from(list(EndReason)))
    def end(self, pick: int, end: EndReason) -> None:
        self.core.on_end(self._one(pick), end)

    @precondition(lambda self: bool(self.tickets))
    @rule(pick=st.integers(0, 1000), back=st.booleans())
    def again(self, pick: int, back: bool) -> None:
        ticket = self._one(pick)
        if back and ticket.intake.width == 1 and ticket.prompt + ticket.generated[0] < 60:  # what some worker holds
            self.core.give_back(ticket, ticket.generated[0])
        else:
            self.core.again(ticket)

    @rule(worker=st.integers(0, 2), up=st.booleans())
    def health(self, worker: int, up: bool) -> None:
        if worker < len(self.core.workers):
            self.core.accept(worker, up)
            (self.down.discard if up else self.down.add)(worker)

    @invariant()
    def books_say_what_was_told(self) -> None:
        if not hasattr(self, "core"):
            return
        active, load = self.core.active(), self.core.load()
        assert (load >= 0).all() and (active >= 0).all()
        phases = [ticket.phase for ticket in self.tickets]
        assert self.core.running == phases.count(Phase.RUNNING)
        assert self.core.waiting == sum(p in (Phase.ARRIVING, Phase.WAITING, Phase.REFUSED) for p in phases)
        assert load.tolist() == expected_load(self.core, self.tickets)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for worker in range(len(self.core.workers)):
            self.core.accept(worker, True)
        for ticket in self.tickets:
            self.core.on_end(ticket)
        for _ in range(len(self.tickets) + 2):
            self.core.decide(self.now_s)
            self.core.load()
        assert (self.core.waiting, self.core.running) == (0, 0)
        assert not self.core.load().any() and not self.core.active().any()
        assert len(self.core.cluster.pool) == 0 and not self.core.cluster.queues.count.any()
        if self.core.cluster.book is not None:
            assert len(self.core.cluster.book) == 0


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=30, stateful_step_count=30)


@pytest.mark.parametrize("policy", POLICIES)
@given(lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12))
@settings(max_examples=4)
def test_every_request_is_served(policy: str, lengths: list[tuple[int, int]]) -> None:
    core = make_core(policy, workers=2, slots=2)
    left = {
        ticket: output for (ticket,), (_, output) in zip([opened(core, p) for p, _ in lengths], lengths, strict=True)
    }
    served = 0
    for step in range(300):
        served += len(core.decide(step * 0.01))
        for ticket in [t for t in left if t.phase is Phase.RUNNING]:
            core.on_tokens(ticket, ticket.generated[0] + 1, step * 0.01)
            left[ticket] -= 1
            if left[ticket] == 0:
                core.on_end(ticket)
                del left[ticket]
        if not left:
            break
    assert not left and served == len(lengths) and not core.load().any()


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_follows_what_is_in_the_system(policy: str) -> None:
    core = make_core(policy, workers=2, slots=2)
    sizes: list[int] = []

    def count() -> int:
        return len(core._entries) + len(core._arriving) + len(core._step._withdrawn)

    for step in range(120):
        tickets = opened(core, 3, 3)
        core.decide(float(step))
        for ticket in tickets:
            core.on_end(ticket)
        sizes.append(count())
    core.decide(200.0)
    core.decide(201.0)
    assert max(sizes) <= 8 and count() == 0
