"""Costs, updates and supplies of bid prices against their definitions, written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError
from endcast.router.olp.columns import add_column, column_cost, costs_now, explicit_column, fill
from endcast.router.olp.dual import Batch, demand, improve
from endcast.router.olp.prices import project, running_sums, shift
from endcast.router.olp.settings import OlpSettings
from endcast.router.olp.supply import rows_of_workers

SEED = st.integers(0, 2**32 - 1)


def some_prices(seed: int, rows: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.exponential(1.0, (2, rows, steps)) * (rng.random((2, rows, steps)) < 0.7)


@given(
    seed=SEED,
    rows=st.integers(1, 3),
    steps=st.integers(1, 40),
    prompt=st.integers(0, 5000),
    length=st.integers(1, 60),
    start=st.integers(0, 45),
)
def test_a_column_costs_what_lies_on_its_way(
    seed: int, rows: int, steps: int, prompt: int, length: int, start: int
) -> None:
    price = some_prices(seed, rows, steps)
    for row in range(rows):
        column = explicit_column(rows, steps, row=row, prompt=prompt, length=length, start=start)
        slot, kv = column_cost(running_sums(price), row, prompt, length, start)
        assert slot == pytest.approx(float(np.sum(column[0] * price[0])), abs=1e-9)
        assert kv == pytest.approx(float(np.sum(column[1] * price[1])), rel=1e-9, abs=1e-6)


@given(seed=SEED, rows=st.integers(1, 3), steps=st.integers(1, 40), count=st.integers(0, 12))
def test_columns_taken_down_add_up(seed: int, rows: int, steps: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    slope, slow = np.zeros((2, rows, steps + 1)), np.zeros((2, rows, steps))
    for _ in range(count):
        row, prompt, length, start = (int(rng.integers(a, b)) for a, b in ((0, rows), (0, 900), (1, 60), (0, 45)))
        amount = float(rng.random())
        add_column(slope, row, prompt, length, start, amount)
        slow += amount * explicit_column(rows, steps, row=row, prompt=prompt, length=length, start=start)
    np.testing.assert_allclose(fill(slope), slow, atol=1e-7)


def test_costs_now_are_those_of_columns_that_start_now() -> None:
    price, prompt, length = some_prices(0, 2, 16), np.array([3, 700]), np.array([9, 40])
    costs = costs_now(running_sums(price), prompt, length)
    for r in range(2):
        for j in range(2):
            column = explicit_column(2, 16, row=r, prompt=int(prompt[j]), length=int(length[j]), start=0)
            np.testing.assert_allclose(costs[:, r, j], np.sum(column * price, axis=(1, 2)))


@given(seed=SEED, steps=st.integers(0, 30))
def test_prices_move_on_with_the_steps(seed: int, steps: int) -> None:
    price = some_prices(seed, 2, 12)
    moved = price.copy()
    shift(moved, steps)
    slow = price
    for _ in range(steps):
        slow = np.concatenate([slow[:, :, 1:], slow[:, :, -1:]], axis=2)
    np.testing.assert_array_equal(moved, slow)


@given(seed=SEED)
def test_a_projected_step_is_its_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    price, demand, supply = (rng.exponential(1.0, (2, 3, 8)) for _ in range(3))
    supply -= 0.5  # what is expected to run may exceed what there is
    capacity, step = rng.uniform(1.0, 9.0, (2, 3)), rng.uniform(0.0, 2.0, 2)
    expected = np.maximum(price + step[:, None, None] * (demand - supply) / capacity[:, :, None], 0.0)
    project(price, demand, supply, capacity, step)
    np.testing.assert_allclose(price, expected, atol=1e-12)
    assert np.all(price >= 0.0)


def batch(rng: np.random.Generator, count: int = 16, steps: int = 20) -> Batch:
    return Batch(
        prompt=rng.integers(0, 50, count),
        length=rng.integers(1, 15, count),
        start=rng.integers(0, steps, (count, 1)),
        reward=rng.uniform(0.1, 1.0, (count, 1)),
    )


@settings(max_examples=30)
@given(seed=SEED, requests=st.floats(0.0, 1000.0), size=st.floats(0.001, 1.0))
def test_prices_are_never_negative_whatever_comes(seed: int, requests: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    price = np.zeros((2, 2, 20))
    supply, capacity = rng.uniform(-20.0, 20.0, (2, 2, 20)), np.full((2, 2), 20.0)
    for _ in range(10):
        sample = batch(rng)
        improve(
            price, sample, requests=requests, supply=supply, capacity=capacity, step_size=size, kv_unit=40.0, rounds=2
        )
        assert np.all(price >= 0.0) and np.all(np.isfinite(price))


def test_rounds_of_updates_are_updates_in_a_row() -> None:
    """η·(r̄/ō) of each part by itself, from the prices that the part before left."""
    rng = np.random.default_rng(3)
    both, supply, capacity = batch(rng, count=20), rng.uniform(0.0, 5.0, (2, 2, 20)), np.full((2, 2), 20.0)
    given_ = {"requests": 50.0, "supply": supply, "capacity": capacity, "step_size": 0.1, "kv_unit": 40.0}
    price, slow = np.zeros((2, 2, 20)), np.zeros((2, 2, 20))
    scale = improve(price, both, rounds=2, **given_)  # type: ignore[arg-type]
    for part in (slice(0, 10), slice(10, 20)):
        own = Batch(both.prompt[part], both.length[part], both.start[part], both.reward[part])
        each = own.reward.mean() / own.length.mean()
        taken, _ = demand(slow, own.prompt, own.length, own.start, own.reward)
        project(slow, 50.0 * taken, supply, capacity, 0.1 * np.array([each, each / 40.0]))
    np.testing.assert_allclose(price, slow)
    np.testing.assert_allclose(scale, [each, each / 40.0])


def test_prices_rise_under_scarcity_and_fall_back_to_nothing_when_supply_is_ample() -> None:
    rng = np.random.default_rng(0)
    price, capacity = np.zeros((2, 1, 20)), np.array([[8.0], [300.0]])
    scarce = np.repeat(capacity[:, :, None], 20, axis=2) * 0.2
    totals = []
    for supply, requests in ((scarce, 100.0), (5.0 * scarce, 0.5)):
        for _ in range(300):
            sample = batch(rng)
            improve(price, sample, requests=requests, supply=supply, capacity=capacity, step_size=0.1, kv_unit=40.0)
        totals.append(price.sum(axis=(1, 2)))
    assert np.all(totals[0] > 1e-3)
    np.testing.assert_array_equal(totals[1], 0.0)


def test_rows_are_classes_of_equal_workers() -> None:
    slots, capacity = np.array([4, 8, 4, 8, 4]), np.array([90, 90, 90, 70, 90])
    assert rows_of_workers(slots, capacity, shared=True).tolist() == [0, 1, 0, 2, 0]
    assert rows_of_workers(slots, capacity, shared=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"w_latency": -1.0},
        {"w_tail": float("nan")},
        {"latency_scale_s": 0.0},
        {"tail_scale_s": float("inf")},
        {"unit_s": -1.0},
        {"price_horizon": 0},
        {"batch": 1.5},
        {"updates": 0},
        {"update_every": 0},
        {"step_size": -0.1},
        {"fairness": -1.0},
        {"fairness_bound": 0.5},
        {"fairness_s": 0.0},
    ],
)
def test_settings_out_of_bounds_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        OlpSettings(**wrong)  # type: ignore[arg-type]


def test_a_reward_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="at least one weight"):
        OlpSettings(w_latency=0.0, w_ttft=0.0, w_tail=0.0)
