"""Closed forms of survival curves against sums over single tokens, the slow way that is plainly right."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import CurveTable, Forecast, InputError, SurvivalBatch
from endcast.survival import HAZARD_MIN, NO_CAP, next_forecast_id
from endcast.survival import log_survival_from_hazard as log_survival
from endcast.types import MAX_TOKENS, shown

HAZARD = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 1e-12, 5e-324, 0.5, 1.0 - 1e-15]))


@st.composite
def tables(draw: st.DrawFn) -> CurveTable:
    """Up to three curves over up to six intervals of up to twenty tokens, each interval with any hazard a token."""
    widths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    curves = draw(st.integers(1, 3))
    hazard = np.array(
        draw(st.lists(st.lists(HAZARD, min_size=len(widths), max_size=len(widths)), min_size=curves, max_size=curves))
    )
    edges = np.concatenate([[0], np.cumsum(widths)])
    whole_interval = 1.0 - (1.0 - hazard) ** np.array(widths)
    return CurveTable.from_log_survival(edges, log_survival(whole_interval))


@st.composite
def batches(draw: st.DrawFn) -> SurvivalBatch:
    table = draw(tables())
    n = draw(st.integers(1, 4))
    last = int(table.edges[-1])

    def column(values: st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.int64)

    return SurvivalBatch(
        table=table,
        row=column(st.integers(0, len(table.log_survival) - 1)),
        position=column(st.integers(0, last + 30)),
        cap=column(st.one_of(st.integers(0, 60), st.just(NO_CAP))),
        horizon=draw(st.integers(0, 80)),
    )


def survival_by_hand(batch: SurvivalBatch, i: int, horizon: int) -> list[float]:
    """P(R > h), h = 0 … horizon: one factor 1 − λ a token, read off the interval that the token lies in."""
    table, row = batch.table, batch.row[i]
    out = [1.0 if batch.cap[i] > 0 else 0.0]
    log = 0.0
    for h in range(1, horizon + 1):
        token = batch.position[i] + h  # the token whose survival this factor tells
        k = next((k for k in range(len(table.edges) - 1) if table.edges[k] < token <= table.edges[k + 1]), None)
        if k is None:
            log += table.log_tail[row]
        else:
            width = table.edges[k + 1] - table.edges[k]
            log += (table.log_survival[row, k + 1] - table.log_survival[row, k]) / width
        out.append(math.exp(log) if h < batch.cap[i] else 0.0)
    return out


@given(batches())
def test_survival_is_the_product_over_tokens(batch: SurvivalBatch) -> None:
    assert batch.survival.shape == (len(batch), batch.horizon + 1) and batch.survival.dtype == np.float32
    for i in range(len(batch)):
        by_hand = survival_by_hand(batch, i, batch.horizon)
        np.testing.assert_allclose(batch.survival[i], by_hand, rtol=1e-5, atol=1e-7)
        assert batch.p_end[i] == pytest.approx(1.0 - by_hand[-1], abs=1e-9)


@given(batches())
def test_expected_within_is_the_sum_of_survival(batch: SurvivalBatch) -> None:
    for i in range(len(batch)):
        by_hand = sum(survival_by_hand(batch, i, batch.horizon)[:-1])
        assert batch.expected_within[i] == pytest.approx(by_hand, rel=1e-7, abs=1e-5)


@given(batches())
def test_p_end_and_expected_within_hold_together(batch: SurvivalBatch) -> None:
    """E[min(R,H)] = p_end·E[R | R ≤ H] + (1 − p_end)·H, with the conditional mean summed over the single tokens."""
    for i in range(len(batch)):
        curve = np.array(survival_by_hand(batch, i, batch.horizon))
        ends_at = np.concatenate([[1.0 - curve[0]], curve[:-1] - curve[1:]])
        mean_of_those_that_end = float(np.arange(batch.horizon + 1) @ ends_at)
        whole = mean_of_those_that_end + (1.0 - batch.p_end[i]) * batch.horizon
        assert batch.expected_within[i] == pytest.approx(whole, rel=1e-7, abs=1e-5)


@given(batches(), st.integers(0, 60))
def test_advancing_is_conditioning(batch: SurvivalBatch, tokens: int) -> None:
    """P(R > t + h given R > t) = P(R > t + h)/P(R > t), from the definition, for all that can still be running."""
    later = batch.advance(tokens)
    for i in range(len(batch)):
        curve = survival_by_hand(batch, i, tokens + batch.horizon)
        if curve[tokens] > 1e-12:
            expected = np.array(curve[tokens:]) / curve[tokens]
            np.testing.assert_allclose(later.survival[i], expected, rtol=1e-4, atol=1e-6)


@given(batches(), st.integers(0, 40), st.integers(0, 40))
def test_advancing_twice_is_advancing_once(batch: SurvivalBatch, first: int, second: int) -> None:
    twice, once = batch.advance(first).advance(second), batch.advance(first + second)
    np.testing.assert_array_equal(twice.survival, once.survival)
    np.testing.assert_array_equal(twice.expected_remaining, once.expected_remaining)


@given(batches(), st.floats(1e-9, 1.0 - 1e-9))
def test_a_quantile_is_the_least_that_reaches_it(batch: SurvivalBatch, q: float) -> None:
    quantile = batch.quantile(q)
    for i in range(len(batch)):
        r = int(quantile[i])
        assert 0 <= quantile[i] == r <= batch.cap[i] and (r >= 1 or batch.cap[i] == 0)
        row = batch.take(np.array([i]))
        assert 1.0 - row.survival_at(r)[0] >= q - 1e-9 or r == batch.cap[i]
        if r > 1:
            assert 1.0 - row.survival_at(r - 1)[0] < q + 1e-9


@given(batches())
def test_nothing_leaves_its_bounds(batch: SurvivalBatch) -> None:
    assert np.all(np.diff(batch.survival, axis=1) <= 0)
    assert np.all(batch.survival[:, 0] == (batch.cap > 0))
    assert np.all((batch.p_end >= 0) & (batch.p_end <= 1))
    assert np.all((batch.expected_within >= 0) & (batch.expected_within <= np.minimum(batch.horizon, batch.cap)))
    assert np.all((batch.expected_remaining >= 0) & (batch.expected_remaining <= batch.cap))
    for figure in (batch.survival, batch.p_end, batch.expected_within, batch.expected_remaining, batch.quantile(0.5)):
        assert np.all(np.isfinite(figure))


@given(batches(), st.integers(0, 60))
def test_a_cap_ends_for_certain(batch: SurvivalBatch, beyond: int) -> None:
    capped = batch.cap < NO_CAP
    survives = batch.survival_at(np.minimum(batch.cap, 10_000) + beyond)
    assert np.all(survives[capped] == 0.0)
    at_cap = batch.take(np.flatnonzero(capped)).with_horizon(60)
    assert np.all(at_cap.p_end == 1.0)


@given(batches())
def test_expected_remaining_is_expected_within_a_wide_window(batch: SurvivalBatch) -> None:
    np.testing.assert_allclose(batch.expected_remaining, batch.within(MAX_TOKENS * 10_000), rtol=1e-6, atol=1e-5)


@given(batches(), st.randoms())
def test_row_order_is_irrelevant(batch: SurvivalBatch, random: object) -> None:
    order = np.array(random.sample(range(len(batch)), len(batch)))  # type: ignore[attr-defined]
    shuffled = batch.take(order)
    np.testing.assert_array_equal(shuffled.survival, batch.survival[order])
    np.testing.assert_array_equal(shuffled.quantile(0.9), batch.quantile(0.9)[order])
    np.testing.assert_array_equal(shuffled.expected_within, batch.expected_within[order])


@pytest.mark.parametrize("hazard", [0.0, 5e-324, 1e-12, 1e-9, 0.5, 1.0 - 1e-15, 1.0])
@pytest.mark.parametrize("position", [0, 1, 5, 1_000, MAX_TOKENS, 10**12])
def test_astronomic_positions_and_hazards_stay_finite(hazard: float, position: int) -> None:
    table = CurveTable.from_log_survival(np.array([0, 1, 5]), log_survival([[hazard, hazard]]))
    batch = SurvivalBatch(table, np.array([0]), np.array([position]), np.array([NO_CAP]), horizon=128)
    for figure in (batch.survival, batch.p_end, batch.expected_within, batch.expected_remaining):
        assert np.all(np.isfinite(figure)) and np.all(figure >= 0)
    assert batch.expected_remaining[0] <= 1.0 / HAZARD_MIN * (1 + 1e-6)
    assert 1 <= batch.quantile(0.999)[0] <= 1e11
    assert batch.advance(10**12).p_end[0] <= 1.0


def test_a_constant_hazard_by_hand() -> None:
    """λ = 0.25: S = 1, .75, .5625; E[min(R,2)] = 1.75; E[R] = 4; half have ended by 3 tokens (S(3) = .421875)."""
    table = CurveTable.from_log_survival(np.array([0, 1]), log_survival([[0.25]]))
    batch = SurvivalBatch(table, np.array([0]), np.array([0]), np.array([NO_CAP]), horizon=2)
    np.testing.assert_allclose(batch.survival, [[1.0, 0.75, 0.5625]], rtol=1e-6)
    assert batch.p_end[0] == pytest.approx(0.4375) and batch.expected_within[0] == pytest.approx(1.75)
    assert batch.expected_remaining[0] == pytest.approx(4.0) and batch.quantile(0.5)[0] == 3.0


def test_quantile_at_an_exact_step() -> None:
    """λ = 0.5: P(R ≤ 1) = .5 and P(R ≤ 2) = .75 exactly, so these are reached, not passed."""
    table = CurveTable.from_log_survival(np.array([0, 1]), log_survival([[0.5]]))
    batch = SurvivalBatch(table, np.array([0]), np.array([0]), np.array([NO_CAP]), horizon=0)
    assert [batch.quantile(q)[0] for q in (0.01, 0.5, 0.51, 0.75, 0.76)] == [1.0, 1.0, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1, math.nan, math.inf])
def test_a_quantile_lies_inside(q: float) -> None:
    table = CurveTable.from_log_survival(np.array([0, 1]), log_survival([[0.5]]))
    batch = SurvivalBatch(table, np.array([0]), np.array([0]), np.array([NO_CAP]), horizon=0)
    with pytest.raises(InputError, match="quantile: must lie strictly between 0 and 1"):
        batch.quantile(q)


def one_forecast(cap: int = NO_CAP) -> Forecast:
    table = CurveTable.from_log_survival(np.array([0, 1]), log_survival([[0.25]]))
    batch = SurvivalBatch(table, np.array([0]), np.array([7]), np.array([cap]), horizon=0)
    return Forecast.from_batch(batch, bundle="b", generated=[7], known=[{"model": True}], state_version=3)[0]


@pytest.mark.parametrize("h", [-1, 1.5, math.nan, math.inf, "3", True, None, MAX_TOKENS + 1, 10**6000], ids=shown)
def test_a_window_is_a_whole_number_of_tokens(h: int) -> None:
    for ask in (one_forecast().p_end, one_forecast().expected_within, one_forecast().survival):
        with pytest.raises(InputError, match="horizon: must be a whole number of tokens"):
            ask(h)
    with pytest.raises(InputError, match="horizon"):
        one_forecast().batch.with_horizon(h)


def test_a_forecast_reads_its_own_row() -> None:
    forecast = one_forecast(cap=2)
    assert (forecast.survival(0), forecast.survival(1), forecast.survival(2)) == pytest.approx((1.0, 0.75, 0.0))
    assert forecast.p_end(np.int64(2)) == 1.0  # type: ignore[arg-type]
    assert forecast.expected_remaining == pytest.approx(1.75) == forecast.expected_output_tokens - 7
    assert forecast.quantile(0.9) == 2.0
    assert forecast.known == {"model": True} and forecast.bundle == "b" and forecast.state_version == 3
    assert forecast.p_end(MAX_TOKENS) == 1.0


def test_forecast_ids_are_given_once() -> None:
    ids = [next_forecast_id("x") for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(re.fullmatch(r"x-[0-9a-f]{8}-\d+", forecast_id) for forecast_id in ids)


def test_remaining_tokens_survive_underflow() -> None:
    """Curves that fall below e^-1000 and further: R by the recursion R_k = G + S_{k+1}/S_k·R_{k+1}, edge by edge."""
    hazard = np.full((3, 60), 0.3)
    hazard[0, 5:] = 1.0
    hazard[1, ::7] = 1.0
    table = CurveTable.from_log_survival(np.arange(61), log_survival(hazard))
    assert table.log_survival.min() < -1_000
    by_hand = np.empty((3, 61))
    by_hand[:, 60] = 1.0 / -np.expm1(table.log_tail)
    for k in reversed(range(60)):
        by_hand[:, k] = 1.0 + np.exp(table.log_survival[:, k + 1] - table.log_survival[:, k]) * by_hand[:, k + 1]
    np.testing.assert_allclose(table.remaining_at_edges, by_hand, rtol=1e-12)


def test_a_table_without_curves() -> None:
    table = CurveTable.from_log_survival(np.array([0, 1, 5]), np.empty((0, 3)))
    assert table.remaining_at_edges.shape == (0, 3)
