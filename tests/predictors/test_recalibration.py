"""Online recalibration: drift is made good, a calibrated forecaster is left alone, and its bounds hold."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from endcast import BundleError
from endcast.datasets.person_period import person_periods
from endcast.predictors.calibration import STRETCHES, log_loss, stretches
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.recalibration import (
    LARGEST_SHIFT,
    LEAST,
    MEMORY,
    SHIFT_PENALTY,
    SLOPE_BOUNDS,
    SLOPE_PENALTY,
    SPREAD_PENALTY,
    Recalibration,
)
from endcast.survival import FloatArray

EDGES = np.array([0, 5, 10, 20, 30, 45, 60, 80, 110, 150, 200, 300, 600])
GRID = IntervalGrid(EDGES, np.log1p(-0.012) * np.arange(601))


def outcome(hazard: FloatArray, rng: np.random.Generator) -> tuple[int, bool]:
    """Where a generation with these hazards (K,) ends: some token of the interval, or the last edge."""
    ends = rng.random(len(hazard)) < hazard
    if not ends.any():
        return int(EDGES[-1]), False
    k = int(ends.argmax())
    return int(rng.integers(EDGES[k], EDGES[k + 1])) + 1, True


def drifted(hazard: FloatArray, slope: float, shift: float | FloatArray) -> FloatArray:
    base = GRID.base_logit
    told = np.log(hazard) - np.log1p(-hazard)
    return np.asarray(1.0 / (1.0 + np.exp(-(base + shift + slope * (told - base)))))


def told_hazards(rng: np.random.Generator) -> FloatArray:
    z = GRID.base_logit + rng.normal(0.0, 0.7) + rng.normal(0.0, 0.2, size=len(GRID))
    return np.asarray(1.0 / (1.0 + np.exp(-z)))


def lived_through(slope: float, shift: float | FloatArray, outcomes: int, seed: int = 0) -> Recalibration:
    rng = np.random.default_rng(seed)
    online = Recalibration(GRID)
    for _ in range(outcomes):
        hazard = told_hazards(rng)
        online.observe(hazard, *outcome(drifted(hazard, slope, shift), rng))
    return online


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.7), (1.0, -0.5), (0.4, 0.0), (0.6, 0.4)])
def test_drift_is_made_good(slope: float, shift: float) -> None:
    online = lived_through(slope, shift, 1_000)
    told = np.stack([told_hazards(np.random.default_rng(i)) for i in range(200)])
    truth = drifted(told, slope, shift)
    before, after = np.abs(told - truth).mean(), np.abs(online.apply(told) - truth).mean()
    assert online.active and after < 0.45 * before


def test_each_stretch_has_a_shift_of_its_own() -> None:
    truth = np.linspace(-0.8, 0.8, STRETCHES)[stretches(GRID.base_hazard)]
    found = lived_through(1.0, truth, 1_500).calibration.shift
    assert np.abs(found - truth).mean() < 0.3 * np.abs(truth).mean()


def test_it_is_near_the_penalised_optimum() -> None:
    """Of the weighted log loss of all outcomes at once, found by another method: one step an outcome loses little."""
    rng, online, told = np.random.default_rng(5), Recalibration(GRID), []
    for _ in range(900):
        hazard = told_hazards(rng)
        told.append((hazard, *outcome(drifted(hazard, 0.7, 0.3), rng)))
        online.observe(*told[-1])
    hazards, tokens, ended = (np.array(column) for column in zip(*told, strict=True))
    rows = person_periods(tokens, ended, EDGES)
    weight = rows.weight * (1.0 - 1.0 / MEMORY) ** (len(told) - 1 - rows.request)
    base = GRID.base_logit[rows.interval]
    away = (np.log(hazards) - np.log1p(-hazards))[rows.request, rows.interval] - base
    stretch = stretches(GRID.base_hazard)[rows.interval]
    spread = np.linalg.inv(np.full((STRETCHES, STRETCHES), 1 / SLOPE_PENALTY) + np.eye(STRETCHES) / SPREAD_PENALTY)

    def cost(at: FloatArray) -> float:
        slope, shift = at.reshape(2, STRETCHES)
        loss = log_loss(base + shift[stretch] + slope[stretch] * away, rows.event, weight).sum()
        return float(loss + (slope - 1) @ spread @ (slope - 1) / 2 + SHIFT_PENALTY * shift @ shift / 2)

    start = np.repeat([1.0, 0.0], STRETCHES)
    best = minimize(cost, start, method="BFGS")
    first = [int(np.argmax(stretches(GRID.base_hazard) == s)) for s in range(STRETCHES)]
    found = np.concatenate([online.calibration.slope[first], online.calibration.shift[first]])
    np.testing.assert_allclose(found, best.x, atol=0.08)
    assert cost(found) - best.fun < 0.03 * (cost(start) - best.fun)


def test_a_calibrated_forecaster_is_left_nearly_alone() -> None:
    told = np.stack([told_hazards(np.random.default_rng(i)) for i in range(200)])
    for seed in range(4):
        online = lived_through(1.0, 0.0, 1_000, seed)
        assert online.calibration.slope == pytest.approx(1.0, abs=0.25)
        assert np.abs(online.calibration.shift).max() < 0.35
        assert np.abs(online.apply(told) - told).mean() < 0.02


def test_old_outcomes_are_forgotten() -> None:
    online = lived_through(1.0, 1.2, 1_000)
    wrong = online.calibration.shift.mean()
    rng = np.random.default_rng(9)
    for _ in range(4 * MEMORY):
        hazard = told_hazards(rng)
        online.observe(hazard, *outcome(hazard, rng))
    assert wrong > 0.6 and np.abs(online.calibration.shift).max() < 0.25


def test_nothing_is_changed_before_there_is_something_to_go_by() -> None:
    online, hazard = Recalibration(GRID), told_hazards(np.random.default_rng(0))
    for _ in range(LEAST - 1):
        online.observe(hazard, 1, True)
        assert not online.active
        np.testing.assert_array_equal(online.apply(hazard[None, :]), hazard[None, :])
    online.observe(hazard, 1, True)
    assert online.active and (online.apply(hazard[None, :]) != hazard).any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.booleans()), min_size=1, max_size=5),
    st.floats(0.0, 1.0),
    st.integers(1, LEAST + 60),
)
def test_it_stays_within_its_bounds(outcomes: list[tuple[int, bool]], chance: float, rounds: int) -> None:
    """Whatever is told, hazards of 0 and 1 among it."""
    online = Recalibration(GRID)
    hazard = np.full(len(GRID), chance)
    for i in range(rounds):
        online.observe(hazard, *outcomes[i % len(outcomes)])
    assert (online.calibration.slope >= SLOPE_BOUNDS[0]).all() and (online.calibration.slope <= SLOPE_BOUNDS[1]).all()
    assert np.abs(online.calibration.shift).max() <= LARGEST_SHIFT
    applied = online.apply(np.array([[0.0] * len(GRID), [1.0] * len(GRID), hazard]))
    assert np.isfinite(applied).all() and (applied >= 0.0).all() and (applied <= 1.0).all()


@pytest.mark.parametrize("outcomes", [0, 3, LEAST, LEAST + 30])
def test_a_dumped_memory_goes_on_as_the_original(outcomes: int) -> None:
    one, other = lived_through(0.8, 0.3, outcomes), Recalibration(GRID)
    other.load(msgspec.msgpack.decode(msgspec.msgpack.encode(one.dump())))
    rng = np.random.default_rng(1)
    for _ in range(30):
        hazard = told_hazards(rng)
        np.testing.assert_array_equal(one.apply(hazard[None, :]), other.apply(hazard[None, :]))
        end = outcome(hazard, rng)
        one.observe(hazard, *end)
        other.observe(hazard, *end)
    assert one.dump() == other.dump()


def test_memory_is_constant() -> None:
    sizes = [len(msgspec.msgpack.encode(lived_through(1.0, 0.0, n).dump())) for n in (1, 400)]
    assert sizes[0] == sizes[1] < 500


ZEROS, ONES = [0.0] * STRETCHES, [1.0] * STRETCHES


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        [5, [ZEROS] * 3, [ZEROS] * 2],
        [5, [ZEROS] * 2, [ZEROS] * 2, [ONES, ZEROS]],
        [5, [ZEROS] * 3, [[0.0]] * 2, [ONES, ZEROS]],
        [-1, [ZEROS] * 3, [ZEROS] * 2, [ONES, ZEROS]],
        [LEAST + 1, [ZEROS] * 3, [ZEROS] * 2, [ONES, ZEROS]],
        [5, [[-1.0] * STRETCHES] * 3, [ZEROS] * 2, [ONES, ZEROS]],
        [5, [ZEROS] * 3, [[float("nan")] * STRETCHES] * 2, [ONES, ZEROS]],
        [5, [ZEROS] * 3, [ZEROS] * 2, [ZEROS, ZEROS]],
        [5, [ZEROS] * 3, [ZEROS] * 2, [ONES, [9.0] * STRETCHES]],
    ],
)
def test_a_damaged_memory_is_refused(damage: object) -> None:
    online = lived_through(0.8, 0.3, LEAST)
    before = online.dump()
    with pytest.raises(BundleError, match="recalibration state is damaged"):
        online.load(damage)
    assert online.dump() == before


def stepped(outcomes: list[tuple[FloatArray, int, bool]]) -> FloatArray:
    """(2, S), the same filter written down with arrays and a general solver: the oracle of the compiled one."""
    of, base = stretches(GRID.base_hazard), GRID.base_logit
    spread = np.full((STRETCHES, STRETCHES), 1.0 / SLOPE_PENALTY) + np.eye(STRETCHES) / SPREAD_PENALTY
    prior = np.zeros((2 * STRETCHES, 2 * STRETCHES))
    prior[:STRETCHES, :STRETCHES] = np.linalg.inv(spread)
    prior[STRETCHES:, STRETCHES:] = np.eye(STRETCHES) * SHIFT_PENALTY
    nothing = np.stack([np.ones(STRETCHES), np.zeros(STRETCHES)])
    curvature, pull, found = np.zeros((3, STRETCHES)), np.zeros((2, STRETCHES)), nothing
    for number, (hazard, tokens, ended) in enumerate(outcomes, start=1):
        rows = person_periods(np.array([tokens]), np.array([ended]), EDGES)
        reached = slice(len(rows))
        away = (np.log(hazard) - np.log1p(-hazard) - base)[reached]
        slope, shift = found[:, of[reached]]
        chance = 1.0 / (1.0 + np.exp(-(base[reached] + shift + slope * away)))
        bend, uphill = rows.weight * chance * (1.0 - chance), rows.weight * (rows.event - chance)
        parts = np.stack([bend * away**2, bend * away, bend, uphill * away, uphill])
        a, b, c, *rest = np.stack([np.bincount(of[reached], part, minlength=STRETCHES) for part in parts])
        fade = 1.0 - 1.0 / MEMORY
        curvature = fade * curvature + [a, b, c]
        pull = fade * pull + rest + [a * found[0] + b * found[1], b * found[0] + c * found[1]]
        if number >= LEAST:
            blocks = [[np.diag(curvature[0]), np.diag(curvature[1])], [np.diag(curvature[1]), np.diag(curvature[2])]]
            solved = np.linalg.solve(prior + np.block(blocks), pull.ravel() + prior @ nothing.ravel())
            low, high = [[SLOPE_BOUNDS[0]], [-LARGEST_SHIFT]], [[SLOPE_BOUNDS[1]], [LARGEST_SHIFT]]
            found = np.clip(solved.reshape(2, STRETCHES), low, high)
    return found


def test_the_compiled_filter_is_the_one_written_down() -> None:
    rng, online, told = np.random.default_rng(11), Recalibration(GRID), []
    for _ in range(400):
        hazard = told_hazards(rng)
        tokens, ended = outcome(drifted(hazard, 0.6, 0.5), rng)
        ended = ended and bool(rng.random() < 0.8)  # some are cut
        told.append((hazard, tokens, ended))
        online.observe(hazard, tokens, ended)
    np.testing.assert_allclose(online._parameters, stepped(told), rtol=1e-6, atol=1e-7)


def test_a_late_first_forecast_counts_from_the_interval_after_it_on() -> None:
    """Left truncation: only who reached 30 tokens is forecast; the intervals before must not learn that all survive."""
    rng, honest, naive = np.random.default_rng(12), Recalibration(GRID), Recalibration(GRID)
    for _ in range(3_000):
        hazard = told_hazards(rng)
        tokens, ended = outcome(hazard, rng)
        if tokens > 30:
            honest.observe(hazard, tokens, ended, entered=30)
            naive.observe(hazard, tokens, ended)
    told = np.stack([told_hazards(np.random.default_rng(i)) for i in range(100)])
    off = [np.abs(online.apply(told) - told).mean() for online in (honest, naive)]
    assert off[0] < 0.02 and off[1] > 2 * off[0]  # 0.02: as a calibrated one that is met from its first token on
