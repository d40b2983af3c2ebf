"""The cluster core against a slow model of it: after any events, the books are those of counting everything anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from endcast.errors import InputError, SimulationError
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.policies import POLICIES
from endcast.router.policy import Decisions, PolicySettings
from endcast.router.pool import AT_ONCE
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch, log_survival_from_hazard

HORIZON = 7
#: KV tokens that are never used up: memory is bounded, so that requests may be thrown out, and always has room.
AMPLE = 10**9
EDGES = np.array([0, 1, 2, 4, 9, 30])


def make(
    slots: list[int], policy: str = "br_h", *, capacity: int = UNLIMITED, curves: CurveTable | None = None
) -> ClusterState:
    return ClusterState(
        slots=np.array(slots),
        capacity=np.full(len(slots), capacity),
        policy=POLICIES.get(policy)(PolicySettings(horizon=HORIZON)),
        curves=curves,
    )


def table(hazards: list[list[float]]) -> CurveTable:
    return CurveTable.from_log_survival(EDGES, log_survival_from_hazard(hazards))


def batch(curves: CurveTable, row: int, position: int, cap: int) -> SurvivalBatch:
    return SurvivalBatch(curves, np.array([row]), np.array([position]), np.array([cap]), 0)


def decisions(*placed: tuple[int, int]) -> Decisions:
    return Decisions(np.array([p for p, _ in placed], dtype=np.int64), np.array([g for _, g in placed], dtype=np.int64))


@dataclass
class Known:
    """What the slow model remembers of a request: its newest forecast, and the tokens generated when it was made."""

    prompt: int
    forecast: SurvivalBatch
    made_at: int = 0
    generated: int = 0
    overtaken: int = 0

    def load(self) -> np.ndarray:
        """(H+1,), expected: by the closed form, from scratch. It is there now, whatever its cap says."""
        h = np.arange(HORIZON + 1)
        now = self.forecast.advance(self.generated - self.made_at)
        survival = np.array([float(now.survival_at(int(i))[0]) for i in h])
        survival[0] = 1.0
        expected: np.ndarray = (self.prompt + self.generated + h) * survival
        return expected


HAZARD = st.one_of(st.just(0.0), st.floats(0.0, 0.9), st.just(1.0))
CURVE = st.lists(HAZARD, min_size=len(EDGES) - 1, max_size=len(EDGES) - 1)


@settings(max_examples=40, stateful_step_count=30, deadline=None)
class ClusterMachine(RuleBasedStateMachine):
    """Random events, fed to the core and to lists of ``Known``."""

    @initialize(
        slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        shared=st.one_of(st.none(), st.lists(CURVE, min_size=1, max_size=3)),
    )
    def begin(self, slots: list[int], shared: list[list[float]] | None) -> None:
        self.shared = None if shared is None else table(shared)
        self.state = make(slots, curves=self.shared, capacity=AMPLE)
        self.preempted: list[list[int]] = [[] for _ in slots]
        self.waiting: list[int] = []
        self.running: dict[int, int] = {}  # slot → request
        self.known: dict[int, Known] = {}
        self.count = 0

    def forecast(self, data: st.DataObject, cap: int) -> SurvivalBatch:
        curves = self.shared or table([data.draw(CURVE)])
        row = data.draw(st.integers(0, len(curves.log_tail) - 1))
        return batch(curves, row, data.draw(st.integers(0, 40)), cap)

    @rule(prompt=st.integers(0, 5000), cap=st.sampled_from([0, 1, 3, 50, NO_CAP]), data=st.data())
    def arrive(self, prompt: int, cap: int, data: st.DataObject) -> None:
        made = self.forecast(data, cap)
        self.state.arrive(np.array([self.count]), np.array([prompt]), np.array([float(self.count)]), forecasts=made)
        self.known[self.count] = Known(prompt, made)
        self.waiting.append(self.count)
        self.count += 1

    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        free = self.state.view().free.copy()
        order = data.draw(st.permutations(range(len(self.waiting))))
        placed = []
        for position in order[: data.draw(st.integers(0, len(order)))]:
            g = data.draw(st.integers(0, len(free) - 1))
            if free[g] > 0:
                free[g] -= 1
                placed.append((position, g))
        started = self.state.apply(decisions(*placed))
        assert started.request.tolist() == [self.waiting[p] for p, _ in placed]
        assert self.state.slots.worker[started.slot].tolist() == [g for _, g in placed]
        for done, (position, _) in enumerate(placed):
            still = [p for p in range(position) if p not in {q for q, _ in placed[: done + 1]}]
            for p in still:
                self.known[self.waiting[p]].overtaken += 1
        self.running |= dict(zip(started.slot.tolist(), started.request.tolist(), strict=True))
        self.waiting = [r for p, r in enumerate(self.waiting) if p not in {q for q, _ in placed}]

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        tokens = np.array([data.draw(st.integers(0, 25)) for _ in range(len(self.state.slots))])
        ended = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=3))  # empty and repeated slots too
        self.state.stepped(tokens, np.array(ended, dtype=np.int64))
        for slot, request in list(self.running.items()):
            self.known[request].generated += int(tokens[slot])
            if slot in ended:
                del self.known[self.running.pop(slot)]

    @rule(data=st.data())
    def news(self, data: st.DataObject) -> None:
        if self.running:
            slot = data.draw(st.sampled_from(sorted(self.running)))
            made = self.forecast(data, data.draw(st.sampled_from([1, 5, NO_CAP])))
            self.state.news(np.array([slot]), made)
            known = self.known[self.running[slot]]
            known.forecast, known.made_at = made, known.generated

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.waiting:
            position = data.draw(st.integers(0, len(self.waiting) - 1))
            gone = self.waiting.pop(position)
            assert self.state.withdrawn(np.array([position])).tolist() == [gone]
            del self.known[gone]

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        if self.running:
            slots = data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, max_size=3, unique=True))
            assert self.state.preempt(np.array(slots)).tolist() == []
            for slot in slots:
                self.preempted[int(self.state.slots.worker[slot])].append(self.running.pop(slot))

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        worker = data.draw(st.integers(0, len(self.preempted) - 1))
        free = int(self.state.slots.sizes[worker] - self.state.slots.active[worker])
        taken = self.state.resume(np.array([worker])).tolist()
        expected = [self.preempted[worker].pop() for _ in range(min(free, len(self.preempted[worker])))]
        assert self.state.slots.request[taken].tolist() == expected
        self.running |= dict(zip(taken, expected, strict=True))

    @rule(data=st.data(), back=st.booleans())
    def lose(self, data: st.DataObject, back: bool) -> None:
        """A worker is lost and returns; what was there is forgotten, or waits in front with what it has generated."""
        worker = data.draw(st.integers(0, len(self.state.slots.sizes) - 1))
        own = [slot for slot in sorted(self.running) if self.state.slots.worker[slot] == worker]
        held = [self.running.pop(slot) for slot in own] + self.preempted[worker][::-1]
        self.preempted[worker] = []
        lost = self.state.lose(worker)
        assert lost.request.tolist() == held and lost.started.all()
        assert lost.generated.tolist() == [self.known[request].generated for request in held]
        assert not self.state.view().accepting[worker]
        self.state.accept(worker, True)
        for request in reversed(held):
            known = self.known.pop(request)
            if back:
                made = known.forecast.advance(known.generated - known.made_at)
                again = Known(known.prompt + known.generated, made, overtaken=AT_ONCE)
                if self.shared is None:
                    again.forecast = made = self.forecast(data, NO_CAP)
                arrived = np.array([float(request)])
                self.state.arrive(np.array([request]), np.array([again.prompt]), arrived, forecasts=made, front=True)
                self.known[request] = again
                self.waiting.insert(0, request)

    @invariant()
    def books_are_those_of_counting_anew(self) -> None:
        view, slots = self.state.view(), self.state.slots
        requests = [self.known[r] for r in self.running.values()]
        owner = [int(slots.worker[slot]) for slot in self.running]
        workers = range(len(slots.sizes))
        assert view.active.tolist() == [owner.count(g) for g in workers]
        blocked = [len(held) > 0 for held in self.preempted]
        assert view.free.tolist() == [0 if blocked[g] else int(slots.sizes[g]) - owner.count(g) for g in workers]
        out = [[self.known[r] for r in held] for held in self.preempted]
        assert view.queued.tolist() == [len(held) for held in out]
        assert view.queued_tokens.tolist() == [sum(k.prompt + k.generated for k in held) for held in out]
        held = [sum(k.prompt + k.generated for k, o in zip(requests, owner, strict=True) if o == g) for g in workers]
        assert view.load.tolist() == held
        assert view.room.tolist() == [AMPLE - held[g] - owner.count(g) for g in workers]
        assert view.waiting.tolist() == self.waiting
        assert view.waiting_prompt.tolist() == [self.known[r].prompt for r in self.waiting]
        assert view.waiting_arrival_s.tolist() == [float(r) for r in self.waiting]
        assert view.waiting_overtaken.tolist() == [self.known[r].overtaken for r in self.waiting]
        assert self.state.book is not None
        assert len(self.state.book) == len(self.known)

    @invariant()
    def windows_are_those_of_recomputation(self) -> None:
        forecast = self.state.view().forecast
        assert forecast is not None
        anew = np.zeros_like(forecast.load)
        for slot, request in self.running.items():
            anew[self.state.slots.worker[slot]] += self.known[request].load()
        np.testing.assert_allclose(forecast.load, anew, rtol=2e-6, atol=1e-3)
        for request, row in zip(self.waiting, forecast.waiting_row, strict=True):
            np.testing.assert_allclose(forecast.waiting_load[row], self.known[request].load(), rtol=2e-6, atol=1e-3)


TestClusterMachine = ClusterMachine.TestCase


@pytest.mark.parametrize("tokens", [(1, 2), (0, 4), (1, 60)], ids=["one a step", "few a step", "many a step"])
@pytest.mark.parametrize("shared", [True, False], ids=["one table", "tables of their own"])
def test_windows_over_a_long_run(shared: bool, tokens: tuple[int, int]) -> None:
    """Twelve slots over 200 steps: load curves are read at every offset, run out, are made anew and replaced."""
    rng = np.random.default_rng(4)
    curves = [table(rng.beta(0.3, 3.0, (5, 5)).tolist()) for _ in range(4)]
    state = make([4, 4, 4], curves=curves[0] if shared else None)
    known: dict[int, Known] = {}
    for k in range(200):
        new = np.arange(2 * k, 2 * k + 2)
        made = [batch(curves[0 if shared else k % 4], k % 5, int(rng.integers(0, 40)), 90) for _ in new]
        for j, forecast in zip(new.tolist(), made, strict=True):
            one = np.array([j])
            state.arrive(one, one % 700, one.astype(float), forecasts=forecast)
            known[j] = Known(j % 700, forecast)
        free = np.repeat(np.arange(3), state.view().free)
        state.apply(
            decisions(*zip(range(len(free)), free.tolist(), strict=False))
            if len(free) < len(state.pool)
            else decisions()
        )
        forecast_view = state.view().forecast
        assert forecast_view is not None
        anew, slots = np.zeros_like(forecast_view.load), state.slots
        for slot in np.flatnonzero(slots.request >= 0):
            one_known = known[int(slots.request[slot])]
            one_known.generated = int(slots.generated[slot])
            anew[slots.worker[slot]] += one_known.load()
        np.testing.assert_allclose(forecast_view.load, anew, rtol=2e-6, atol=1e-3)
        state.stepped(rng.integers(*tokens, len(slots)), np.flatnonzero(rng.random(len(slots)) < 0.02))
        told = int(rng.integers(len(slots)))
        if slots.request[told] >= 0:
            fresh = batch(curves[0 if shared else k % 4], k % 5, int(rng.integers(0, 40)), 70)
            state.news(np.array([told]), fresh)
            whose = known[int(slots.request[told])]
            whose.forecast, whose.made_at = fresh, int(slots.generated[told])


def arrivals(state: ClusterState, prompts: list[int]) -> None:
    k = np.arange(len(prompts))
    state.arrive(k, np.array(prompts), k.astype(float))


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        ([(2, 0)], "does not exist"),
        ([(-1, 0)], "does not exist"),
        ([(0, 0), (0, 1)], "twice"),
        ([(0, 2)], "worker that does not exist"),
        ([(0, -1)], "worker that does not exist"),
        ([(0, 1)], "accepts nothing"),
        ([(0, 0), (1, 0)], "more requests than it has free slots"),
    ],
)
def test_impossible_decisions_are_refused_and_change_nothing(placed: list[tuple[int, int]], says: str) -> None:
    state = make([1, 1], "br_0")
    arrivals(state, [5, 6])
    state.accept(1, False)
    with pytest.raises(SimulationError, match=says):
        state.apply(decisions(*placed))
    assert state.view().waiting.tolist() == [0, 1]
    assert state.view().active.tolist() == [0, 0]


def test_kv_room_counts_the_growth_of_what_runs() -> None:
    """Room for s + 1 beyond L + n: after a prompt of 10 in 22 tokens, 11 are left and one of them is spoken for."""
    state = make([3], "br_0", capacity=22)
    arrivals(state, [10, 10, 9])
    state.apply(decisions((0, 0)))
    assert state.view().room.tolist() == [11]
    with pytest.raises(SimulationError, match="KV room"):
        state.apply(decisions((0, 0), (1, 0)))
    state.apply(decisions((0, 0)))
    assert state.view().room.tolist() == [0]


def test_views_cannot_be_written_to() -> None:
    state = make([2, 2])
    curves = table([[0.1] * 5])
    state.arrive(np.array([0]), np.array([5]), np.zeros(1), forecasts=batch(curves, 0, 0, NO_CAP))
    view = state.view()
    assert view.forecast is not None
    arrays = [getattr(view, name) for name in view.__struct_fields__] + [
        getattr(view.forecast, name) for name in view.forecast.__struct_fields__
    ]
    shown = [array for array in arrays if isinstance(array, np.ndarray)]
    assert len(shown) >= 18
    for array in shown:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(AttributeError):
        view.dispatched = 3  # type: ignore[misc]


def test_queues_keep_their_order_and_let_in_what_fits() -> None:
    state = make([1, 2], "join_shortest_queue")
    arrivals(state, [1, 2, 3, 4, 5])
    started = state.apply(decisions((0, 0), (1, 0), (2, 1), (3, 0), (4, 1)))
    assert started.request.tolist() == [0, 2, 4]
    assert state.view().queued.tolist() == [2, 0]
    assert state.view().queued_tokens.tolist() == [6, 0]
    none = np.zeros(3, dtype=np.int64)
    for follows in ([1], [3], []):
        state.stepped(none, np.array([0]))
        assert state.apply(decisions()).request.tolist() == follows
    assert state.view().queued.tolist() == [0, 0]


def test_a_lost_worker_gives_back_what_ran_and_queued_there() -> None:
    state = make([1, 1], "join_shortest_queue")
    arrivals(state, [1, 2, 3])
    state.apply(decisions((0, 0), (1, 0), (2, 1)))
    lost = state.lose(0)
    assert (lost.request.tolist(), lost.generated.tolist(), lost.started.tolist()) == ([0, 1], [0, 0], [True, False])
    view = state.view()
    assert (view.active.tolist(), view.queued.tolist(), view.load.tolist()) == ([0, 1], [0, 0], [0, 3])
    assert view.accepting.tolist() == [False, True]


def test_memory_follows_the_requests_in_the_system() -> None:
    """100,000 requests with a table of their own each pass through 8 slots and a pool of at most 50."""
    state = make([4, 4])
    curves, rng = table([[0.1] * 5]), np.random.default_rng(0)
    step = np.ones(8, dtype=np.int64)
    for k in range(2000):
        new = np.arange(50 * k, 50 * (k + 1))
        rows = np.zeros(50, dtype=np.int64)
        state.arrive(new, rows + 5, new.astype(float), forecasts=SurvivalBatch(curves, rows, rows, rows + NO_CAP, 0))
        state.apply(decisions(*((int(p), g) for p, g in zip(rng.permutation(50)[:8], [0, 1] * 4, strict=True))))
        state.withdrawn(np.arange(len(state.pool)))
        state.stepped(step, np.arange(8))
    assert state.book is not None
    assert len(state.book) == 0
    assert state.book.rows <= 256


def test_forecasts_must_fit_what_was_declared() -> None:
    curves, other = table([[0.1] * 5]), table([[0.2] * 5])
    one, prompt, now = np.array([0]), np.array([5]), np.zeros(1)
    with pytest.raises(InputError, match="another table"):
        make([1], curves=curves).arrive(one, prompt, now, forecasts=batch(other, 0, 0, NO_CAP))
    with pytest.raises(InputError, match="one for each request"):
        make([1]).arrive(one, prompt, now)
    with pytest.raises(InputError, match="does not use any"):
        make([1], "br_0").news(one, batch(curves, 0, 0, NO_CAP))
    state = make([1])
    state.arrive(one, prompt, now, forecasts=batch(curves, 0, 0, NO_CAP))
    grid = CurveTable.from_log_survival(np.array([0, 5]), np.array([[0.0, -1.0]]))
    with pytest.raises(InputError, match="another grid"):
        state.arrive(one, prompt, now, forecasts=batch(grid, 0, 0, NO_CAP))
