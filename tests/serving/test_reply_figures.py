"""The compiled figures and curves of replies against ``SurvivalBatch``, which defines them."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import BundleError
from endcast.serving.forecasts.reply import CURVE_TOKENS, forecasts_reply
from endcast.survival import NO_CAP, CurveTable, Forecast, SurvivalBatch, log_survival_from_hazard

EDGES = np.array([0, 1, 2, 3, 4, 8, 9, 30, 31, 100, 1_000, 5_000])


@st.composite
def batches(draw: st.DrawFn) -> SurvivalBatch:
    curves, n = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    hazard = st.one_of(st.floats(0, 1), st.floats(0, 1e-6), st.sampled_from([0.0, 1.0, 1e-9, 0.5]))
    hazards = draw(st.lists(hazard, min_size=curves * 11, max_size=curves * 11))
    log_survival = log_survival_from_hazard(np.reshape(hazards, (curves, 11)))
    position = st.one_of(st.integers(0, 40), st.integers(0, 10_000))
    cap = st.one_of(st.just(int(NO_CAP)), st.integers(0, 200))

    def whole(of: st.SearchStrategy[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(draw(st.lists(of, min_size=n, max_size=n)), dtype=np.int64)

    table = CurveTable.from_log_survival(EDGES, log_survival)
    return SurvivalBatch(table, whole(st.integers(0, curves - 1)), whole(position), whole(cap), 0)


def replied(batch: SurvivalBatch, horizons: list[int], quantiles: list[float]) -> list[dict[str, object]]:
    n = len(batch)
    forecasts = Forecast.from_batch(batch, bundle="b", generated=[0] * n, known=[{}] * n, state_version=0)
    reply = forecasts_reply(forecasts, [None] * n, horizons=horizons, quantiles=quantiles, curve=True)
    found: list[dict[str, object]] = json.loads(msgspec.json.encode(reply))["forecasts"]
    return found


@settings(deadline=None, max_examples=150)
@given(batches())
def test_figures_are_those_of_the_batch(batch: SurvivalBatch) -> None:
    horizons, quantiles = [1, 2, 7, 64, 900, 20_000], [0.05, 0.5, 0.9, 0.999]
    windows = np.array(horizons)[:, None]
    p_end = np.maximum.accumulate(1.0 - batch.survival_at(windows))
    within = np.maximum.accumulate(batch.within(windows))
    reached = np.maximum.accumulate([batch.quantile(q) for q in quantiles])
    curve = np.minimum.accumulate(batch.survival_at(CURVE_TOKENS[:, None]))
    for i, one in enumerate(replied(batch, horizons, quantiles)):
        np.testing.assert_allclose([*one["p_end"].values()], p_end[:, i], atol=1e-9)  # type: ignore[attr-defined]
        np.testing.assert_allclose([*one["expected_within"].values()], within[:, i], rtol=1e-9, atol=1e-6)  # type: ignore[attr-defined]
        assert one["expected_remaining"] == pytest.approx(batch.expected_remaining[i], rel=1e-9, abs=1e-6)
        assert [*one["quantiles"].values()] == reached[:, i].tolist()  # type: ignore[attr-defined]
        told = one["curve"]["survival"]  # type: ignore[index]
        assert np.abs(np.array(told) - curve[:, i]).max() <= 0.5001e-7
        assert told == [round(x, 7) for x in told] and all(a >= b for a, b in pairwise(told))


def test_numbers_of_a_curve_are_written_as_json_writes_them() -> None:
    """1, 0, one digit, trailing zeros, all seven digits: read back, they are the numbers rounded to 7 decimals."""
    hazard = np.array([[0.5, 0.2, 0.75, 0.123456789, 0.0, 0.9, 0.0, 0.99999, 0.0, 0.5, 1.0]])
    table = CurveTable.from_log_survival(np.arange(12), log_survival_from_hazard(hazard))
    batch = SurvivalBatch(table, np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([NO_CAP]), 0)
    (one,) = replied(batch, [1], [0.5])
    expected = np.concatenate([[1.0], np.cumprod(1.0 - hazard[0])])[:11]
    assert one["curve"]["survival"][:11] == expected.round(7).tolist()  # type: ignore[index]
    assert one["curve"]["survival"][-1] == 0.0  # type: ignore[index]


def test_figures_that_are_not_finite_are_the_bundles_fault() -> None:
    table = CurveTable(np.arange(3), np.array([[0.0, np.nan, np.nan]]), np.array([-0.1]))
    batch = SurvivalBatch(table, np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([NO_CAP]), 0)
    with pytest.raises(BundleError, match="not a finite number"):
        replied(batch, [1], [0.5])
