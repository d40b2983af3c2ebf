"""Forecasts that are made anew while a request runs: when they are asked for, and that windows follow them exactly."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError
from endcast.router import engine
from endcast.router.cluster import UNLIMITED
from endcast.router.engine import RunRecord, play
from endcast.router.entries import FIELDS
from endcast.router.forecasts import ForecastSource, Landmarked, NoForecast, Precomputed
from endcast.router.policies.br_h import BrH
from endcast.router.policy import ClusterView, Decisions, PolicySettings
from endcast.router.scale import StepTime
from endcast.router.slots import Slots
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, CurveTable, IntArray, SurvivalBatch

G, B, HORIZON = 3, 4, 9
EDGES = np.array([0, 1, 3, 10, 40])


def workload(seed: int, count: int) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(0.05, count)),
        prompt=rng.integers(0, 300, count),
        output=rng.geometric(0.04, count),
    )


def landmarks(output: IntArray, every: int, most: int, rng: np.random.Generator) -> Landmarked:
    """Random curves at 0, every, … < min(output, most), each standing somewhere on its curve."""
    count = -(-np.minimum(output, most) // every)
    total = int(count.sum())
    log_survival = -np.cumsum(np.column_stack([np.zeros(total), rng.exponential(0.3, (total, len(EDGES) - 1))]), axis=1)
    table = CurveTable.from_log_survival(EDGES, log_survival)
    cap = np.where(rng.random(total) < 0.3, rng.integers(0, 50, total), NO_CAP)
    batch = SurvivalBatch(table, np.arange(total), rng.integers(0, 30, total), cap, 0)
    return Landmarked("text", batch, np.cumsum(count) - count, count, every)


def run(load: Workload, source: ForecastSource) -> RunRecord:
    return play(
        load,
        BrH(PolicySettings(horizon=HORIZON)),
        slots=np.full(G, B),
        capacity=np.full(G, UNLIMITED),
        step_time=StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-5),
        forecasts=source,
        rng=np.random.default_rng(0),
    )


class Checking(BrH):
    """BR-H that recounts, slowly, every window it is shown: from the source alone and who runs where since when."""

    def __init__(self, load: Workload, source: ForecastSource) -> None:
        super().__init__(PolicySettings(horizon=HORIZON))
        self.load, self.source = load, source
        self.running: dict[int, list[int]] = {}  # request → worker, tokens generated, tokens when last made anew
        self.views = 0

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        assert view.forecast is not None
        expected = np.zeros_like(view.forecast.load)
        for request, (worker, generated, made_at) in self.running.items():
            expected[worker] += self.expected(request, generated, made_at)
        np.testing.assert_allclose(view.forecast.load, expected, rtol=2e-6, atol=1e-3)
        for request, row in zip(view.waiting, view.forecast.waiting_row, strict=True):
            window = self.expected(int(request), 0, 0)
            np.testing.assert_allclose(view.forecast.waiting_load[row], window, rtol=2e-6, atol=1e-3)
        self.views += 1
        return super().decide(view, rng)

    def expected(self, request: int, generated: int, made_at: int) -> np.ndarray:
        """(H+1,): (s + e + h)·P(R > h), the curve made at ``made_at`` tokens and conditioned since."""
        row, h = self.load.row[request : request + 1], np.arange(HORIZON + 1)
        made = self.source.curves(row, np.array([made_at])).advance(generated - made_at)
        survival = made.with_horizon(HORIZON).survival[0].astype(float)
        survival[0] = 1.0
        window: np.ndarray = (self.load.prompt[request] + generated + h) * survival
        return window


def play_checked(load: Workload, source: ForecastSource) -> int:
    """Plays step by step beside the fast path: its own count of tokens, ends and news; the views looked at."""
    policy = Checking(load, source)
    made = engine.Run(
        load,
        policy,
        np.full(G, B),
        np.full(G, UNLIMITED),
        StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-5),
        source,
        np.random.default_rng(0),
    )
    while made.finished < len(load):
        if made.arrived == made.finished:
            made.now = max(made.now, float(load.arrival_s[made.arrived]))
        started = made._route(made._arrivals())
        for request, slot in zip(started.request.tolist(), started.slot.tolist(), strict=True):
            policy.running[request] = [int(made.state.slots.worker[slot]), 0, 0]
        made._decode(started)
        for request, state in list(policy.running.items()):
            state[1] += 1
            if source.refresh_every is not None and state[1] % source.refresh_every == 0:
                state[2] = state[1]
            if state[1] == load.output[request]:
                del policy.running[request]
    return policy.views


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), every=st.integers(1, 20), most=st.sampled_from([1, 30, 1000]))
def test_windows_are_those_of_recomputation(seed: int, every: int, most: int) -> None:
    load = workload(seed, 60)
    source = landmarks(load.output, every, most, np.random.default_rng(seed))
    assert play_checked(load, source) > 20


@dataclass
class Asked:
    """A source that remembers what it was asked."""

    inner: Landmarked
    calls: list[tuple[int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        self.calls += list(zip(row.tolist(), generated.tolist(), strict=True))
        return self.inner.curves(row, generated)


@pytest.mark.parametrize("every", [1, 7, 32])
def test_each_request_is_asked_about_at_admission_and_at_each_multiple(every: int) -> None:
    load = workload(1, 200)
    asked = Asked(landmarks(load.output, every, 10_000, np.random.default_rng(1)))
    run(load, asked)  # type: ignore[arg-type]
    expected = [(r, e) for r in load.row.tolist() for e in range(0, int(load.output[r]), every)]
    assert sorted(asked.calls) == sorted(expected)


def test_news_that_says_what_was_known_changes_nothing() -> None:
    """Landmarks cut from one curve a request are that curve conditioned: the same run as without news."""
    load, every = workload(3, 300), 8
    once = landmarks(load.output, every, 1, np.random.default_rng(3)).batch  # one a request
    count = -(-load.output // every)
    request, first = np.repeat(np.arange(len(load)), count), np.cumsum(count) - count
    reached = (np.arange(len(request)) - first[request]) * every
    again = Landmarked("again", once.take(request).advance(reached), first, count, every)
    np.testing.assert_array_equal(run(load, again).finish_s, run(load, Precomputed("once", once)).finish_s)


def test_news_matters() -> None:
    load = workload(3, 300)
    fresh = landmarks(load.output, 8, 10_000, np.random.default_rng(5))
    stale = Precomputed("stale", fresh.batch.take(fresh.first))
    assert np.any(run(load, fresh).worker != run(load, stale).worker)


def test_the_curve_is_the_latest_landmarks() -> None:
    """Two requests with landmarks at 0 and 4, and at 0 only; hazards .1, .5 and .2."""
    hazard = np.array([0.1, 0.5, 0.2])
    table = CurveTable.from_log_survival(np.array([0, 1]), np.column_stack([np.zeros(3), np.log1p(-hazard)]))
    batch = SurvivalBatch(table, np.arange(3), np.zeros(3, dtype=np.int64), np.array([9, 5, 7]), 0)
    source = Landmarked("text", batch, np.array([0, 2]), np.array([2, 1]), 4)
    row, generated = np.array([0, 0, 0, 0, 1]), np.array([0, 3, 4, 6, 6])
    now = source.curves(row, generated)
    assert now.survival_at(1).tolist() == pytest.approx([0.9, 0.9, 0.5, 0.5, 0.0])
    assert now.cap.tolist() == [9, 6, 5, 3, 1]
    assert source.refresh_every == 4


@pytest.mark.parametrize(
    ("first", "count", "every", "match"),
    [
        ([0, 2], [2, 2], 4, "first"),
        ([-1, 2], [2, 1], 4, "first"),
        ([0], [2, 1], 4, "first"),
        ([0, 2], [2, 1], 0, "every"),
    ],
)
def test_landmarks_that_do_not_fit_are_refused(first: list[int], count: list[int], every: int, match: str) -> None:
    with pytest.raises(InputError, match=match):
        Landmarked("text", NoForecast().at_admission(np.arange(3)), np.array(first), np.array(count), every)


def test_a_request_without_any_landmark_is_named() -> None:
    source = Landmarked("text", NoForecast().at_admission(np.arange(1)), np.array([0, 1]), np.array([1, 0]), 4)
    with pytest.raises(InputError, match="request 1 of the log has no forecast"):
        source.curves(np.array([0, 1]), np.array([0, 0]))


@given(
    generated=st.lists(st.integers(0, 100), min_size=4, max_size=4),
    tokens=st.lists(st.integers(0, 50), min_size=4, max_size=4),
    every=st.integers(1, 40),
)
def test_slots_that_reach_a_multiple(generated: list[int], tokens: list[int], every: int) -> None:
    """Slots 0, 1 and 2 are taken; several tokens a step may pass a multiple without standing on it."""
    slots, none = Slots(np.array([2, 2])), np.zeros(0, dtype=np.int64)
    entries = np.zeros((FIELDS, 3), dtype=np.int64)
    taken = slots.occupy(np.array([0, 0, 1]), entries)
    slots.advance(np.array(generated), none)
    slots.advance(np.array(tokens), none)
    passed = [
        s for s in taken.tolist() if any(m % every == 0 for m in range(generated[s] + 1, generated[s] + tokens[s] + 1))
    ]
    assert slots.reached(np.array(tokens), every).tolist() == sorted(passed)
