"""The fakes keep the whole Forecaster protocol: they go through what any forecaster would have to pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import (
    BundleError,
    Completion,
    EndReason,
    Forecaster,
    ForecastStream,
    InputError,
    Landmark,
    Request,
)
from endcast.testing import ConstantHazardForecaster, FakeForecaster, ManualClock, OracleForecaster

FAKES: dict[str, Callable[[], FakeForecaster]] = {
    "constant hazard": lambda: ConstantHazardForecaster(0.1),
    "oracle": lambda: OracleForecaster({"a": 10, "b": 300}),
}


@pytest.fixture(params=FAKES, ids=str)
def forecaster(request: pytest.FixtureRequest) -> FakeForecaster:
    return FAKES[request.param]()


def landmark(request_id: str = "a", generated: int = 0, max_tokens: int | None = None) -> Landmark:
    return Landmark(request=Request(request_id=request_id, max_tokens=max_tokens), generated_tokens=generated)


def test_it_is_a_forecaster(forecaster: FakeForecaster) -> None:
    assert isinstance(forecaster, Forecaster)
    assert isinstance(forecaster.open(Request(request_id="a")), ForecastStream)


def test_single_forecasts_agree_with_the_batch(forecaster: FakeForecaster) -> None:
    landmarks = [landmark("a", 3), landmark("b", 0, max_tokens=40), landmark("b", 299)]
    batch = forecaster.forecast_batch(landmarks, horizon=20)
    for i, forecast in enumerate(forecaster.forecast(landmarks)):
        # alone and among others a number may be rounded differently: numpy vectorizes by the length of an array
        assert forecast.p_end(20) == pytest.approx(batch.p_end[i], rel=1e-14)
        assert forecast.expected_within(20) == pytest.approx(batch.expected_within[i], rel=1e-14)
        assert forecast.generated_tokens == landmarks[i].generated_tokens


def test_streams_and_landmarks_mix_in_a_batch(forecaster: FakeForecaster) -> None:
    stream = forecaster.open(Request(request_id="a"))
    stream.append("some ", 1)
    stream.append("text", 4)
    batch = forecaster.forecast_batch([stream, landmark("a", 4)], horizon=8)
    np.testing.assert_array_equal(batch.survival[0], batch.survival[1])
    assert stream.forecast().p_end(8) == batch.p_end[0]
    assert stream.forecast().known["output"] and not forecaster.forecast([landmark("a", 4)])[0].known["output"]


def test_no_landmarks_no_forecasts(forecaster: FakeForecaster) -> None:
    assert forecaster.forecast([]) == [] and len(forecaster.forecast_batch([], horizon=4)) == 0


def test_closing_a_stream_is_observed_once(forecaster: FakeForecaster) -> None:
    stream = forecaster.open(Request(request_id="a"))
    stream.append("x", 7)
    stream.close(end="stop", output_tokens=10, finished_s=3.5)
    stream.close(end="abort", output_tokens=12)
    assert [(c.output_tokens, c.end, c.finished_s) for c in forecaster.observed] == [(10, EndReason.STOP, 3.5)]
    assert forecaster.state_version == 1 and forecaster.forecast([landmark()])[0].state_version == 1


def test_a_stream_with_a_wrong_end_stays_open(forecaster: FakeForecaster) -> None:
    stream = forecaster.open(Request(request_id="a"))
    with pytest.raises(InputError, match="end: must be one of"):
        stream.close(end="eos", output_tokens=3)
    stream.close(end="stop", output_tokens=3)
    assert forecaster.state_version == 1


def test_a_stream_does_not_run_backwards(forecaster: FakeForecaster) -> None:
    stream = forecaster.open(Request(request_id="a"))
    stream.append("x", 7)
    with pytest.raises(InputError, match="generated_tokens"):
        stream.append("y", 6)
    assert stream.generated_tokens == 7


def test_restoring_goes_back(forecaster: FakeForecaster) -> None:
    one = Completion(request=Request(request_id="a"), output_tokens=10)
    forecaster.observe([one])
    state = forecaster.snapshot()
    forecaster.observe([one, one])
    forecaster.restore(state)
    assert forecaster.state_version == 1 and len(forecaster.observed) == 1


@pytest.mark.parametrize("state", [b"", b"{}", b'{"bundle":"another","state_version":0}', b"\x80\x04."])
def test_a_foreign_snapshot_is_refused(forecaster: FakeForecaster, state: bytes) -> None:
    forecaster.observe([Completion(request=Request(request_id="a"), output_tokens=10)])
    with pytest.raises(BundleError, match="snapshot"):
        forecaster.restore(state)
    assert forecaster.state_version == 1


@given(hazard=st.floats(1e-4, 0.99), h=st.integers(0, 500), generated=st.integers(0, 10_000))
def test_constant_hazard_has_its_closed_form(hazard: float, h: int, generated: int) -> None:
    forecast = ConstantHazardForecaster(hazard).forecast([landmark(generated=generated)])[0]
    assert forecast.survival(h) == pytest.approx((1 - hazard) ** h, rel=1e-9, abs=1e-12)
    assert forecast.expected_within(h) == pytest.approx((1 - (1 - hazard) ** h) / hazard, rel=1e-6, abs=1e-9)
    assert forecast.expected_remaining == pytest.approx(1 / hazard)


@given(
    length=st.integers(1, 2_000),
    generated=st.integers(0, 3_000),
    cap=st.none() | st.integers(1, 3_000),
    h=st.integers(0, 3_000),
)
def test_the_oracle_is_right(length: int, generated: int, cap: int | None, h: int) -> None:
    oracle = OracleForecaster({"a": length})
    forecast = oracle.forecast([landmark("a", generated, max_tokens=cap)])[0]
    remaining = max(min(length, cap or length) - generated, 0)
    assert forecast.p_end(h) == (1.0 if h >= remaining else 0.0)
    assert forecast.expected_remaining == pytest.approx(remaining, abs=1e-5)
    assert forecast.quantile(0.01) == forecast.quantile(0.99) == remaining


def test_the_oracle_knows_only_what_it_was_told() -> None:
    with pytest.raises(InputError, match="the oracle was told no length of 'c'"):
        OracleForecaster({"a": 10}).forecast([landmark("c")])


@pytest.mark.parametrize("hazard", [0.0, 1.0, -0.1, float("nan")])
def test_a_hazard_is_a_probability(hazard: float) -> None:
    with pytest.raises(InputError, match="hazard"):
        ConstantHazardForecaster(hazard)


def test_the_clock_stands_still_until_told() -> None:
    clock = ManualClock(10.0)
    assert clock() == clock() == 10.0
    clock.advance(2.5)
    assert clock() == 12.5
    with pytest.raises(InputError, match="does not go back"):
        clock.advance(-1.0)
