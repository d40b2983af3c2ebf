"""Curves made anew at landmarks, against sums over single tokens: the slow way that is plainly right."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endcast import CurveTable, SurvivalBatch
from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid
from endcast.predictors.landmarks import EDGES, Conditioned, FurtherGrid, further_edges
from endcast.survival import HAZARD_MAX, HAZARD_MIN, NO_CAP, FloatArray, IntArray, log_survival_from_hazard

MODERATE = st.floats(1e-3, 0.2)
#: What intervals of a bundle's curves can have a token.
WIDE = st.one_of(st.floats(1e-6, 0.999), st.sampled_from([1e-9, 1e-6, 0.999]))
ANY = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1.0, 1e-12, 5e-324, 1.0 - 1e-15]))


def tables(hazard: st.SearchStrategy[float]) -> st.SearchStrategy[CurveTable]:
    """Up to three curves over up to eight intervals of up to twenty tokens, with such a hazard a token in each."""

    @st.composite
    def table(draw: st.DrawFn) -> CurveTable:
        widths = np.array(draw(st.lists(st.integers(1, 20), min_size=2, max_size=8)))
        curves = draw(st.integers(1, 3))
        each = st.lists(hazard, min_size=len(widths), max_size=len(widths))
        token = np.array(draw(st.lists(each, min_size=curves, max_size=curves)))
        edges = np.concatenate([[0], np.cumsum(widths)])
        return CurveTable.from_log_survival(edges, log_survival_from_hazard(1.0 - (1.0 - token) ** widths))

    return table()


@st.composite
def grids(draw: st.DrawFn) -> FurtherGrid:
    """Fine edges up to sixty tokens, and intervals made of them."""
    fine = np.concatenate([[0], np.cumsum(draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)))])
    inner = draw(st.sets(st.sampled_from(fine[1:-1].tolist()))) if len(fine) > 2 else set()
    edges = np.array(sorted({0, *inner, int(fine[-1])}))
    return FurtherGrid(IntervalGrid(edges, np.zeros(int(edges[-1]) + 1)), fine)


@st.composite
def landmarks(draw: st.DrawFn, hazard: st.SearchStrategy[float]) -> tuple[CurveTable, IntArray, IntArray, FurtherGrid]:
    table = draw(tables(hazard))
    n = draw(st.integers(1, 4))
    row = draw(st.lists(st.integers(0, len(table.log_tail) - 1), min_size=n, max_size=n))
    elapsed = draw(st.lists(st.integers(0, int(table.edges[-1]) + 30), min_size=n, max_size=n))
    return table, np.array(row), np.array(elapsed), draw(grids())


def log_stays(table: CurveTable, row: int, token: int) -> float:
    """log P(o > token given o ≥ token)."""
    edges = table.edges.tolist()
    for k in range(len(edges) - 1):
        if edges[k] < token <= edges[k + 1]:
            fall = table.log_survival[row, k + 1] - table.log_survival[row, k]
            return float(fall / (edges[k + 1] - edges[k]))
    return float(table.log_tail[row])


def by_hand(
    table: CurveTable, row: int, elapsed: int, grid: FurtherGrid, hazard: list[float]
) -> tuple[list[float], float]:
    """log P(R > f) at each fine edge f, and the tail: each token of an interval loses in proportion to what it lost before."""
    edges = grid.intervals.edges.tolist()
    least = math.log1p(-HAZARD_MIN)
    curve, scale = [0.0], 1.0
    for k, (start, stop) in enumerate(pairwise(edges)):
        tokens = [log_stays(table, row, elapsed + f) + least for f in range(start + 1, stop + 1)]
        scale = math.log1p(-min(max(hazard[k], Q_MIN), Q_MAX)) / math.fsum(tokens)
        curve += [curve[-1] + scale * math.fsum(tokens[: f - start]) for f in range(start + 1, stop + 1)]
    tail = min(max(scale * float(table.log_tail[row]), math.log1p(-HAZARD_MAX)), least)
    return [curve[f] for f in grid.fine.tolist()], tail


def own_hazard(base: Conditioned, grid: FurtherGrid) -> FloatArray:
    """(n, K), what a model gives that adds nothing."""
    hazard: FloatArray = -np.expm1(np.diff(base.log_survival[:, grid.at], axis=1))
    return hazard


@given(landmarks(WIDE), st.data())
def test_curves_are_what_single_tokens_say(
    drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid], data: st.DataObject
) -> None:
    table, row, elapsed, grid = drawn
    count = len(grid.intervals)
    hazard = np.array([data.draw(st.lists(ANY, min_size=count, max_size=count)) for _ in row])
    curves = grid.curves(Conditioned.of(table, row, elapsed, grid.fine), hazard)
    for i in range(len(row)):
        expected, tail = by_hand(table, int(row[i]), int(elapsed[i]), grid, hazard[i].tolist())
        np.testing.assert_allclose(curves.log_survival[i], expected, rtol=1e-5, atol=1e-9)
        assert curves.log_tail[i] == pytest.approx(tail, rel=1e-5)


@given(landmarks(WIDE))
def test_log_odds_are_those_of_the_conditioned_curve(drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid]) -> None:
    table, row, elapsed, grid = drawn
    logits = Conditioned.of(table, row, elapsed, grid.fine).logits(grid.at)
    edges = grid.intervals.edges.tolist()
    for i in range(len(row)):
        for k in range(len(edges) - 1):
            span = range(int(elapsed[i]) + edges[k] + 1, int(elapsed[i]) + edges[k + 1] + 1)
            stays = sum(log_stays(table, int(row[i]), token) + math.log1p(-HAZARD_MIN) for token in span)
            q = min(max(-math.expm1(stays), Q_MIN), Q_MAX)
            assert logits[i, k] == pytest.approx(math.log(q) - math.log1p(-q), rel=1e-6, abs=1e-12)


@given(landmarks(MODERATE))
@example((CurveTable.from_log_survival(np.array([0, 5, 9]), np.array([[0.0, -0.1, -0.7]])), np.array([0]), np.array([0]),
          FurtherGrid(IntervalGrid(np.array([0, 2, 9]), np.zeros(10)), np.array([0, 1, 2, 5, 9]))))  # fmt: skip
def test_a_model_that_adds_nothing_is_the_admission_curve(
    drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid],
) -> None:
    """Where hazards are its own, the curve is S(e + f)/S(e): at each fine edge and, where these lie at each token, at every
    token; within the billionth of a hazard that every token has besides."""
    table, row, elapsed, grid = drawn
    base = Conditioned.of(table, row, elapsed, grid.fine)
    curves = grid.curves(base, own_hazard(base, grid))
    admission = SurvivalBatch(table, row, elapsed, np.full_like(row, NO_CAP), 0)
    made = SurvivalBatch(curves, np.arange(len(row)), np.zeros_like(row), np.full_like(row, NO_CAP), 0)
    for further in grid.fine.tolist():
        np.testing.assert_allclose(
            made.survival_at(further), admission.survival_at(further), atol=1e-12 + 2e-9 * further
        )
    at = grid.intervals.edges
    dense = FurtherGrid(IntervalGrid(at, np.zeros(int(at[-1]) + 1)), np.arange(int(at[-1]) + 1))
    base = Conditioned.of(table, row, elapsed, dense.fine)
    made = SurvivalBatch(
        dense.curves(base, own_hazard(base, dense)), np.arange(len(row)), np.zeros_like(row), made.cap, 0
    )
    for further in range(int(at[-1]) + 20):  # the tail goes on as well, once the admission curve is in its own
        if further <= at[-1] or (elapsed + at[-1] >= table.edges[-1]).all():
            np.testing.assert_allclose(
                made.survival_at(further), admission.survival_at(further), atol=1e-12 + 2e-9 * further
            )


@given(landmarks(ANY), st.data())
def test_a_curve_is_a_survival_function(
    drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid], data: st.DataObject
) -> None:
    table, row, elapsed, grid = drawn
    hazard = np.array([[data.draw(ANY) for _ in range(len(grid.intervals))] for _ in row])
    curves = grid.curves(Conditioned.of(table, row, elapsed, grid.fine), hazard)
    assert (curves.log_survival[:, 0] == 0.0).all() and (np.diff(curves.log_survival, axis=1) <= 0.0).all()
    assert np.isfinite(curves.log_survival).all() and (curves.log_tail < 0.0).all()
    cap = np.array([data.draw(st.sampled_from([0, 1, 7, NO_CAP])) for _ in row])
    batch = SurvivalBatch(curves, np.arange(len(row)), np.array([data.draw(st.integers(0, 99)) for _ in row]), cap, 80)
    assert (
        (np.diff(batch.survival, axis=1) <= 0.0).all()
        and (batch.survival >= 0.0).all()
        and (batch.survival <= 1.0).all()
    )
    for figure in (batch.expected_within, batch.expected_remaining, batch.quantile(0.999)):
        assert np.isfinite(figure).all() and (figure >= 0.0).all() and (figure <= cap).all()


@given(landmarks(MODERATE), st.data())
def test_an_interval_ends_as_the_model_says(
    drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid], data: st.DataObject
) -> None:
    table, row, elapsed, grid = drawn
    count = len(grid.intervals)
    hazard = np.array([data.draw(st.lists(st.floats(1e-5, 0.999), min_size=count, max_size=count)) for _ in row])
    curves = grid.curves(Conditioned.of(table, row, elapsed, grid.fine), hazard)
    np.testing.assert_allclose(
        -np.expm1(np.diff(curves.log_survival[:, grid.at], axis=1)), hazard, rtol=1e-9, atol=1e-12
    )


@given(landmarks(MODERATE))
def test_landmarks_do_not_depend_on_each_other(drawn: tuple[CurveTable, IntArray, IntArray, FurtherGrid]) -> None:
    table, row, elapsed, grid = drawn
    base = Conditioned.of(table, row, elapsed, grid.fine)
    hazard = own_hazard(base, grid) / 2.0
    together = grid.curves(base, hazard)
    for i in range(len(row)):
        alone = Conditioned.of(table, row[i : i + 1], elapsed[i : i + 1], grid.fine)
        np.testing.assert_array_equal(alone.logits(grid.at)[0], base.logits(grid.at)[i])
        np.testing.assert_array_equal(grid.curves(alone, hazard[i : i + 1]).log_survival[0], together.log_survival[i])


@given(st.sets(st.integers(1, 20_000), min_size=1, max_size=60))
def test_further_edges_are_fine_edges(tokens: set[int]) -> None:
    fine = np.array([0, *sorted(tokens)])
    edges = further_edges(fine)
    assert edges[0] == 0 and edges[-1] == fine[-1] and (np.diff(edges) > 0).all() and np.isin(edges, fine).all()


def test_further_edges_are_the_listed_ones_where_there_are_such() -> None:
    assert further_edges(np.arange(8_193)).tolist() == list(EDGES)
    assert further_edges(np.arange(100)).tolist() == [*EDGES[: EDGES.index(96) + 1], 99]
