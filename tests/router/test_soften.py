"""Softened forecasts: the mixture by its definition, Bayes' rule in between, caps, and what it does in a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.errors import InputError
from endcast.router.forecasts import ForecastSource, Landmarked, NoForecast, Oracle, Precomputed, kaplan_meier
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.soften import EDGES, Softened, blend
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch, log_survival_from_hazard

EXACT = 160
HAZARD = st.lists(st.one_of(st.just(0.0), st.floats(0.0, 0.9), st.just(1.0)), min_size=4, max_size=4)


@st.composite
def batches(draw: st.DrawFn, size: int) -> SurvivalBatch:
    """Forecasts on a grid of their own, each standing somewhere on its curve, some capped."""
    edges = np.cumsum([0, *draw(st.lists(st.integers(1, 90), min_size=4, max_size=4))])
    table = CurveTable.from_log_survival(edges, log_survival_from_hazard([draw(HAZARD) for _ in range(size)]))
    position = np.array(draw(st.lists(st.integers(0, 400), min_size=size, max_size=size)))
    cap = np.array(draw(st.lists(st.sampled_from([0, 1, 40, 250, NO_CAP]), min_size=size, max_size=size)))
    return SurvivalBatch(table, np.arange(size), position, cap, 0)


def survival(batch: SurvivalBatch, further: np.ndarray) -> np.ndarray:
    """(n, m), P(R > h) of requests that are there now."""
    read = batch.survival_at(further[:, None]).T
    read[:, further == 0] = 1.0
    return np.asarray(read)


@given(data=st.data(), size=st.integers(1, 3), weight=st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.just(1.0)))
def test_it_is_the_mixture_of_the_conditional_curves(data: st.DataObject, size: int, weight: float) -> None:
    model, reference = data.draw(batches(size)), data.draw(batches(size))
    mixed = blend(model, reference, weight)
    further = np.concatenate([np.arange(EXACT + 1), EDGES[(EDGES > EXACT) & (EDGES < 2000)]])
    expected = (1.0 - weight) * survival(model, further) + weight * survival(reference, further)
    np.testing.assert_allclose(survival(mixed, further), expected, rtol=1e-9, atol=1e-12)
    every = mixed.survival_at(np.arange(1, 3000)[:, None]).T
    assert np.all(np.diff(every, axis=1) <= 1e-15) and np.isfinite(mixed.expected_remaining).all()


def test_the_larger_cap_bounds_the_blend() -> None:
    table = CurveTable.from_log_survival(np.array([0, 1]), np.array([[0.0, -0.01]]))
    zero = np.zeros(1, dtype=np.int64)
    short, long = (SurvivalBatch(table, zero, zero, np.array([cap]), 0) for cap in (5, 9))
    mixed = blend(short, long, 0.25)
    assert mixed.cap.tolist() == [9]
    assert mixed.survival_at(4)[0] == pytest.approx(np.exp(-0.04))
    assert mixed.survival_at(5)[0] == pytest.approx(0.25 * np.exp(-0.05))
    assert mixed.survival_at(9)[0] == 0.0


def test_conditioned_its_weights_follow_bayes() -> None:
    """Hazards .1 and .01, mixed evenly: after 20 tokens those that remain are mostly of the second kind."""
    table = CurveTable.from_log_survival(np.array([0, 1]), np.log1p(-np.array([[0.0, 0.1], [0.0, 0.01]])))
    zero, one, cap = np.array([0]), np.array([1]), np.array([NO_CAP])
    mixed = blend(SurvivalBatch(table, zero, zero, cap, 0), SurvivalBatch(table, one, zero, cap, 0), 0.5)
    share = 0.99**20 / (0.99**20 + 0.9**20)
    assert mixed.advance(20).survival_at(10)[0] == pytest.approx(share * 0.99**10 + (1 - share) * 0.9**10)


def test_a_softened_oracle_stays_soft_where_it_is_made_anew() -> None:
    """Truth .4, Kaplan-Meier .6 at 0 and at each multiple of 32; left to Bayes the truth comes back."""
    output = np.array([1000, *range(1, 1000, 3)])
    truth, blunt = Oracle(output), kaplan_meier(output, np.ones(len(output), dtype=np.bool_))
    row, generated = np.array([0]), np.array([640])
    soft = Softened(truth, blunt, 0.6)
    assert (soft.name, soft.shared, soft.refresh_every) == ("oracle", None, 32)
    here = soft.curves(row, generated).survival_at(100)[0]
    assert here == pytest.approx(0.4 + 0.6 * blunt.curves(row, generated).survival_at(100)[0])
    left = Softened(truth, blunt, 0.6, every=None)
    assert left.refresh_every is None
    later = left.curves(row, np.array([0])).advance(640)
    both = [0.4, 0.6 * blunt.curves(row, np.array([0])).survival_at(640)[0]]
    by_bayes = np.array(both) / sum(both) @ [1.0, blunt.curves(row, generated).survival_at(100)[0]]
    assert later.survival_at(100)[0] == pytest.approx(by_bayes, rel=5e-3)  # 640 tokens on, edges lie apart
    assert by_bayes > here + 0.05


def test_it_is_made_anew_whenever_its_source_is() -> None:
    batch = NoForecast().at_admission(np.arange(3))
    text = Landmarked("text", batch, np.array([0, 1]), np.array([1, 2]), 48)
    assert Softened(text, Precomputed("static", batch), 0.5).refresh_every == 48


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_outside_the_unit_interval_are_refused(weight: float) -> None:
    batch = NoForecast().at_admission(np.arange(3))
    with pytest.raises(InputError, match="soften"):
        blend(batch, batch, weight)


def test_batches_of_different_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="3 forecasts cannot be blended with 2"):
        blend(NoForecast().at_admission(np.arange(3)), NoForecast().at_admission(np.arange(2)), 0.5)


def test_all_reference_is_the_reference_and_no_reference_the_source() -> None:
    """In a whole simulation, news and all; up to rounding of curves, which seldom decides between two requests."""
    rng = np.random.default_rng(0)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, 400)),
        prompt=rng.integers(1, 900, 400),
        output=rng.geometric(0.02, 400),
    )
    blunt, truth = kaplan_meier(load.output, np.ones(400, dtype=np.bool_)), Oracle(load.output)

    def efficiency(source: ForecastSource) -> float:
        settings = SimulationSettings(workers=4, slots=4, utilization=1.1)
        found = simulate(load, settings, policies=["br_h"], forecasts=[source]).results[0].mean["efficiency"]
        return float(found)

    assert efficiency(Softened(truth, blunt, 1.0)) == pytest.approx(efficiency(blunt), abs=1e-3)
    assert efficiency(Softened(truth, blunt, 0.0)) == pytest.approx(efficiency(truth), abs=1e-3)
    assert efficiency(truth) - efficiency(blunt) > 3e-3
