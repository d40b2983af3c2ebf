"""What forecasts buy: by hand where that can be done, and on a synthetic log whose hazards are known."""

from __future__ import annotations

import numpy as np
import pytest

from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.synth_apps import App
from endcast.errors import InputError
from endcast.router.forecasts import (
    ForecastSource,
    NoForecast,
    Precomputed,
    kaplan_meier,
    kaplan_meier_curve,
    kaplan_meier_of_log,
)
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch
from endcast.training.value import ORACLE, PlacementValue, ValueSettings, measure_value, truth_of, validation_split
from endcast.training.value_studies import (
    expected_last,
    first_to_drain,
    in_progress,
    order_of_admission,
    remaining_tokens,
)


@pytest.fixture(scope="module")
def synthetic() -> SynthLog:
    """Answers of very different scales that hazards tell apart, prompts alike, so that forecasts matter."""
    app = App(
        name="short",
        share=1.0,
        tenants=3,
        turns=1.0,
        system_tokens=100,
        new_tokens=10,
        kinds={"brief": 0.5, "sentences": 0.5},
        models={"atlas-70b": 1.0},
        caps={},
    )
    return synthesize(SynthSettings(apps=(app,), requests=6000, seed=4, hours=2.0))


@pytest.fixture(scope="module")
def load(synthetic: SynthLog) -> Workload:
    return Workload.from_trace(synthetic.trace)


@pytest.fixture(scope="module")
def blunt(synthetic: SynthLog) -> ForecastSource:
    return kaplan_meier_of_log(synthetic.trace)


@pytest.fixture(scope="module")
def hazards(synthetic: SynthLog) -> ForecastSource:
    """The hazards that the log was drawn from: its own scale and shape for each request, its aborts, its cap."""
    trace, truth = synthetic.trace, synthetic.truth
    edges = np.unique(np.concatenate([np.arange(64), np.geomspace(64, 20_000, 120).astype(np.int64)]))
    survival = truth.survival(edges) * (1.0 - truth.abort_rate)[:, None] ** edges
    table, zero = CurveTable.from_log_survival(edges, np.log(survival)), np.zeros(len(trace), dtype=np.int64)
    cap = np.where(trace.cap < 0, NO_CAP, trace.cap)
    return Precomputed("hazards", SurvivalBatch(table, np.arange(len(trace)), zero, cap, 0))


def small(seed: int = 0, count: int = 300) -> Workload:
    """Two kinds of requests, short and long, of which true lengths tell at once which is which."""
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=rng.integers(1, 300, count),
        output=rng.geometric(rng.choice([0.2, 0.02], count)),
    )


# ---- placement


def test_known_hazards_are_worth_more_than_one_curve_for_all(
    load: Workload, blunt: ForecastSource, hazards: ForecastSource
) -> None:
    """Over five such logs (seeds 1 to 5) they captured .55 to .85, and Kaplan-Meier −.24 to .22."""
    settings = ValueSettings(
        workers=(8,), slots=8, horizons=(40,), discounts=(0.95,), soften=(0.0,), validation=0.1, tuning_seeds=1, seeds=2
    )
    values = measure_value(load, {"kaplan_meier": blunt, "hazards": hazards}, reference=blunt, settings=settings)
    found = {value.forecast: value for value in values}
    assert list(found) == ["kaplan_meier", "hazards", ORACLE]
    efficiency = {name: value.figures.efficiency.mean for name, value in found.items()}
    assert efficiency["hazards"] > efficiency["kaplan_meier"] + 0.01
    assert efficiency["hazards"] > found["hazards"].without.efficiency.mean + 0.01
    assert efficiency["hazards"] < efficiency[ORACLE] + 0.005
    captured, of_best = found["hazards"].captured, found["hazards"].captured_of_best
    assert captured is not None and 0.3 < captured < 1.2
    assert of_best == captured, "with one setting to choose from, both compare with the same"
    assert found[ORACLE].captured == 1.0
    assert all(0.95 < value.figures.kv_per_slot.mean < 1.05 for value in values)


Measured = tuple[Workload, ForecastSource, ValueSettings, tuple[PlacementValue, ...], list[tuple[int, int, str]]]


@pytest.fixture(scope="module")
def measured() -> tuple[
    Workload, ForecastSource, ValueSettings, tuple[PlacementValue, ...], list[tuple[int, int, str]]
]:
    load, told = small(seed=3), list[tuple[int, int, str]]()
    reference = kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_))
    settings = ValueSettings(
        workers=(2, 3), slots=3, horizons=(5, 15), discounts=(0.9,), soften=(0.0, 0.6), tuning_seeds=1, seeds=2
    )
    forecasts: dict[str, ForecastSource] = {"kaplan_meier": reference, "none": NoForecast()}
    values = measure_value(
        load, forecasts, reference=reference, settings=settings, progress=lambda *state: told.append(state)
    )
    return load, reference, settings, values, told


def test_every_forecast_is_measured_on_every_fleet(measured: Measured) -> None:
    values = measured[3]
    expected = [(workers, name) for workers in (2, 3) for name in ("kaplan_meier", "none", ORACLE)]
    assert [(value.workers, value.forecast) for value in values] == expected
    assert all(value.tuning.soften == 0.0 for value in values if value.forecast == "kaplan_meier")


def test_figures_are_those_of_the_simulator_on_the_reporting_part(measured: Measured) -> None:
    """And value captured is its formula; tuning is the best of those tried on the validation part."""
    load, reference, settings, values, _ = measured
    early, late = validation_split(load, settings.validation)
    value = next(v for v in values if (v.workers, v.forecast) == (2, "kaplan_meier"))
    tried = {}
    for horizon in settings.horizons:
        fleet = settings.fleet(2, horizon, 0.9, 1)
        tried[horizon] = (
            simulate(early, fleet, policies=["br_h_published"], forecasts=[reference]).results[0].mean["efficiency"]
        )
    assert value.tuning.horizon == max(tried, key=lambda horizon: tried[horizon])
    assert value.tuning.efficiency == max(tried.values())
    fleet = settings.fleet(2, value.tuning.horizon, 0.9, 2)
    report = simulate(late, fleet, policies=["br_0", "br_h_published"], forecasts=[reference, truth_of(late)])
    of = {
        name: report.result(*key)
        for name, key in (("without", ("br_0", None)), ("figures", ("br_h_published", "kaplan_meier")))
    }
    of["truth"] = report.result("br_h_published", "oracle")
    for name, result in of.items():
        found = getattr(value, name)
        assert (found.efficiency.mean, found.efficiency.deviation) == (
            result.mean["efficiency"],
            result.spread["efficiency"],
        )
        assert found.longest_wait_s.mean == result.mean["wait_s"]["max"]
        assert found.throughput.mean == result.mean["throughput"]
    without, model, truth = (of[name].mean["efficiency"] for name in ("without", "figures", "truth"))
    assert truth > without, "else there is nothing to capture"
    assert value.captured == pytest.approx((model - without) / (truth - without))


def test_progress_counts_to_the_end(measured: Measured) -> None:
    told = measured[4]
    done = [state[0] for state in told]
    assert done == sorted(done) and done[0] == 0
    assert {state[1] for state in told} == {2 * (2 + 4 + 4 + 2 * 7)}
    assert told[-1] == (48, 48, "done") and max(done[:-1]) < 48


def test_parts_are_in_order_of_arrival_and_keep_their_rows() -> None:
    load = small()
    early, late = validation_split(load, 0.3)
    assert (len(early), len(late)) == (90, 210)
    assert early.arrival_s[-1] <= late.arrival_s[0]
    np.testing.assert_array_equal(np.concatenate([early.row, late.row]), load.row)
    np.testing.assert_array_equal(truth_of(late).output[late.row], late.output)


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_a_part_must_be_a_part(share: float) -> None:
    with pytest.raises(InputError, match="validation"):
        validation_split(small(), share)


def test_truth_is_measured_anyway() -> None:
    load = small()
    with pytest.raises(InputError, match="always measured"):
        measure_value(load, {"oracle": truth_of(load)}, reference=truth_of(load))


# ---- order of admission


def test_a_better_order_lets_requests_wait_less(load: Workload, blunt: ForecastSource, hazards: ForecastSource) -> None:
    fleet = SimulationSettings(workers=8, slots=8, utilization=0.95, candidates=10_000, max_overtakes=100)
    found = {one.order: one for one in order_of_admission(load, {"km": blunt, "hazards": hazards}, fleet)}
    assert list(found) == ["arrival", "km", "hazards", ORACLE]
    wait = {name: one.wait_mean_s.mean for name, one in found.items()}
    assert found["arrival"].overtakings_max.mean == 0.0
    assert found[ORACLE].overtakings_max.mean == 100.0
    assert wait[ORACLE] < 0.9 * wait["arrival"] and wait["hazards"] < 0.9 * wait["arrival"]
    assert wait["hazards"] < wait["km"]


# ---- requests in progress


def test_requests_in_progress_are_met_in_proportion_to_their_length() -> None:
    load = Workload.from_arrays(
        arrival_s=np.arange(3.0), prompt=np.ones(3, dtype=np.int64), output=np.array([1, 10, 89])
    )
    met = in_progress(load, 20_000, np.random.default_rng(0))
    assert np.bincount(met.request) / 20_000 == pytest.approx([0.01, 0.10, 0.89], abs=0.01)
    np.testing.assert_array_equal(met.generated + met.remaining, load.output[met.request])
    long = met.request == 2
    assert met.remaining.min() == 1 and met.generated.min() == 0 and met.remaining[long].max() == 89
    assert met.generated[long].mean() == pytest.approx(44.0, abs=1.0)


def test_expected_time_until_the_last_ends() -> None:
    """Hazards p and q: E[max] = 1/p + 1/q − 1/(1 − (1 − p)(1 − q)), by counting both and taking off the first."""
    p, q = 0.02, 0.05
    table = CurveTable.from_log_survival(np.array([0, 1]), np.log1p(-np.array([[0.0, p], [0.0, q]])))
    four = np.zeros(4, dtype=np.int64)
    batch = SurvivalBatch(table, np.array([0, 1, 1, 1]), four, four + NO_CAP, 0)
    last = expected_last(batch, np.arange(2000), workers=2)
    # The sum over whole tokens by trapezoids leaves out half of the first one.
    by_hand = [1 / a + 1 / b - 1 / (1 - (1 - a) * (1 - b)) - 0.5 for a, b in ((p, q), (q, q))]
    assert last.tolist() == pytest.approx(by_hand, rel=1e-6)


def test_whoever_knows_more_finds_the_worker_that_drains_first(
    load: Workload, blunt: ForecastSource, hazards: ForecastSource
) -> None:
    forecasts = {"km": blunt, "hazards": hazards, "truth": truth_of(load)}
    found = {one.choice: one for one in first_to_drain(load, forecasts, workers=6, slots=4, trials=150)}
    assert list(found) == ["random", "km", "hazards", "truth", ORACLE]
    tokens = {name: one.tokens for name, one in found.items()}
    assert tokens[ORACLE] <= tokens["truth"] <= 1.02 * tokens[ORACLE]  # ends are looked at up to 3 % apart
    assert tokens[ORACLE] < tokens["hazards"] < tokens["random"]
    assert tokens["random"] - tokens["hazards"] > 3 * found["hazards"].standard_error
    again = first_to_drain(load, {"km": blunt}, workers=6, slots=4, trials=150)
    assert again == (found["random"], found["km"], found[ORACLE])


def test_error_of_the_time_left_by_hand() -> None:
    """All requests of 100 tokens, forecast by a curve of 100, and by one that ends at 50 at the latest."""
    load = Workload.from_arrays(arrival_s=np.arange(2.0), prompt=np.array([1, 1]), output=np.array([100, 100]))
    right = kaplan_meier(load.output, np.ones(2, dtype=np.bool_))
    table = kaplan_meier_curve(np.array([50]), np.array([True]))
    two = np.zeros(2, dtype=np.int64)
    short = Precomputed("short", SurvivalBatch(table, two, two, two + 50, 0))
    exact, early = remaining_tokens(load, {"right": right, "short": short}, draws=4000)
    assert (exact.forecast, exact.median_error, exact.mean_error, exact.draws) == ("right", 0.0, 0.0, 4000)
    # Up to token 50 it is 50 tokens off, later it says that the end is due: off by what remains, 1 to 50.
    assert early.median_error == pytest.approx(50.0, abs=1.0)
    assert early.mean_error == pytest.approx((50.0 + 25.5) / 2, abs=1.0)


def test_known_hazards_tell_the_time_left_better(
    load: Workload, blunt: ForecastSource, hazards: ForecastSource
) -> None:
    found = remaining_tokens(load, {"km": blunt, "hazards": hazards}, draws=4000)
    assert found[1].median_error < found[0].median_error
    assert found[1].mean_error < found[0].mean_error
