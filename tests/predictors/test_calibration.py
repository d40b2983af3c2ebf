"""Calibration: a known slope and known shifts are found again, and nothing is changed beyond doubt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.datasets.person_period import person_periods
from endcast.predictors.calibration import STRETCHES, Calibration, fit_calibration, log_loss, stretches
from endcast.predictors.grid import IntervalGrid, logit
from endcast.survival import FloatArray, IntArray

EDGES = np.array([0, 5, 10, 20, 30, 45, 60, 80, 110, 150, 200, 300, 600])
GRID = IntervalGrid(EDGES, np.log1p(-0.012) * np.arange(601))


def simulate(logits: FloatArray, rng: np.random.Generator) -> tuple[IntArray, np.ndarray]:
    """Lengths (an interval's last token) and ends of requests with these log-odds (n, K)."""
    ends = rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))
    ended = np.asarray(ends.any(axis=1))
    k = np.where(ended, ends.argmax(axis=1), len(GRID) - 1)
    return EDGES[k + 1], ended


def fitted(told: FloatArray, lengths: IntArray, ended: np.ndarray, *, shifts: bool = True) -> Calibration:
    rows = person_periods(lengths, ended, GRID.edges)
    at = told[rows.request, rows.interval]
    return fit_calibration(GRID.base_logit, GRID.base_hazard, at, rows.interval, rows.event, rows.weight, shifts=shifts)


def forecasts(n: int, rng: np.random.Generator) -> FloatArray:
    """What a model might say: the pooled log-odds, and a part of its own that differs between requests."""
    return GRID.base_logit + rng.normal(0.0, 0.8, size=(n, 1)) + rng.normal(0.0, 0.3, size=(n, len(GRID)))


@pytest.mark.parametrize(("slope", "shift"), [(0.6, 0.5), (1.3, -0.4), (1.0, 0.0), (0.0, 0.3)])
def test_a_known_calibration_is_recovered(slope: float, shift: float) -> None:
    rng = np.random.default_rng(3)
    told = forecasts(40_000, rng)
    truth = Calibration(GRID.base_logit, slope, shift * np.linspace(-1, 1, STRETCHES)[stretches(GRID.base_hazard)])
    found = fitted(told, *simulate(truth.apply(told), rng))
    assert found.slope == pytest.approx(slope, abs=0.04)
    np.testing.assert_allclose(found.shift, truth.shift, atol=0.06)


def test_the_slope_alone() -> None:
    rng = np.random.default_rng(4)
    told = forecasts(20_000, rng)
    found = fitted(told, *simulate(Calibration(GRID.base_logit, 0.7, 0.0 * EDGES[1:]).apply(told), rng), shifts=False)
    assert found.slope == pytest.approx(0.7, abs=0.04) and np.abs(found.shift).max() < 1e-6


def test_a_calibrated_model_is_left_alone() -> None:
    rng = np.random.default_rng(5)
    told = forecasts(5_000, rng)
    found = fitted(told, *simulate(told, rng))
    assert found.slope == pytest.approx(1.0, abs=0.08) and np.abs(found.shift).max() < 0.12


def test_it_is_the_penalised_optimum() -> None:
    """No step from what was found lowers the loss and its penalty."""
    rng = np.random.default_rng(6)
    told = forecasts(400, rng)
    lengths, ended = simulate(0.5 * told, rng)
    found = fitted(told, lengths, ended)
    rows = person_periods(lengths, ended, GRID.edges)
    stretch = stretches(GRID.base_hazard)
    at = told[rows.request, rows.interval]
    base = GRID.base_logit[rows.interval]

    def cost(slope: float, shift: FloatArray) -> float:
        z = base + shift[stretch[rows.interval]] + slope * (at - base)
        penalty = 25.0 * ((slope - 1.0) ** 2 + (shift**2).sum())
        return float(log_loss(z, rows.event, rows.weight).sum() + penalty)

    shift = np.array([found.shift[stretch == s][0] for s in range(STRETCHES)])
    least = cost(found.slope, shift)
    for _ in range(200):
        step = rng.normal(0.0, 0.02, size=1 + STRETCHES)
        assert cost(found.slope + step[0], shift + step[1:]) > least


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 300),
    size=st.sampled_from([0.0, 1.0, 8.0]),
    length=st.sampled_from([1, 5, 40, 600, 9_999]),
    ended=st.booleans(),
)
def test_whatever_happens_it_is_finite(seed: int, n: int, size: float, length: int, ended: bool) -> None:
    """All ends at one place, forecasts far off: Newton's steps settle, and the slope is never negative."""
    rng = np.random.default_rng(seed)
    told = np.clip(GRID.base_logit + rng.normal(0.0, size + 1e-9, size=(n, len(GRID))), logit(0.0), logit(1.0))
    found = fitted(told, np.full(n, length), np.full(n, ended))
    assert np.isfinite(found.slope) and found.slope >= 0.0 and np.isfinite(found.shift).all()


def test_identity_changes_nothing() -> None:
    told = forecasts(10, np.random.default_rng(0))
    np.testing.assert_allclose(Calibration.identity(GRID.base_logit).apply(told), told, rtol=1e-15)


@given(st.lists(st.floats(1e-6, 1.0 - 1e-6), min_size=6, max_size=40))
def test_stretches_cut_the_ends_into_equal_shares(hazards: list[float]) -> None:
    hazard = np.array(hazards)
    stretch = stretches(hazard)
    survival = np.concatenate([[1.0], np.cumprod(1.0 - hazard)[:-1]])
    ends = survival * hazard / (survival * hazard).sum()
    assert (np.diff(stretch) >= 0).all() and stretch.min() >= 0 and stretch.max() <= STRETCHES - 1
    for s in range(STRETCHES):
        share = ends[stretch == s].sum()
        assert share <= 1 / STRETCHES + ends.max() + 1e-9


@given(st.floats(-600, 600), st.sampled_from([0.0, 1.0]), st.floats(0.01, 1.0))
def test_log_loss_by_its_definition(z: float, y: float, w: float) -> None:
    p = 1.0 / (1.0 + np.exp(-z)) if z >= 0 else np.exp(z) / (1.0 + np.exp(z))
    told = float(log_loss(np.array([z]), np.array([y]), np.array([w]))[0])
    q = p if y else 1.0 - p
    assert told >= 0.0
    if 1e-12 < q < 1.0 - 1e-9:
        assert told == pytest.approx(-w * np.log(q), rel=1e-3, abs=1e-9)
