"""Every metric against scikit-learn or a slow, obvious loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from endcast.training import metrics
from endcast.training.metrics import ECE_BINS, LOG_FLOOR, MOST_CONCORDANCE

SOME = settings(max_examples=50, deadline=None)
CHANCE = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
FORECASTS = st.lists(st.tuples(CHANCE, st.sampled_from([0.0, 1.0])), min_size=1, max_size=80)


def arrays(forecasts: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p for p, _ in forecasts]), np.array([y for _, y in forecasts])


@SOME
@given(FORECASTS)
def test_brier_and_log_loss_are_scikit_learns(forecasts: list[tuple[float, float]]) -> None:
    p, y = arrays(forecasts)
    assert metrics.brier(p, y) == pytest.approx(brier_score_loss(y, p, pos_label=1.0), abs=1e-12)
    floored = np.clip(p, LOG_FLOOR, 1.0 - LOG_FLOOR)
    assert metrics.binary_log_loss(p, y) == pytest.approx(log_loss(y, floored, labels=[0.0, 1.0]), rel=1e-9)


@SOME
@given(FORECASTS)
def test_auc_is_the_share_of_pairs_in_order(forecasts: list[tuple[float, float]]) -> None:
    p, y = arrays(forecasts)
    if y.min() == y.max():
        assert math.isnan(metrics.auc(p, y))
        return
    above = [1.0 if a > b else 0.5 if a == b else 0.0 for a in p[y == 1.0] for b in p[y == 0.0]]
    assert metrics.auc(p, y) == pytest.approx(np.mean(above), abs=1e-12)
    assert metrics.auc(p, y) == pytest.approx(roc_auc_score(y, p))


@SOME
@given(FORECASTS, st.data())
def test_weights_are_repetitions(forecasts: list[tuple[float, float]], data: st.DataObject) -> None:
    p, y = arrays(forecasts)
    w = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(p), max_size=len(p))))
    assume(w.sum() > 0)
    repeated = np.repeat(p, w), np.repeat(y, w)
    assert metrics.brier(p, y, w.astype(float)) == pytest.approx(metrics.brier(*repeated))
    assert metrics.auc(p, y, w.astype(float)) == pytest.approx(metrics.auc(*repeated), nan_ok=True)


def test_skill() -> None:
    assert metrics.skill(0.2, 0.2) == 0.0 and metrics.skill(0.0, 0.2) == 1.0
    assert metrics.skill(0.3, 0.2) == pytest.approx(-0.5)
    assert math.isnan(metrics.skill(0.1, 0.0))


@SOME
@given(FORECASTS)
def test_calibration_error_against_a_loop(forecasts: list[tuple[float, float]]) -> None:
    p, y = arrays(forecasts)
    cuts = [float(np.quantile(p, i / ECE_BINS)) for i in range(1, ECE_BINS)]
    bins: dict[int, list[int]] = {}
    for i, chance in enumerate(p):
        bins.setdefault(sum(chance >= cut for cut in cuts), []).append(i)
    error = sum(len(rows) / len(p) * abs(p[rows].mean() - y[rows].mean()) for rows in bins.values())
    assert metrics.ece(p, y) == pytest.approx(error, abs=1e-12)
    mean, share, mass = metrics.reliability(p, y)
    assert mass.sum() == pytest.approx(1.0) and (np.diff(mean) >= -1e-12).all()
    assert (mean * mass).sum() == pytest.approx(p.mean()) and (share * mass).sum() == pytest.approx(y.mean())


def test_bins_have_equal_mass_and_equal_forecasts_share_one() -> None:
    rng = np.random.default_rng(0)
    _, _, mass = metrics.reliability(rng.random(3_000), np.zeros(3_000))
    assert len(mass) == ECE_BINS and np.ptp(mass) < 0.001
    assert metrics.ece(np.full(10, 0.3), np.array([1.0] * 3 + [0.0] * 7)) == pytest.approx(0.0)


def test_a_calibrated_forecast_shows_no_error_beyond_chance() -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(1, 8, size=200_000)
    assert metrics.ece(p, (rng.random(len(p)) < p).astype(float)) < 0.004
    assert metrics.ece(p, (rng.random(len(p)) < 0.7 * p).astype(float)) > 0.03


@SOME
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.5, 7.0]), st.integers(1, 6)), min_size=1, max_size=30))
def test_concordance_against_all_pairs(requests: list[tuple[float, int]]) -> None:
    told, lengths = np.array([t for t, _ in requests]), np.array([n for _, n in requests])
    right = [
        1.0 if told[i] > told[j] else 0.5 if told[i] == told[j] else 0.0
        for i in range(len(told))
        for j in range(len(told))
        if lengths[i] > lengths[j]
    ]
    found = metrics.concordance(told, lengths, np.random.default_rng(0))
    assert found == pytest.approx(np.mean(right) if right else math.nan, nan_ok=True)


def test_concordance_of_a_draw_is_close_to_that_of_all() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 2_000, size=MOST_CONCORDANCE + 4_000)
    noisy = lengths + rng.normal(0, 600, size=len(lengths))
    drawn = metrics.concordance(noisy, lengths, np.random.default_rng(3))
    whole = np.mean(
        [(noisy[:-k] < noisy[k:])[longer].mean() for k in range(1, 40) if (longer := lengths[:-k] < lengths[k:]).any()]
    )
    assert drawn == pytest.approx(whole, abs=0.01)
