"""Drift: z is standard normal where nothing drifts, alarms come as rarely as stated, and what drifts is named."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import BundleError, InputError
from endcast.predictors.drift import LEAST, Curve, DriftMonitor, DriftReport, Windows, signed_deviance, threshold
from endcast.predictors.grid import IntervalGrid
from endcast.survival import NO_CAP, FloatArray, IntArray, SurvivalBatch

HAZARD = 0.012
EDGES = np.array([0, 5, 10, 20, 30, 45, 60, 80, 110, 150, 200, 300, 600])
GRID = IntervalGrid(EDGES, np.log1p(-HAZARD) * np.arange(601))


def geometric(hazard: float, cap: int = NO_CAP) -> Curve:
    """Each token is the last one with this chance."""
    table = GRID.curves(-np.expm1(np.log1p(-hazard) * np.diff(EDGES))[None, :])

    def curve(elapsed: IntArray, further: IntArray) -> FloatArray:
        zeros = np.zeros(len(elapsed), dtype=np.int64)
        return SurvivalBatch(table, zeros, elapsed, np.maximum(cap - elapsed, 0), 0).survival_at(further)

    return curve


def watched(
    truth: float, served: float, frozen: float, outcomes: int, *, seed: int = 0, cut: float = 0.0
) -> DriftMonitor:
    """After so many outcomes of geometric length; ``cut`` is the chance a token that a client leaves."""
    rng, monitor = np.random.default_rng(seed), DriftMonitor(GRID)
    curves = geometric(served), geometric(frozen)
    lengths = rng.geometric(truth, size=outcomes)
    leaves = rng.geometric(cut, size=outcomes) if cut else np.full(outcomes, 10**9)
    for length, leave in zip(lengths.tolist(), leaves.tolist(), strict=True):
        monitor.observe(min(length, leave), length <= leave, *curves)
    return monitor


def test_z_is_standard_normal_where_nothing_drifts() -> None:
    reports = [watched(HAZARD, HAZARD, HAZARD, 300, seed=seed).report() for seed in range(40)]
    for name in reports[0].served:
        z = np.array([report.served[name].z for report in reports])
        assert abs(z.mean()) < 0.45 and 0.72 < z.std() < 1.3, name
    assert not any(report.alarm or report.model_alarm for report in reports)


def test_clients_that_leave_do_not_tilt_it() -> None:
    """A third of all generations is cut; that they were says nothing of their length."""
    reports = [watched(HAZARD, HAZARD, HAZARD, 300, seed=seed, cut=0.006).report() for seed in range(40)]
    for name in reports[0].served:
        z = np.array([report.served[name].z for report in reports])
        assert abs(z.mean()) < 0.45 and 0.72 < z.std() < 1.3, name


def test_a_sliding_window_alarms_as_rarely_as_stated() -> None:
    """One measure over a million outcomes, looked at after each: how often does |z| pass the threshold anew?"""
    rng, window, outcomes, rate = np.random.default_rng(1), 1_000, 1_000_000, 0.03
    chance = rng.beta(1.0, 6.0, size=outcomes)
    ended = rng.random(outcomes) < chance
    totals = [np.cumsum(values) for values in (ended.astype(np.float64), chance, chance * (1.0 - chance))]
    sums = [total[window:] - total[:-window] for total in totals]
    beyond = np.flatnonzero(np.abs(signed_deviance(*sums)) > threshold(1, rate))
    episodes = 1 + np.count_nonzero(np.diff(beyond) > window)  # what overlaps with an alarm is the same alarm
    expected = rate * outcomes / window
    assert expected / 2 < episodes < 1.5 * expected


@pytest.mark.parametrize("measures", [1, 10])
@pytest.mark.parametrize("rate", [0.1, 1e-3, 1e-6])
def test_the_threshold_solves_its_equation(measures: int, rate: float) -> None:
    c = threshold(measures, rate)
    assert 2 * measures * c * NormalDist().pdf(c) == pytest.approx(rate, rel=1e-6)
    assert c > 1.0


def test_what_drifts_is_named_and_so_is_who() -> None:
    """Lengths halve; the frozen model does not know, recalibration does."""
    report = watched(2 * HAZARD, 2 * HAZARD, HAZARD, 600).report()
    assert report.model_alarm and not report.alarm
    assert "makes it good" in report.explanation and 0.8 < report.frozen["all tokens"].ratio / 2 < 1.2
    report = watched(2 * HAZARD, HAZARD, HAZARD, 600).report()
    assert report.alarm and report.model_alarm and "train anew" in report.explanation
    assert report.z > report.threshold and report.ratio > 1.15 and report.served[report.measure].alarm
    report = watched(HAZARD / 2, HAZARD, HAZARD, 600).report()
    assert report.alarm and report.z < -report.threshold
    report = watched(HAZARD, HAZARD, HAZARD, 600).report()
    assert not report.alarm and "No drift" in report.explanation


def test_a_trifle_is_no_alarm_however_sure() -> None:
    """Over 12,000 outcomes 8 % more ends are far beyond chance, and not worth anyone's time."""
    rng = np.random.default_rng(2)
    monitor, curve = DriftMonitor(GRID, window=20_000), geometric(HAZARD)
    for length in rng.geometric(1.08 * HAZARD, size=12_000).tolist():
        monitor.observe(length, True, curve, curve)
    report = monitor.report()
    assert report.served["all tokens"].z > report.threshold and not report.alarm


def test_the_window_forgets() -> None:
    monitor, curve = watched(3 * HAZARD, HAZARD, HAZARD, 400), geometric(HAZARD)
    assert monitor.report().alarm
    for length in np.random.default_rng(3).geometric(HAZARD, size=1_000).tolist():
        monitor.observe(length, True, curve, curve)
    assert not monitor.report().alarm


def test_too_early_to_tell() -> None:
    assert "Too early" in DriftMonitor(GRID).report().explanation
    monitor = watched(0.9, HAZARD, HAZARD, LEAST - 1)
    assert not monitor.report().alarm and monitor.report().z > monitor.threshold
    monitor.observe(1, True, geometric(HAZARD), geometric(HAZARD))
    assert monitor.report().alarm


def test_sums_by_hand() -> None:
    """17 tokens, H 16: from the first offset, 0, windows (0, 16] and (16, 32]; intervals up to (10, 20]."""
    monitor, curve = DriftMonitor(GRID, horizons=(16,)), geometric(HAZARD)
    monitor.observe(17, True, curve, curve)
    at_16 = monitor.report().served["H = 16"]
    p = 1 - (1 - HAZARD) ** 16
    assert (at_16.happened, at_16.forecast) == pytest.approx((1.0, 2 * p))
    assert monitor.report().served["all tokens"].forecast == pytest.approx(
        sum(1 - (1 - HAZARD) ** width for width in (5, 5, 10)), rel=1e-5
    )


def test_a_cut_window_counts_with_what_was_still_to_come() -> None:
    windows = Windows(np.array([0]), np.array([0]), np.array([16]), np.array([False]), np.array([6]))
    happened, forecast, variance = windows.sums(geometric(HAZARD), 1)[:, 0]
    p, rest = 1 - (1 - HAZARD) ** 16, 1 - (1 - HAZARD) ** 10
    assert (happened, forecast, variance) == pytest.approx((rest, p, p * (1 - p) - rest * (1 - rest)))


def test_an_end_at_a_cap_says_nothing() -> None:
    """Where the cap lies inside a window, its end is certain."""
    capped = geometric(HAZARD, cap=4)
    monitor = DriftMonitor(GRID, horizons=(16,))
    monitor.observe(4, False, capped, capped)
    at_16 = monitor.report().served["H = 16"]
    assert (at_16.happened, at_16.forecast) == pytest.approx((1.0, 1.0)) and math.isnan(at_16.z)


@given(st.floats(0, 500), st.floats(0.5, 500), st.floats(0.01, 1.0))
def test_signed_deviance_is_near_the_plain_one_and_has_its_sign(happened: float, forecast: float, share: float) -> None:
    z = float(signed_deviance(*(np.array([v]) for v in (happened, forecast, forecast * share)))[0])
    plain = (happened - forecast) / math.sqrt(forecast * share)
    assert np.isfinite(z) and z * plain >= 0.0
    if abs(happened - forecast) < 0.1 * forecast:
        assert z == pytest.approx(plain, rel=0.06, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    outcomes=st.lists(st.tuples(st.integers(1, 10**8), st.booleans()), min_size=1, max_size=20),
    hazard=st.sampled_from([1e-9, 0.01, 0.999999]),
)
def test_whatever_is_told_its_report_can_be_written(outcomes: list[tuple[int, bool]], hazard: float) -> None:
    monitor, curve = DriftMonitor(GRID), geometric(hazard)
    for tokens, ended in outcomes:
        monitor.observe(tokens, ended, curve, curve)
    report = monitor.report()
    assert report.explanation.endswith(".") and report.outcomes == len(outcomes)
    assert isinstance(msgspec.convert(msgspec.to_builtins(report), DriftReport), DriftReport)
    assert not any(math.isinf(one.z) for one in report.served.values())


@pytest.mark.parametrize("outcomes", [0, 3, LEAST + 5])
def test_a_dumped_memory_goes_on_as_the_original(outcomes: int) -> None:
    one, other = watched(HAZARD, HAZARD, 2 * HAZARD, outcomes), DriftMonitor(GRID)
    other.load(msgspec.msgpack.decode(msgspec.msgpack.encode(one.dump())))
    for monitor in (one, other):
        monitor.observe(77, True, geometric(HAZARD), geometric(HAZARD))
    assert one.report() == other.report() or outcomes < LEAST  # NaN is not equal to itself
    assert one.dump() == other.dump()


def test_memory_is_bounded() -> None:
    monitor, curve = DriftMonitor(GRID, window=LEAST), geometric(HAZARD)
    sizes = []
    for tokens in range(1, 3 * LEAST + 1):
        monitor.observe(tokens, True, curve, curve)
        sizes.append(len(msgspec.msgpack.encode(monitor.dump())))
    assert sizes[-1] <= sizes[LEAST] + 8 < 40_000


@pytest.mark.parametrize(
    "damage",
    [None, [], [0, 1, b""], [1, 1, b"abc"], [0, -1, b""], [5, 2_000, b""], [1, 1, b"\xff" * 240], [0, 1, b"\0" * 240]],
)
def test_a_damaged_memory_is_refused(damage: object) -> None:
    monitor = watched(HAZARD, HAZARD, HAZARD, 5)
    before = monitor.dump()
    with pytest.raises(BundleError, match="drift state is damaged"):
        monitor.load(damage)
    assert monitor.dump() == before


@pytest.mark.parametrize(("window", "horizons"), [(LEAST - 1, (16,)), (1_000, (0,))])
def test_settings_are_checked(window: int, horizons: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        DriftMonitor(GRID, window=window, horizons=horizons)


def test_what_is_measured_apart_can_be_taken_in_later() -> None:
    one, other = DriftMonitor(GRID), DriftMonitor(GRID)
    curve = geometric(HAZARD)
    for tokens in (3, 40, 250):
        one.observe(tokens, True, curve, curve)
        other.take(other.measure(tokens, True, curve, curve))
    assert one.dump() == other.dump()
    with pytest.raises(InputError, match="shape"):
        other.take(np.zeros((2, 3, 4), dtype=np.float32))


def test_windows_before_the_first_forecast_do_not_count() -> None:
    monitor, curve = DriftMonitor(GRID), geometric(HAZARD)
    whole, late, none = (monitor.measure(200, True, curve, curve, entered=e) for e in (0, 150, 200))
    happened, forecast = whole[0, 0], whole[0, 1]
    assert (late[0, 1] <= forecast).all() and late[0, 1].sum() < forecast.sum() / 2
    assert late[0, 0, -1] == happened[-1] == 1.0  # it ended after both
    assert not none.any()
