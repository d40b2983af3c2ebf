"""What the cluster tells beyond its windows, against the closed forms of the curves it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.olp.supply import Supply
from endcast.router.olp.traffic import Traffic
from endcast.router.policies import POLICIES
from endcast.router.policy import Decisions, PolicySettings
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch, log_survival_from_hazard

EDGES = np.array([0, 1, 2, 5, 11, 40, 90])
STEPS = 60


def batch(rng: np.random.Generator, count: int, table: CurveTable) -> SurvivalBatch:
    return SurvivalBatch(
        table,
        rng.integers(0, len(table.log_tail), count),
        rng.choice([0, 0, 3, 60, 300], count),
        rng.choice([1, 4, 70, 500, NO_CAP], count),
        0,
    )


def curves(rng: np.random.Generator, count: int) -> CurveTable:
    hazard = rng.choice([0.0, 0.02, 0.3, 1.0], (count, len(EDGES) - 1), p=[0.3, 0.4, 0.2, 0.1])
    return CurveTable.from_log_survival(EDGES, log_survival_from_hazard(hazard))


def cluster(slots: list[int], shared: CurveTable | None, capacity: list[int] | None = None) -> ClusterState:
    return ClusterState(
        slots=np.array(slots),
        capacity=np.array(capacity or [UNLIMITED] * len(slots)),
        policy=POLICIES.get("olp")(PolicySettings()),
        curves=shared,
    )


def place(state: ClusterState, *worker: int) -> None:
    state.apply(Decisions(np.arange(len(worker)), np.array(worker, dtype=np.int64)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), own=st.booleans(), generated=st.integers(0, 50))
def test_lengths_and_occupancy_are_those_of_the_curves(seed: int, own: bool, generated: int) -> None:
    rng = np.random.default_rng(seed)
    table, prompt = curves(rng, 5), rng.integers(0, 900, 9)
    made = batch(rng, 9, table)
    state = cluster([4, 3], None if own else table)
    state.arrive(np.arange(9), prompt, np.arange(9.0), forecasts=made)
    forecast = state.view().forecast
    assert forecast is not None
    for _ in range(2):  # worked out, then remembered
        expected = forecast.outlook.expected_output(forecast.waiting_row)
        np.testing.assert_allclose(expected, np.maximum(made.expected_remaining, 1.0), rtol=1e-6)
    place(state, 0, 0, 0, 1, 1)
    state.stepped(np.full(7, generated), np.zeros(0, dtype=np.int64))
    later, h = made.take(np.arange(5)).advance(generated), np.arange(STEPS)
    survival = np.array([later.survival_at(int(i)) for i in h]).T
    survival[:, 0] = 1.0  # they are there now, whatever their caps say
    tokens = (prompt[:5, None] + generated + h + 1) * survival
    forecast = state.view().forecast
    assert forecast is not None
    for order in (np.array([0, 1]), np.array([1])):
        requests, held = forecast.outlook.occupancy(order, STEPS)
        for i, g in enumerate(order):
            on = slice(0, 3) if g == 0 else slice(3, 5)
            np.testing.assert_allclose(requests[i], survival[on].sum(axis=0), atol=1e-6)
            np.testing.assert_allclose(held[i], tokens[on].sum(axis=0), rtol=1e-6, atol=1e-5)


def test_a_row_of_the_book_forgets_the_length_of_whoever_had_it_before() -> None:
    table = curves(np.random.default_rng(0), 1)
    state = cluster([1], table)

    def expected(cap: int) -> float:
        state.arrive(
            np.array([cap]),
            np.array([5]),
            np.zeros(1),
            forecasts=SurvivalBatch(table, np.zeros(1, int), np.zeros(1, int), np.array([cap]), 0),
        )
        forecast = state.view().forecast
        assert forecast is not None
        length = float(forecast.outlook.expected_output(forecast.waiting_row)[0])
        state.withdrawn(np.array([0]))
        return length

    assert expected(1) == 1.0
    assert expected(2) > 1.0


def steady(lengths: list[int]) -> SurvivalBatch:
    """Certain to last so long."""
    table = CurveTable(np.array([0, 1]), np.zeros((1, 2)), np.array([-1e-9]))
    count = len(lengths)
    return SurvivalBatch(table, np.zeros(count, int), np.zeros(count, int), np.array(lengths), 0)


def test_supply_is_what_running_requests_leave_by_row() -> None:
    """By hand: workers 0 and 2 are alike, 1 is not; 3 and 2 steps to go, prompts 10 and 20."""
    made = steady([3, 2])
    state = cluster([4, 2, 4], made.table, [100, 100, 100])
    state.arrive(np.arange(2), np.array([10, 20]), np.zeros(2), forecasts=made)
    place(state, 0, 1)
    view = state.view()
    supply = Supply(view, steps=4, every=3, shared=True)
    supply.look(view)
    left, capacity = supply.left(view)
    assert capacity.tolist() == [[8.0, 2.0], [200.0, 100.0]]
    np.testing.assert_allclose(left[0], [[7, 7, 7, 8], [1, 1, 2, 2]], atol=1e-6)
    np.testing.assert_allclose(left[1], [[189, 188, 187, 200], [79, 78, 100, 100]], atol=1e-4)
    state.accept(2, False)
    left, capacity = supply.left(state.view())
    assert capacity.tolist() == [[4.0, 2.0], [100.0, 100.0]]
    np.testing.assert_allclose(left[0, 0], [3, 3, 3, 4], atol=1e-6)


def test_supply_moves_on_between_looks_and_no_worker_is_looked_at_too_seldom() -> None:
    made = steady([30] * 6)
    state = cluster([2] * 6, made.table)
    state.arrive(np.arange(6), np.full(6, 10), np.zeros(6), forecasts=made)
    place(state, *range(6))
    supply = Supply(state.view(), steps=40, every=4, shared=False)
    looked = []
    for step in range(24):
        view = state.view()
        supply.look(view)
        looked.append(int(np.sum(supply._made_at == step)))
        left, _ = supply.left(view)
        np.testing.assert_allclose(left[0], np.tile(np.where(np.arange(40) < 30 - step, 1.0, 2.0), (6, 1)), atol=1e-6)
        assert int(np.min(supply._made_at)) > step - 4
        state.stepped(np.ones(12, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert looked[0] == 6 and max(looked[4:]) <= 2


def test_traffic_learns_the_pace_of_steps_and_arrivals() -> None:
    table = steady([1]).table
    state, traffic, number = cluster([50], table), Traffic(memory=20), 0
    for step in range(400):
        now_s = 0.08 * step
        count = 3
        ids = np.arange(number, number + count)
        made = SurvivalBatch(table, np.zeros(count, int), np.zeros(count, int), np.full(count, 7), 0)
        state.arrive(ids, np.full(count, 100), np.full(count, now_s), forecasts=made)
        number += count
        view = state.view(now_s)
        new = traffic.observe(view, np.full(len(view.waiting), 7), np.ones(len(view.waiting)))
        assert view.waiting[new].tolist() == ids.tolist()
        place(state, *[0] * len(view.waiting))
        state.stepped(np.ones(50, dtype=np.int64), np.flatnonzero(state.slots.generated >= 6))
    assert traffic.step_s == pytest.approx(0.08, rel=1e-3)
    assert traffic.rate == pytest.approx(3.0, rel=1e-3)
    assert len(traffic) == 512
    assert traffic.kv_unit == pytest.approx(100.0 + 3.0)
