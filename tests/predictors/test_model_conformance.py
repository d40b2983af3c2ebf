"""One suite for every registered model family: by being registered, its bundle goes through all of this."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast import BundleError, Completion, EndReason, Forecast, InputError, Landmark, Request
from endcast.datasets.synth import SynthLog
from endcast.datasets.write import write_trace
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.training.train import Settings, Trained, train

MANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
#: Families that draw random numbers: another seed gives them another graph.
THAT_DRAW = ("lightgbm", "neural", "text", "distilled", "length_class", "regression", "ranking")
FURTHEST = 100_000_000


def finite(forecast: Forecast) -> bool:
    """Whether every figure that can be asked for is a finite number in its bounds."""
    chances = [f(h) for h in (0, 1, 80, FURTHEST) for f in (forecast.survival, forecast.p_end)]
    tokens = [forecast.expected_remaining, forecast.expected_output_tokens]
    tokens += [forecast.expected_within(h) for h in (0, 1, 80, FURTHEST)]
    tokens += [forecast.quantile(q) for q in (1e-9, 0.5, 0.999999)]
    return all(0.0 <= p <= 1.0 for p in chances) and all(0.0 <= t < math.inf for t in tokens)


def test_survival_starts_at_one_and_never_rises(frozen: OnnxForecaster, landmarks: Sequence[Landmark]) -> None:
    batch = frozen.forecast_batch(landmarks, 5_000)
    uncapped = batch.cap > 0
    assert batch.survival.shape == (len(landmarks), 5_001) and uncapped.sum() > 20
    assert (batch.survival[uncapped, 0] == 1.0).all() and (batch.survival[~uncapped, 0] == 0.0).all()
    assert (np.diff(batch.survival, axis=1) <= 0.0).all()
    assert (batch.survival >= 0.0).all()


def test_figures_are_sums_over_the_curve(frozen: OnnxForecaster, landmarks: Sequence[Landmark]) -> None:
    batch = frozen.forecast_batch(landmarks, 700)
    h = np.arange(700)[:, None]
    survival = batch.survival_at(h)
    np.testing.assert_allclose(batch.expected_within, survival.sum(axis=0), rtol=1e-9)
    np.testing.assert_allclose(batch.p_end, 1.0 - batch.survival_at(700), atol=1e-15)
    for q in (0.1, 0.5, 0.9):
        r = batch.quantile(q).astype(np.int64)
        reached = 1.0 - batch.survival_at(r) >= q - 1e-9
        before = 1.0 - batch.survival_at(np.maximum(r - 1, 0)) < q + 1e-9
        assert reached.all() and (before | (r == np.minimum(batch.cap, 1))).all()


def test_advancing_is_the_same_as_asking_anew(frozen: OnnxForecaster, landmarks: Sequence[Landmark]) -> None:
    """P(R > h) at e is S(e + h)/S(e), whether by a new forecast, by moving an old one on, or by division."""
    generated = np.array([landmark.generated_tokens for landmark in landmarks])
    at_start = frozen.forecast_batch([Landmark(request=landmark.request) for landmark in landmarks], 80)
    moved, anew = at_start.advance(generated), frozen.forecast_batch(landmarks, 80)
    np.testing.assert_allclose(moved.survival, anew.survival, atol=1e-7)
    np.testing.assert_allclose(moved.expected_remaining, anew.expected_remaining, rtol=1e-9)
    alive = anew.cap > 0
    ratio = at_start.survival_at(generated + 80)[alive] / at_start.survival_at(generated)[alive]
    np.testing.assert_allclose(anew.survival_at(80)[alive], ratio, rtol=1e-9)


@MANY
@given(data=st.data())
def test_neither_row_order_nor_batch_size_matters(
    frozen: OnnxForecaster, landmarks: Sequence[Landmark], data: st.DataObject
) -> None:
    whole = frozen.forecast_batch(landmarks, 64)
    some = data.draw(st.lists(st.integers(0, len(landmarks) - 1), max_size=8))
    part = frozen.forecast_batch([landmarks[i] for i in some], 64)
    np.testing.assert_allclose(part.survival, whole.survival[some], atol=1e-6)
    np.testing.assert_allclose(part.expected_remaining, whole.expected_remaining[some], rtol=1e-6)


def test_seeds_and_only_seeds_matter(
    trained: Trained, small_log: SynthLog, quick_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    """The same again, in another process with other hashes, gives the same bundle; another seed gives another."""
    write_trace(tmp_path / "log.parquet", small_log.trace)
    model = trained.manifest.model
    code = (
        "import sys; from pathlib import Path; from endcast.datasets.read import read; "
        "from endcast.training.train import Settings, train; "
        f"print(train(read('log.parquet').trace, {quick_settings(model)!r}, Path('again')).id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == trained.id, done.stderr
    other = train(small_log.trace, quick_settings(model, seed=1), tmp_path / "other")
    assert other.id != trained.id
    same_graph = (other.path / "model.onnx").read_bytes() == (trained.path / "model.onnx").read_bytes()
    assert not (same_graph and model in THAT_DRAW)


CAPS = st.none() | st.integers(1, 400)


@MANY
@given(
    max_tokens=CAPS, context_limit=CAPS, prompt_tokens=CAPS, generated=st.integers(0, 500), horizon=st.integers(0, 500)
)
def test_no_forecast_goes_beyond_the_nearest_cap(
    frozen: OnnxForecaster,
    max_tokens: int | None,
    context_limit: int | None,
    prompt_tokens: int | None,
    generated: int,
    horizon: int,
) -> None:
    request = Request(
        request_id="capped", max_tokens=max_tokens, context_limit=context_limit, prompt_tokens=prompt_tokens
    )
    (forecast,) = frozen.forecast([Landmark(request=request, generated_tokens=generated)])
    caps = [] if max_tokens is None else [max_tokens]
    if context_limit is not None and prompt_tokens is not None:
        caps.append(max(context_limit - prompt_tokens, 1))
    left = max(min(caps) - generated, 0) if caps else None
    assert forecast.known["cap"] == (left is not None)
    if left is not None:
        assert forecast.expected_remaining <= left and forecast.quantile(0.99) <= left
        assert forecast.expected_within(horizon) <= min(left, horizon) + 1e-9
    if left is not None and left <= horizon:
        assert forecast.p_end(horizon) == 1.0
    else:
        assert forecast.p_end(horizon) < 1.0


TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "temperature",
        "top_p",
        "n",
        "stop",
        "min_tokens",
        "ignore_eos",
        "tools",
        "tool_choice",
        "response_format",
        "chat_template_kwargs",
        "reasoning_effort",
        "enable_thinking",
        "repetition_penalty",
        "seed",
    ]
)
COUNT = st.none() | st.integers(0, FURTHEST)
REQUESTS = st.builds(
    Request,
    request_id=TEXT,
    arrival_s=st.none() | st.floats(-1e12, 1e12),
    prompt_tokens=COUNT,
    prompt=st.none() | TEXT,
    messages=st.none() | st.lists(st.dictionaries(st.sampled_from(["role", "content"]), JSON), max_size=3).map(tuple),
    model=st.none() | TEXT | st.just("atlas-70b"),
    tenant=st.none() | TEXT | st.just("chat-1"),
    session=st.none() | TEXT,
    max_tokens=st.none() | st.integers(1, FURTHEST),
    context_limit=st.none() | st.integers(1, FURTHEST),
    prefix_blocks=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple),
    parameters=st.dictionaries(NAMES, JSON | st.fixed_dictionaries({"type": JSON}), max_size=4),
    attributes=st.dictionaries(TEXT, JSON, max_size=2),
)
COMPLETIONS = st.builds(
    Completion,
    request=REQUESTS,
    output_tokens=st.integers(0, FURTHEST),
    end=st.sampled_from(EndReason),
    finished_s=st.none() | st.floats(-1e12, 1e12),
)


@MANY
@given(st.lists(COMPLETIONS, max_size=9), st.lists(st.builds(Landmark, request=REQUESTS), max_size=9))
def test_whatever_comes_in_is_learned_from_and_forecast(
    learning: OnnxForecaster, completions: list[Completion], asked: list[Landmark]
) -> None:
    """No request and no outcome that the types allow is an error, and every figure is a finite number."""
    learning.observe(completions)
    again = [Landmark(request=completion.request, generated_tokens=7) for completion in completions]
    assert all(finite(forecast) for forecast in learning.forecast([*asked, *again]))


@pytest.mark.parametrize("generated", [0, 1, 1_000_000, FURTHEST])
def test_no_figure_is_ever_infinite(
    frozen: OnnxForecaster, odd_requests: Sequence[Request], small_log: SynthLog, generated: int
) -> None:
    requests = [*odd_requests, *small_log.trace.take(np.arange(30)).requests()]
    forecasts = frozen.forecast([Landmark(request=request, generated_tokens=generated) for request in requests])
    assert all(finite(forecast) for forecast in forecasts)


def test_no_landmark_no_forecast(frozen: OnnxForecaster) -> None:
    assert frozen.forecast([]) == [] and frozen.forecast_batch([], 80).survival.shape == (0, 81)


def test_a_horizon_must_be_a_number_of_tokens(frozen: OnnxForecaster) -> None:
    with pytest.raises(InputError, match="horizon"):
        frozen.forecast_batch([], -1)


def test_ids_are_never_given_twice(trained: Trained, landmarks: Sequence[Landmark]) -> None:
    one, other = load_forecaster(trained.path), load_forecaster(trained.path)
    made = [*one.forecast(landmarks), *one.forecast(landmarks), *other.forecast(landmarks)]
    made += [one.open(landmarks[0].request).forecast() for _ in range(3)]
    assert len({forecast.forecast_id for forecast in made}) == len(made)


def test_each_forecast_says_whose_it_is(trained: Trained, forecaster: OnnxForecaster) -> None:
    request = Request(request_id="a")
    version = forecaster.state_version
    forecaster.observe([Completion(request=request, output_tokens=5)] * 3)
    (forecast,) = forecaster.forecast([Landmark(request=request, generated_tokens=4)])
    assert forecast.bundle == forecaster.bundle == trained.id
    assert forecast.state_version == forecaster.state_version == version + 3
    assert forecast.generated_tokens == 4 and forecast.expected_output_tokens > 4


def test_known_tells_what_the_forecast_had(frozen: OnnxForecaster, trained: Trained) -> None:
    """A model or tenant is known where the bundle learns from it and has met it (CASES 4)."""
    uses = {name: name in trained.manifest.feature_groups for name in ("model", "tenant")}
    met = Request(request_id="a", model="atlas-70b", tenant="chat-1", prompt="p", session="s", max_tokens=9)
    unmet = Request(request_id="b", model="nobody's", tenant="nobody", prompt_tokens=3, prefix_blocks=(1,))
    first, second, third = frozen.forecast([Landmark(request=r) for r in (met, unmet, Request(request_id="c"))])
    assert first.known == {
        "prompt_tokens": False,
        "prompt": True,
        "session": True,
        "cap": True,
        "output": False,
        **uses,
    }
    assert {name for name, known in second.known.items() if known} == {"prompt_tokens", "session"}
    assert not any(third.known.values()) and third.known.keys() == first.known.keys()


def test_clients_who_leave_shorten_the_routing_curve_only(trained: Trained, landmarks: Sequence[Landmark]) -> None:
    """A slot frees on any end: with aborts P(R > h) is lower by (1 − hazard of an abort)^h, and nothing else changes."""
    hazard = trained.manifest.abort_hazard
    assert 1e-5 < hazard < 1e-2
    routing, natural = load_forecaster(trained.path), load_forecaster(trained.path, aborts=False)
    h = np.arange(300)[:, None]
    expected = natural.forecast_batch(landmarks, 0).survival_at(h) * (1.0 - hazard) ** h
    np.testing.assert_allclose(routing.forecast_batch(landmarks, 0).survival_at(h), expected, rtol=1e-9)


def test_a_snapshot_is_exact(trained: Trained, small_log: SynthLog, landmarks: Sequence[Landmark]) -> None:
    """A forecaster that went on and one that was restored on the way cannot be told apart."""
    late = list(small_log.trace.take(np.arange(900, 1_100)).completions())
    one, other = load_forecaster(trained.path), load_forecaster(trained.path)
    one.observe(late[:111])
    other.restore(one.snapshot())
    for rest in ([], late[111:120], late[120:]):
        one.observe(rest)
        other.observe(rest)
        assert one.state_version == other.state_version
        assert one.snapshot() == other.snapshot()
        np.testing.assert_array_equal(
            one.forecast_batch(landmarks, 500).survival, other.forecast_batch(landmarks, 500).survival
        )


@MANY
@given(data=st.data())
def test_a_damaged_snapshot_changes_nothing(frozen: OnnxForecaster, data: st.DataObject) -> None:
    before = frozen.snapshot()
    at = data.draw(st.integers(0, len(before) - 1))
    flipped = before[:at] + bytes([before[at] ^ data.draw(st.integers(1, 255))]) + before[at + 1 :]
    for damaged in (flipped, before[:at], before + b"\0"):
        with pytest.raises(BundleError, match="damaged"):
            frozen.restore(damaged)
    assert frozen.snapshot() == before


def test_a_snapshot_of_another_bundle_is_refused(
    frozen: OnnxForecaster, trained: Trained, bundle_of: Callable[[str], Trained]
) -> None:
    other = bundle_of("lightgbm" if trained.manifest.model != "lightgbm" else "kaplan_meier")
    with pytest.raises(BundleError, match=f"of bundle {other.id}"):
        frozen.restore(load_forecaster(other.path).snapshot())
