"""Streams of every registered family: what a stream says is what a landmark would have said at its admission."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import endcast
from endcast import BundleError, Completion, EndReason, Forecaster, ForecastStream, InputError, Landmark, Request
from endcast.datasets.synth import SynthLog
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.training.train import Trained

REQUEST = Request(request_id="r", prompt_tokens=300, tenant="chat-1", model="atlas-70b", max_tokens=2_000)


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(st.integers(0, 400), max_size=6), place=st.integers(0, 39))
def test_a_stream_is_its_landmarks(
    frozen: OnnxForecaster, landmarks: Sequence[Landmark], steps: list[int], place: int
) -> None:
    request, generated = landmarks[place].request, 0
    stream = frozen.open(request)
    assert isinstance(stream, ForecastStream) and stream.request is request
    for step in [0, *steps]:
        generated += step
        stream.append("some text", generated)
        assert stream.generated_tokens == generated
        told = stream.forecast()
        (expected,) = frozen.forecast([Landmark(request=request, generated_tokens=generated)])
        assert told.generated_tokens == generated and told.known == expected.known
        for h in (0, 1, 16, 80, 5_000):
            assert told.p_end(h) == pytest.approx(expected.p_end(h), abs=1e-6)
            assert told.expected_within(h) == pytest.approx(expected.expected_within(h), rel=1e-6)
        assert told.expected_remaining == pytest.approx(expected.expected_remaining, rel=1e-6)


def test_streams_and_landmarks_share_a_batch(frozen: OnnxForecaster, landmarks: Sequence[Landmark]) -> None:
    mixed: list[Landmark | ForecastStream] = []
    for i, landmark in enumerate(landmarks):
        stream = frozen.open(landmark.request)
        stream.append("", landmark.generated_tokens)
        mixed.append(stream if i % 3 else landmark)
    whole, batch = frozen.forecast_batch(landmarks, 80), frozen.forecast_batch(mixed, 80)
    np.testing.assert_allclose(batch.survival, whole.survival, atol=1e-6)
    streams = [item for item in mixed if not isinstance(item, Landmark)]
    only = frozen.forecast_batch(streams, 80)
    np.testing.assert_allclose(only.survival, whole.survival[[i for i in range(len(mixed)) if i % 3]], atol=1e-6)


def test_a_stream_sees_what_was_known_at_its_admission(forecaster: OnnxForecaster, small_log: SynthLog) -> None:
    stream = forecaster.open(REQUEST)
    before, version = stream.forecast(), forecaster.state_version
    late = list(small_log.trace.take(np.arange(900, 1_060)).completions())
    forecaster.observe([Completion(request=REQUEST, output_tokens=1_900)] * 40 + late)
    after = stream.forecast()
    assert after.state_version == before.state_version == version < forecaster.state_version
    assert [after.survival(h) for h in range(0, 900, 50)] == [before.survival(h) for h in range(0, 900, 50)]


def test_fewer_tokens_than_before_are_ignored(frozen: OnnxForecaster) -> None:
    stream = frozen.open(REQUEST)
    stream.append("a", 9)
    stream.append("b", 4)
    assert stream.generated_tokens == 9


@pytest.mark.parametrize("tokens", [-1, True, 1.5, "3", 10**12])
def test_a_count_must_be_a_count(frozen: OnnxForecaster, tokens: object) -> None:
    stream = frozen.open(REQUEST)
    with pytest.raises(InputError, match="generated_tokens"):
        stream.append("a", tokens)  # type: ignore[arg-type]
    assert stream.generated_tokens == 0


def test_closing_tells_the_outcome_once(forecaster: OnnxForecaster) -> None:
    version = forecaster.state_version
    stream = forecaster.open(REQUEST)
    stream.append("a", 5)
    stream.close(end="stop", output_tokens=7, finished_s=3.0)
    stream.close(end=EndReason.ABORT, output_tokens=9)
    assert forecaster.state_version == version + 1
    assert stream.forecast().generated_tokens == 5  # a late question is still answered


def test_a_refused_outcome_leaves_the_stream_open(forecaster: OnnxForecaster) -> None:
    version = forecaster.state_version
    stream = forecaster.open(REQUEST)
    for end, tokens in (("no reason", 7), ("stop", -1)):
        with pytest.raises(InputError):
            stream.close(end=end, output_tokens=tokens)
    assert forecaster.state_version == version
    stream.close(end="stop", output_tokens=7)
    assert forecaster.state_version == version + 1


@pytest.mark.parametrize("make", [endcast.cold_start, lambda: endcast.kaplan_meier([3, 5, 9])])
def test_a_stream_is_read_by_its_own_bundle_only(
    frozen: OnnxForecaster, trained: Trained, bundle_of: Callable[[str], Trained], make: Callable[[], Forecaster]
) -> None:
    other = bundle_of("lightgbm" if trained.manifest.model != "lightgbm" else "kaplan_meier")
    for stranger in (load_forecaster(other.path), make()):
        with pytest.raises(BundleError, match="another forecaster"):
            frozen.forecast_batch([stranger.open(REQUEST)], 80)
    sibling = load_forecaster(trained.path).open(REQUEST)
    np.testing.assert_array_equal(
        frozen.forecast_batch([sibling], 80).survival,
        frozen.forecast_batch([Landmark(request=REQUEST)], 80).survival,
    )


@pytest.mark.parametrize("make", [endcast.cold_start, lambda: endcast.kaplan_meier([3, 5, 9, 400])])
def test_forecasters_of_one_curve_keep_the_same_promises(make: Callable[[], Forecaster]) -> None:
    forecaster = make()
    stream = forecaster.open(REQUEST)
    stream.append("a", 6)
    (expected,) = forecaster.forecast([Landmark(request=REQUEST, generated_tokens=6)])
    assert [stream.forecast().p_end(h) for h in (0, 1, 90, 2_000)] == [expected.p_end(h) for h in (0, 1, 90, 2_000)]
    assert expected.p_end(1_994) == 1.0 and expected.known["prior"] == (forecaster.bundle == "cold_start")
    with pytest.raises(InputError):
        stream.close(end="no reason", output_tokens=7)
    for _ in range(2):
        stream.close(end="stop", output_tokens=7)
    assert forecaster.state_version == 1
    state = forecaster.snapshot()
    other = make()
    other.restore(state)
    assert other.state_version == 1
    for damaged in (b"", state[:-1], b"\xc1" + state, endcast.kaplan_meier([1]).snapshot()[:3]):
        with pytest.raises(BundleError):
            other.restore(damaged)


def test_the_prior_and_given_lengths_are_not_each_others() -> None:
    with pytest.raises(BundleError, match="of cold_start, not of kaplan_meier"):
        endcast.kaplan_meier([1]).restore(endcast.cold_start().snapshot())
