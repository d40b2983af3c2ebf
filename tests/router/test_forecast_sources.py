"""Where forecasts come from: Kaplan-Meier by hand and by its definition, oracles, caps, and batches from outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import InputError, Request
from endcast.router.forecasts import (
    AtAdmission,
    ForecastSource,
    FromForecaster,
    NoForecast,
    Oracle,
    Precomputed,
    kaplan_meier,
    kaplan_meier_curve,
)
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch
from endcast.testing import ConstantHazardForecaster


def survival_of(curve: CurveTable, tokens: int) -> float:
    return float(np.exp(curve.log_survival_at(np.array([0]), np.array([tokens]))[0]))


def test_kaplan_meier_by_hand() -> None:
    """Ends at 2, 3, 3 and 8, one cut after 5: S(2) = 4/5, S(3) = 4/5·2/4, and at 8 nobody is left."""
    curve = kaplan_meier_curve(np.array([2, 3, 3, 5, 8]), np.array([True, True, True, False, True]))
    for tokens, survival in ((0, 1.0), (1, 1.0), (2, 0.8), (3, 0.4), (5, 0.4), (7, 0.4), (8, 0.0)):
        assert survival_of(curve, tokens) == pytest.approx(survival, abs=1e-11)


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=40))
def test_kaplan_meier_is_the_product_limit(seen: list[tuple[int, bool]]) -> None:
    lengths, ended = np.array([t for t, _ in seen]), np.array([e for _, e in seen])
    if not ended.any():
        with pytest.raises(InputError, match="no request ended"):
            kaplan_meier_curve(lengths, ended)
        return
    curve, survival = kaplan_meier_curve(lengths, ended), 1.0
    for tokens in range(int(lengths[ended].max()) + 1):
        at_risk = np.sum(lengths >= tokens)
        if tokens:
            survival *= 1.0 - np.sum(ended & (lengths == tokens)) / at_risk
        assert survival_of(curve, tokens) == pytest.approx(survival, abs=1e-11)


def test_kaplan_meier_of_everything_ended_is_the_empirical_survival() -> None:
    lengths = np.random.default_rng(0).geometric(0.01, 2000)
    curve = kaplan_meier_curve(lengths, np.ones(2000, dtype=np.bool_))
    for tokens in (1, 10, 100, 400):
        assert survival_of(curve, tokens) == pytest.approx(np.mean(lengths > tokens), rel=1e-9)


def test_requests_without_output_do_not_count() -> None:
    curve = kaplan_meier_curve(np.array([0, 0, 4]), np.array([True, False, True]))
    assert survival_of(curve, 3) == 1.0


def test_a_known_cap_cuts_the_curve() -> None:
    source = kaplan_meier(np.array([10, 20]), np.ones(2, dtype=np.bool_), cap=np.array([NO_CAP, 5]))
    batch = source.curves(np.array([0, 1]), np.array([0, 2]))
    assert batch.survival_at(2).tolist() == [1.0, 1.0]
    assert batch.survival_at(3).tolist() == [1.0, 0.0]


def test_oracles_know_and_none_does_not() -> None:
    output, generated = np.array([7, 3]), np.array([2, 0])
    truth = Oracle(output).curves(np.array([1, 0]), generated[::-1])
    assert truth.survival_at(2).tolist() == pytest.approx([1.0, 1.0])
    assert truth.survival_at(3).tolist() == pytest.approx([0.0, 1.0])
    assert truth.survival_at(5).tolist() == pytest.approx([0.0, 0.0])
    assert NoForecast().curves(output, generated).survival_at(10_000).tolist() == pytest.approx([1.0, 1.0], rel=1e-4)


def test_forecasts_from_outside_are_asked_for_by_row_and_conditioned() -> None:
    curves = CurveTable.from_log_survival(np.array([0, 10]), np.array([[0.0, -1.0], [0.0, -5.0]]))
    every = SurvivalBatch(curves, np.array([0, 1, 1]), np.zeros(3, dtype=np.int64), np.array([NO_CAP, NO_CAP, 6]), 0)
    asked: list[list[int]] = []

    def make(row: np.ndarray) -> SurvivalBatch:
        asked.append(row.tolist())
        return every.take(row)

    row, generated = np.array([2, 0]), np.array([4, 1])
    for source in (Precomputed("p", every), AtAdmission("a", make)):
        batch = source.curves(row, generated)
        assert batch.survival_at(1).tolist() == pytest.approx([np.exp(-0.5), np.exp(-0.1)])
        assert batch.survival_at(2).tolist() == pytest.approx([0.0, np.exp(-0.2)])
    assert asked == [[2, 0]]


def test_any_forecaster_is_a_source() -> None:
    requests = [Request(request_id=str(i), max_tokens=5 if i == 1 else None) for i in range(3)]
    source = FromForecaster("constant", ConstantHazardForecaster(0.1), requests)
    batch = source.curves(np.array([2, 1]), np.array([0, 3]))
    assert batch.survival_at(1).tolist() == pytest.approx([0.9, 0.9])
    assert batch.survival_at(2).tolist() == pytest.approx([0.81, 0.0])


@pytest.mark.parametrize(
    "source",
    [
        NoForecast(),
        Oracle(np.array([1])),
        kaplan_meier(np.array([3]), np.array([True])),
        AtAdmission("x", lambda row: NoForecast().at_admission(row)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_sources_keep_the_protocol(source: ForecastSource) -> None:
    assert isinstance(source, ForecastSource)
    batch = source.curves(np.array([0]), np.array([0]))
    assert len(batch) == 1
    assert source.shared is None or batch.table is source.shared
