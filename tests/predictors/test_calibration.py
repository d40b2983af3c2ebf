"""Calibration: what it does to log-odds, stretches of equal shares, and the loss by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.predictors.calibration import STRETCHES, Calibration, log_loss, stretches

BASE = np.array([-3.0, -2.0, -1.5, 0.5])


def test_identity_changes_nothing() -> None:
    told = BASE + np.random.default_rng(0).normal(0.0, 1.0, size=(10, len(BASE)))
    np.testing.assert_allclose(Calibration.identity(BASE).apply(told), told, rtol=1e-15)


def test_slopes_pull_to_the_pooled_curve_and_shifts_move_it() -> None:
    calibration = Calibration(BASE, np.array([1.0, 0.5, 0.0, 2.0]), np.array([0.3, 0.0, -0.1, 0.0]))
    np.testing.assert_allclose(calibration.apply(BASE + 1.0), BASE + np.array([1.3, 0.5, -0.1, 2.0]))


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
