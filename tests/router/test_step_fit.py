"""Step times fitted to recorded steps: known lines are found, outliers do not move them, nothing goes below 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError
from endcast.router.step_fit import TERMS, fit_step_time, least_squares_above_zero
from endcast.survival import FloatArray

TRUTH = (0.018, 4e-5, 3e-7)


def steps(count: int = 2000, noise: float = 0.01, seed: int = 0) -> tuple[FloatArray, FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    batch = rng.integers(1, 65, count).astype(np.float64)
    kv_tokens = batch * rng.uniform(200.0, 2500.0, count)
    step_s = TRUTH[0] + TRUTH[1] * batch + TRUTH[2] * kv_tokens
    return step_s * np.exp(rng.normal(0.0, noise, count)), batch, kv_tokens


def test_a_known_line_is_found_and_lies_in_its_intervals() -> None:
    fit = fit_step_time(*steps())
    for name, value in zip(TERMS, TRUTH, strict=True):
        low, high = fit.interval[name]
        assert low <= value <= high, name
        assert getattr(fit.step_time, name) == pytest.approx(value, rel=0.03)
    assert fit.r2 > 0.98 and fit.error < 0.01 and fit.held_out_error < 0.01 and fit.warnings == []


def test_without_noise_it_is_exact() -> None:
    fit = fit_step_time(*steps(noise=0.0))
    assert [getattr(fit.step_time, name) for name in TERMS] == pytest.approx(TRUTH, rel=1e-6)


def test_pauses_do_not_move_the_line() -> None:
    step_s, batch, kv_tokens = steps()
    paused = step_s.copy()
    paused[::20] *= 15.0
    fit, plain = fit_step_time(paused, batch, kv_tokens), fit_step_time(step_s, batch, kv_tokens)
    assert fit.outliers >= 0.05
    for name, value in zip(TERMS, TRUTH, strict=True):
        assert getattr(fit.step_time, name) == pytest.approx(value, rel=0.08), name
    average = np.linalg.lstsq(np.column_stack([np.ones(2000), batch, kv_tokens]), paused, rcond=None)[0]
    assert abs(average[0] - TRUTH[0]) > 3.0 * abs(fit.step_time.fixed_s - TRUTH[0])  # so plain least squares would
    assert plain.outliers < 0.25


def test_batch_and_load_that_go_together_are_said() -> None:
    rng = np.random.default_rng(1)
    batch = rng.integers(1, 65, 500).astype(np.float64)
    fit = fit_step_time(0.02 + 1e-4 * batch * np.exp(rng.normal(0, 0.01, 500)), batch, 1000.0 * batch)
    assert fit.alike > 0.98 and any("rise and fall together" in text for text in fit.warnings)
    assert fit.error < 0.02  # what a step takes is told well all the same


def test_one_batch_size_is_enough_if_the_load_varies() -> None:
    rng = np.random.default_rng(2)
    kv_tokens = rng.uniform(1e3, 1e5, 300)
    fit = fit_step_time(0.02 + 4e-7 * kv_tokens, np.full(300, 64.0), kv_tokens)
    assert fit.step_time.of(64, 5e4) == pytest.approx(0.04, rel=1e-6)


@pytest.mark.parametrize(
    ("count", "says"), [(29, "29 are too few to fit, 30 are needed"), (50, "all have the same batch and load")]
)
def test_what_cannot_be_fitted_is_refused(count: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fit_step_time(np.full(count, 0.02), np.full(count, 8.0), np.full(count, 100.0))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_no_point_of_a_grid_is_better(seed: int, terms: int) -> None:
    """The minimum under x ≥ 0, against many other points."""
    rng = np.random.default_rng(seed)
    design, target = rng.normal(size=(8, terms)), rng.normal(size=8)
    found = least_squares_above_zero(design.T @ design, design.T @ target)
    assert np.all(found >= 0.0)
    others = np.abs(rng.normal(size=(200, terms))) * rng.choice([0.0, 0.1, 1.0, 3.0], size=(200, terms))
    near = np.maximum(found + 0.05 * rng.normal(size=(200, terms)), 0.0)
    lost = [float(np.sum((design @ x - target) ** 2)) for x in (*others, *near)]
    assert np.sum((design @ found - target) ** 2) <= min(lost) + 1e-9
