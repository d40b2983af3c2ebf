"""The compiled figures and curves of replies against ``SurvivalBatch``, which defines them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import BundleError
from endcast.serving.forecasts import text_kernel
from endcast.serving.forecasts.reply import CURVE_TOKENS, forecasts_json, forecasts_reply
from endcast.serving.forecasts.text_kernel import Bytes
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


def number_as_written(write: Callable[[Bytes, int, float], int], value: float) -> str:
    text = np.zeros(text_kernel.MOST_CHARACTERS, dtype=np.uint8)
    return text[: write(text, 0, value)].tobytes().decode()


@given(
    st.floats(0, 1) | st.floats(0, 1e-9) | st.sampled_from([0.0, 1.0, 0.5, 1e-12, 4e-13, 6e-13, 1 - 1e-13, 0.1, 0.0001])
)
def test_a_chance_has_twelve_decimals(value: float) -> None:
    written = number_as_written(text_kernel._write_chance, value)
    assert abs(float(written) - value) <= 0.5001e-12
    assert re.fullmatch(r"[01]\.[0-9]{1,12}", written) and (written[-1] != "0" or written[-2] == ".")


@given(
    st.floats(0, 9e10)
    | st.floats(0, 1e4)
    | st.integers(0, 9 * 10**10).map(float)
    | st.sampled_from([9.5, 10.0, 99.999999996])
)
def test_tokens_have_eight_decimals(value: float) -> None:
    written = number_as_written(text_kernel._write_tokens, value)
    assert float(written) == pytest.approx(value, rel=1e-15, abs=0.5001e-8)
    assert re.fullmatch(r"(0|[1-9][0-9]*)\.[0-9]{1,8}", written) and (written[-1] != "0" or written[-2] == ".")


def standing(hazard: float, positions: Sequence[int]) -> list[Forecast]:
    n = len(positions)
    table = CurveTable.from_log_survival(EDGES, log_survival_from_hazard(np.full((1, 11), hazard)))
    batch = SurvivalBatch(table, np.zeros(n, np.int64), np.array(positions), np.full(n, 40), 0)
    known = [{"cap": True, "output": i > 0} for i in range(n)]
    return Forecast.from_batch(batch, bundle="b", generated=list(positions), known=known, state_version=0)


def test_forecasts_made_apart_are_answered_in_order() -> None:
    """Some of one batch, in another order than its rows, between some of another; ids that JSON has to escape."""
    first, second = standing(0.1, [0, 3, 9]), standing(0.3, [2, 7])
    mixed, ids = [first[2], second[0], first[0], second[1]], ['"\\', None, "é \n", "\U0001f600"]
    asked: dict[str, Any] = {"horizons": [4, 50], "quantiles": [], "curve": True}
    text = forecasts_json(mixed, ids, **asked)
    found = json.loads(b"[%b]" % text)
    assert [one["request_id"] for one in found] == ids
    assert [one["forecast_id"] for one in found] == [forecast.forecast_id for forecast in mixed]
    assert [one["known"] for one in found] == [forecast.known for forecast in mixed]
    for one, forecast in zip(found, mixed, strict=True):
        assert one["p_end"] == {"4": pytest.approx(forecast.p_end(4)), "50": 1.0} and one["quantiles"] == {}
        assert one["expected_output_tokens"] == pytest.approx(forecast.expected_output_tokens)
    assert forecasts_json([], [], **asked) == b""


def test_more_tokens_than_anybody_generates_are_the_bundles_fault() -> None:
    table = CurveTable(np.arange(2), np.array([[0.0, -1e-12]]), np.array([-1e-12]))
    batch = SurvivalBatch(table, np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([NO_CAP]), 0)
    with pytest.raises(BundleError, match="not a finite number"):
        replied(batch, [1], [0.5])
