"""Every registered family's ONNX graph answers like the native model, on inputs made to tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import lightgbm
import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from endcast.datasets.synth import SynthLog
from endcast.errors import TrainingError
from endcast.predictors.features.pipeline import LIMIT, FeaturePipeline, join, split
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import HazardGraph
from endcast.predictors.models import MODELS
from endcast.predictors.models.graph import finish
from endcast.predictors.models.lightgbm import BoostedHazard
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.predictors.models.trees import ensemble_node, round_down
from endcast.survival import FloatArray
from endcast.training.export import PARITY, export, native_hazards
from endcast.training.parity import golden_features, hard_inputs, worst_difference
from endcast.training.replay import replay
from endcast.training.select import active_groups, usable, validation_part
from endcast.training.train import Settings

ODD = np.array([np.nan, 0.0, -0.0, LIMIT, -LIMIT, 1e-40, -1e-40, 1e-35, -1e-35, 1e-30, 1.0, -1.0], dtype=np.float32)


@pytest.fixture(scope="module")
def data(small_log: SynthLog) -> TrainingData:
    """The small log's first 700 requests with all feature groups, as training sees them."""
    part = small_log.trace.take(np.arange(700))
    can_learn = usable(part, np.arange(len(part)))
    grid = IntervalGrid.fit(part.output_tokens[can_learn], part.is_event[can_learn], 24)
    pipeline = FeaturePipeline(active_groups(part), grid)
    rows, raw = replay(part, pipeline, can_learn)
    fit, validation, block = validation_part(part, rows, 0.2, 0)
    return TrainingData(
        grid=grid,
        columns=pipeline.columns,
        interval_columns=pipeline.interval_columns,
        features=pipeline.transform(raw),
        lengths=part.output_tokens[rows],
        ended=part.is_event[rows],
        fit=fit,
        validation=validation,
        block=block,
    )


@pytest.fixture(scope="module", params=[name for name in MODELS if name != "text"])  # test_text_models has its parity
def fitted(request: pytest.FixtureRequest, data: TrainingData, quick_settings: Callable[..., Settings]) -> FittedModel:
    """Each family fitted to them."""
    options = quick_settings(request.param).options
    data = TrainingData(**{**vars(data), "options": options})
    family = MODELS.get(request.param)()
    return family.refit(data, family.fit(data))


def calibrated(fitted: FittedModel, grid: IntervalGrid) -> tuple[Callable[[Float32Array], FloatArray], HazardGraph]:
    """Native hazards and the graph's, with a calibration that changes something."""

    def native(features: Float32Array) -> FloatArray:
        logits = grid.base_logit + 0.8 * (fitted.logits(features) - grid.base_logit)
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    return native, HazardGraph(finish(fitted.graph(), 0.8))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.02, 0.3, 1.0]), rows=st.integers(1, 12))
def test_the_graph_is_the_model(fitted: FittedModel, data: TrainingData, seed: int, share: float, rows: int) -> None:
    """Rows of the log with odd values anywhere, and values one float32 step beside those that trees split at."""
    rng = np.random.default_rng(seed)
    native, graph = calibrated(fitted, data.grid)
    log = join(data.features)
    x = log[rng.integers(len(log), size=rows)]
    near = np.nextafter(log[rng.integers(len(log), size=x.shape), np.arange(x.shape[1])], rng.choice(ODD[3:5], x.shape))
    x = np.where(rng.random(x.shape) < share, rng.choice(ODD, x.shape), np.where(rng.random(x.shape) < 0.5, near, x))
    hazards = graph.hazards(x)
    assert hazards.shape == (rows, len(data.grid)) and hazards.dtype == np.float32
    np.testing.assert_allclose(hazards, native(x), atol=PARITY)


def test_training_measures_the_same(fitted: FittedModel, data: TrainingData) -> None:
    native, graph = calibrated(fitted, data.grid)
    inputs = hard_inputs(join(data.features)[:64], np.random.default_rng(0))
    assert worst_difference(native, graph.hazards, inputs) < PARITY
    off = worst_difference(lambda x: native(x) + 2e-5, graph.hazards, inputs)
    assert off == pytest.approx(2e-5, rel=0.2)
    nowhere = worst_difference(lambda x: native(x) * np.nan, graph.hazards, inputs)
    assert not nowhere <= PARITY


@pytest.mark.parametrize("rounds", [0.0, 8.0])
def test_a_model_that_corrects_a_column_starts_from_it(data: TrainingData, rounds: float) -> None:
    """An interval column of log-odds is what trees correct, and what calibration pulls to: without trees it is the answer."""
    rng = np.random.default_rng(5)
    offset = rng.normal(-3.0, 1.0, (len(data.lengths), len(data.grid), 1)).astype(np.float32)
    features = Columns(data.features.values, np.concatenate([offset, data.features.intervals], axis=2))
    names = ("given", *data.interval_columns)
    own = replace(data, features=features, interval_columns=names, offset=0, options={"rounds": max(rounds, 1.0)})
    family = MODELS.get("lightgbm")()
    fitted = family.refit(own, family.fit(own))
    assert isinstance(fitted, BoostedHazard)
    fitted = fitted if rounds else replace(fitted, booster=None)
    exported = export(own, fitted, 0.7)
    vectors = own.vectors(np.arange(20))
    hazards = HazardGraph(exported.model).hazards(vectors)
    np.testing.assert_allclose(hazards, native_hazards(own, fitted, 0.7, vectors), atol=PARITY)
    untouched = np.allclose(hazards, 1.0 / (1.0 + np.exp(-offset[:20, :, 0])), atol=1e-6)
    assert untouched == (rounds == 0.0)


def test_hard_inputs_are_hard(data: TrainingData) -> None:
    log = join(data.features)[:50]
    inputs = hard_inputs(log, np.random.default_rng(0))
    assert inputs.dtype == np.float32 and inputs.shape == (7 * 50, log.shape[1])
    assert np.isnan(inputs).all(axis=1).any() and (inputs == 0).all(axis=1).any()
    assert {LIMIT, -LIMIT} <= set(inputs[~np.isnan(inputs)])
    golden = golden_features(inputs, np.random.default_rng(0))
    assert golden.shape == (16, log.shape[1])
    known = np.arange(log.shape[1]) == 3
    inputs = hard_inputs(log, np.random.default_rng(0), known)
    assert (np.isnan(inputs[:, 3]) == np.isnan(np.tile(log[:, 3], 7))).all() and np.isnan(inputs[:, 4]).any()
    assert np.nanmax(np.abs(inputs[:, 3])) < 14.0 < np.nanmax(np.abs(inputs[:, 4]))  # log-odds of 1e-6 and 1 − 1e-6


@given(st.floats(-3e38, float("inf"), exclude_max=True))
def test_thresholds_are_rounded_so_that_no_comparison_changes(threshold: float) -> None:
    assume(not -1e-34 < threshold < 0.0)  # where LightGBM takes values for zero
    down = round_down(threshold)
    assert down <= threshold and float(np.float32(down)) == down and np.isfinite(down)
    with np.errstate(over="ignore"):
        assert float(np.nextafter(np.float32(down), np.float32(np.inf))) > threshold


def _evaluate(booster: lightgbm.Booster, x: Float32Array) -> Float32Array:
    """The trees alone in onnxruntime."""
    graph = helper.make_graph(
        [ensemble_node(booster, "x", "y")],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, x.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])],
    )
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    out: Float32Array = session.run(["y"], {"x": x})[0][:, 0]
    return out


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), missing=st.booleans())
def test_trees_are_exported_with_their_missing_values(seed: int, missing: bool) -> None:
    """A split that has seen missing values sends them to its default side; one that has not takes them for zero."""
    rng = np.random.default_rng(seed)
    x = rng.choice(np.array([-1e6, -1.5, -1e-35, -0.0, 0.0, 1e-36, 1e-35, 0.5, 3.0, 1e6], dtype=np.float32), (300, 4))
    y = np.nan_to_num(x).sum(axis=1) + rng.normal(size=300)
    if missing:
        x[rng.random(x.shape) < 0.3] = np.nan
        y += 3.0 * np.isnan(x[:, 0])
    train = lightgbm.Dataset(x, y, params={"verbosity": -1, "min_data_in_bin": 1})
    options = {"verbosity": -1, "min_data_in_leaf": 1, "num_leaves": 16, "num_threads": 1, "boost_from_average": False}
    booster = lightgbm.train(options, train, 5)
    asked = np.concatenate(
        [x, np.full((1, 4), np.nan, np.float32), np.zeros((1, 4), np.float32), np.nextafter(x, x + 1)]
    )
    native = np.asarray(booster.predict(asked, num_threads=1))
    np.testing.assert_allclose(_evaluate(booster, asked), native, rtol=1e-5, atol=1e-5 * np.abs(native).max())


def test_a_categorical_split_is_refused() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, size=(400, 1)).astype(np.float32)
    y = np.isin(x[:, 0], [1, 4, 6]).astype(float)
    train = lightgbm.Dataset(x, y, categorical_feature=[0], params={"verbosity": -1, "min_data_per_group": 1})
    booster = lightgbm.train({"verbosity": -1, "cat_smooth": 0.0, "num_threads": 1}, train, 2)
    with pytest.raises(TrainingError, match="split of type"):
        ensemble_node(booster, "x", "y")


def test_columns_are_the_features_taken_apart(data: TrainingData) -> None:
    whole = join(data.features)
    apart: Columns = split(whole, data.features.values.shape[1], len(data.grid))
    np.testing.assert_array_equal(apart.values, data.features.values)
    np.testing.assert_array_equal(apart.intervals, data.features.intervals)
