"""The grid: edges that fit the log, and curves that are products of hazards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import TrainingError
from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid, choose_edges, logit
from endcast.predictors.product_limit import product_limit
from endcast.survival import CurveTable, FloatArray, IntArray

LOGS = st.builds(
    lambda seed, scale, size: np.random.default_rng(seed).geometric(1 / scale, size=size),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.5, 30.0, 700.0]),
    st.integers(2, 300),
)


def read(table: CurveTable, tokens: IntArray) -> FloatArray:
    """S of each curve (m, t)."""
    return np.exp(table.log_survival_at(np.arange(len(table.log_tail))[:, None], tokens[None, :]))


@settings(max_examples=60)
@given(lengths=LOGS, intervals=st.integers(2, 60), cut=st.integers(1, 400))
def test_edges_are_edges(lengths: IntArray, intervals: int, cut: int) -> None:
    ended = lengths < cut
    if not ended.any():
        ended[0] = True
    grid = IntervalGrid.fit(lengths, ended, intervals)
    edges = grid.edges
    assert edges[0] == 0 and (np.diff(edges) > 0).all() and edges[-1] == lengths[ended].max()
    assert len(grid) == len(edges) - 1 <= 3 * intervals + 2 * (1 / 0.004)
    assert len(grid.base) == edges[-1] + 1 and grid.log_middle.dtype == np.float32
    assert (grid.base_hazard >= Q_MIN).all() and (grid.base_hazard <= Q_MAX).all()
    k = grid.interval_of(np.arange(1, edges[-1] + 1))
    tokens = np.arange(1, edges[-1] + 1)
    assert (edges[k] < tokens).all() and (tokens <= edges[k + 1]).all()
    assert grid.interval_of(np.array([edges[-1] + 5]))[0] == len(grid) - 1
    assert set(edges) <= set(grid.fine) and grid.fine[-1] == edges[-1]
    assert set(range(min(256, int(edges[-1])) + 1)) <= set(grid.fine)


def test_a_length_that_stands_out_gets_an_interval_of_its_own() -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.geometric(1 / 200, size=5_000), np.full(200, 512), np.full(100, 77)])
    edges = choose_edges(lengths, np.ones(len(lengths), dtype=bool), 20)
    assert {511, 512, 76, 77} <= set(edges.tolist())
    smooth = choose_edges(lengths[:5_000], np.ones(5_000, dtype=bool), 20)
    assert not {511, 512} <= set(smooth.tolist())


def test_without_an_end_there_is_nothing_to_learn() -> None:
    with pytest.raises(TrainingError, match="ended by itself"):
        IntervalGrid.fit(np.array([3, 4]), np.array([False, False]), 10)


def test_one_token_each() -> None:
    grid = IntervalGrid.fit(np.ones(9, dtype=np.int64), np.ones(9, dtype=bool), 48)
    assert grid.edges.tolist() == [0, 1] and grid.base_hazard[0] == pytest.approx(9 / 9.5)
    table = grid.curves(grid.base_hazard[None, :])
    np.testing.assert_allclose(read(table, np.array([0, 1, 2]))[0], [1.0, 0.5 / 9.5, (0.5 / 9.5) ** 2], rtol=1e-9)


@settings(max_examples=40)
@given(lengths=LOGS, data=st.data())
def test_curves_are_products_of_hazards(lengths: IntArray, data: st.DataObject) -> None:
    """At each edge S is the product of (1 − hazard); inside an interval hazards are in the pooled ones' proportion."""
    grid = IntervalGrid.fit(lengths, np.ones(len(lengths), dtype=bool), 10)
    hazard = np.array([data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(grid), max_size=len(grid)))])
    kept = 1.0 - np.clip(hazard[0], Q_MIN, Q_MAX)
    table = grid.curves(hazard)
    tokens = grid.fine
    survival = read(table, tokens)[0]
    for t, s in zip(tokens.tolist(), survival.tolist(), strict=True):
        k = int(grid.interval_of(np.array([t]))[0])
        start, stop = int(grid.edges[k]), int(grid.edges[k + 1])
        lost = grid.base[start] - grid.base[stop]
        share = (grid.base[start] - grid.base[t]) / lost if lost > 1e-12 else (t - start) / (stop - start)
        assert s == pytest.approx(math.prod(kept[:k]) * kept[k] ** share, rel=1e-9)
    width = grid.edges[-1] - grid.edges[-2]
    tail = math.prod(kept) * kept[-1] ** (50 / width)
    assert read(table, grid.edges[-1:] + 50)[0, 0] == pytest.approx(tail, rel=1e-6, abs=1e-300)


@settings(max_examples=40)
@given(lengths=LOGS, intervals=st.integers(2, 60))
def test_a_model_that_adds_nothing_is_the_pooled_curve(lengths: IntArray, intervals: int) -> None:
    """Token by token where curves are kept (each up to 256, then every 2 %), and between them where it lies between.

    An interval in which nobody ended keeps its least hazard, ``Q_MIN``: that is all that may differ.
    """
    grid = IntervalGrid.fit(lengths, np.ones(len(lengths), dtype=bool), intervals)
    table = grid.curves(grid.base_hazard[None, :])
    pooled = np.exp(product_limit(lengths, shrink=0.5))
    clipped = 2e-6 * len(grid) if (np.diff(grid.base[grid.edges]) > -Q_MIN).any() else 0.0
    np.testing.assert_allclose(read(table, grid.fine)[0], pooled[grid.fine], atol=1e-9 + clipped)
    every = read(table, np.arange(grid.edges[-1] + 1))[0]
    k = np.searchsorted(grid.fine, np.arange(grid.edges[-1] + 1))
    assert (every <= pooled[grid.fine[np.maximum(k - 1, 0)]] + 1e-9 + clipped).all()
    assert (every >= pooled[grid.fine[k]] - 1e-9 - clipped).all()


def test_log_odds_are_finite() -> None:
    assert logit(0.5) == 0.0 and logit(0.2) == pytest.approx(math.log(0.25))
    assert logit(0.0) == pytest.approx(math.log(1e-6)) and logit(1.0) == pytest.approx(math.log(1e6))
