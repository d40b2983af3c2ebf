"""Online recalibration: drift is made good, a calibrated forecaster is left alone, and its bounds hold."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import BundleError
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.recalibration import EVERY, LARGEST_SHIFT, LEAST, SLOPE_BOUNDS, WINDOW, Recalibration
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


def drifted(hazard: FloatArray, slope: float, shift: float) -> FloatArray:
    base = GRID.base_logit
    told = np.log(hazard) - np.log1p(-hazard)
    return np.asarray(1.0 / (1.0 + np.exp(-(base + shift + slope * (told - base)))))


def told_hazards(rng: np.random.Generator) -> FloatArray:
    z = GRID.base_logit + rng.normal(0.0, 0.7) + rng.normal(0.0, 0.2, size=len(GRID))
    return np.asarray(1.0 / (1.0 + np.exp(-z)))


def lived_through(slope: float, shift: float, outcomes: int, seed: int = 0) -> Recalibration:
    rng = np.random.default_rng(seed)
    online = Recalibration(GRID)
    for _ in range(outcomes):
        hazard = told_hazards(rng)
        online.observe(hazard, *outcome(drifted(hazard, slope, shift), rng))
    return online


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.7), (1.0, -0.5), (0.4, 0.0), (0.6, 0.4)])
def test_drift_is_made_good(slope: float, shift: float) -> None:
    online = lived_through(slope, shift, WINDOW)
    told = np.stack([told_hazards(np.random.default_rng(i)) for i in range(200)])
    truth = drifted(told, slope, shift)
    before, after = np.abs(told - truth).mean(), np.abs(online.apply(told) - truth).mean()
    assert online.active and after < 0.45 * before


def test_a_calibrated_forecaster_is_left_nearly_alone() -> None:
    told = np.stack([told_hazards(np.random.default_rng(i)) for i in range(200)])
    for seed in range(4):
        online = lived_through(1.0, 0.0, WINDOW, seed)
        assert online.calibration.slope == pytest.approx(1.0, abs=0.12)
        assert np.abs(online.calibration.shift).max() < 0.3
        assert np.abs(online.apply(told) - told).mean() < 0.015


def test_old_outcomes_are_forgotten() -> None:
    online = lived_through(1.0, 1.2, WINDOW)
    wrong = online.calibration.shift.mean()
    rng = np.random.default_rng(9)
    for _ in range(WINDOW + EVERY):
        hazard = told_hazards(rng)
        online.observe(hazard, *outcome(hazard, rng))
    assert wrong > 0.6 and np.abs(online.calibration.shift).max() < 0.2


def test_nothing_is_changed_before_there_is_something_to_go_by() -> None:
    online, hazard = Recalibration(GRID), told_hazards(np.random.default_rng(0))
    for _ in range(LEAST - 1):
        online.observe(hazard, 1, True)
        assert not online.active
        np.testing.assert_array_equal(online.apply(hazard[None, :]), hazard[None, :])
    online.observe(hazard, 1, True)
    assert online.active


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
    assert SLOPE_BOUNDS[0] <= online.calibration.slope <= SLOPE_BOUNDS[1]
    assert np.abs(online.calibration.shift).max() <= LARGEST_SHIFT
    applied = online.apply(np.array([[0.0] * len(GRID), [1.0] * len(GRID), hazard]))
    assert np.isfinite(applied).all() and (applied >= 0.0).all() and (applied <= 1.0).all()


@pytest.mark.parametrize("outcomes", [0, 3, LEAST, LEAST + EVERY - 1, WINDOW + 10])
def test_a_dumped_memory_goes_on_as_the_original(outcomes: int) -> None:
    one, other = lived_through(0.8, 0.3, outcomes), Recalibration(GRID)
    other.load(msgspec.msgpack.decode(msgspec.msgpack.encode(one.dump())))
    rng = np.random.default_rng(1)
    for _ in range(EVERY + 1):
        hazard = told_hazards(rng)
        np.testing.assert_array_equal(one.apply(hazard[None, :]), other.apply(hazard[None, :]))
        end = outcome(hazard, rng)
        one.observe(hazard, *end)
        other.observe(hazard, *end)
    assert one.dump() == other.dump()


def test_memory_is_bounded() -> None:
    sizes = [len(msgspec.msgpack.encode(lived_through(1.0, 0.0, n).dump())) for n in (WINDOW, WINDOW + 200)]
    assert sizes[1] <= sizes[0] + 100


@pytest.mark.parametrize(
    "damage",
    [
        None,
        [],
        [b"abc", [[5, True]], 0, [1.0, [0.0] * len(GRID)]],
        [b"\0" * 4 * len(GRID), [[0, True]], 0, [1.0, [0.0] * len(GRID)]],
        [b"\0" * 4 * len(GRID), [[5, True]], 0, [1.0, [0.0]]],
        [b"", [], 0, [float("nan"), [0.0] * len(GRID)]],
        [b"", [], 0, [1.0, [float("inf")] * len(GRID)]],
        [np.full(len(GRID), np.nan, dtype=np.float32).tobytes(), [[5, True]], 0, [1.0, [0.0] * len(GRID)]],
    ],
)
def test_a_damaged_memory_is_refused(damage: object) -> None:
    online = lived_through(0.8, 0.3, LEAST)
    before = online.dump()
    with pytest.raises(BundleError, match="recalibration state is damaged"):
        online.load(damage)
    assert online.dump() == before
