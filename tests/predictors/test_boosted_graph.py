"""Graphs of boosted trees, read back from their files: the same answers as onnxruntime's, bit by bit up to the logistic function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from endcast import Landmark, Request
from endcast.errors import BundleError
from endcast.predictors.boosted_graph import BoostedGraph, read_boosted
from endcast.predictors.bundle import Graph, read_bundle
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import HazardGraph, load_graph
from endcast.predictors.models.graph import finish
from endcast.predictors.models.lightgbm import BoostedHazard
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.predictors.onnx_nodes import MalformedModelError, read_model
from endcast.training.parity import hard_inputs
from endcast.training.train import Trained

#: The logistic function is not computed alike, nor are trees added to a base in one order: two units in the last place.
SIGMOID = 2.4e-7


def boosted_model(
    rng: np.random.Generator, *, shared: int, each: int, intervals: int, offset: int | None, trees: int, leaves: int
) -> tuple[bytes, Float32Array]:
    """A graph as training exports it, of trees grown on noise, and vectors (n, F) like those that they were grown on."""
    n, columns = 200, shared + 1 + each
    values = rng.normal(size=(n, shared)).round(1).astype(np.float32)
    own = rng.normal(size=(n, intervals, each)).round(1).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = np.nan
    unknown = rng.random(own.shape) < 0.2
    if offset is not None:
        unknown[:, :, offset] = False
    own[unknown] = np.nan
    request, interval = np.repeat(np.arange(n), intervals), np.tile(np.arange(intervals), n)
    rows = np.concatenate([values[request], interval[:, None].astype(np.float32), own[request, interval]], axis=1)
    target = np.nan_to_num(rows).sum(axis=1) + np.sin(3.0 * interval) + rng.normal(size=len(rows))
    params = {"num_leaves": leaves, "min_data_in_leaf": 1, "verbosity": -1, "num_threads": 1, "seed": 1, "max_bin": 63}
    booster = lightgbm.train(params, lightgbm.Dataset(rows, target, params=params), trees)
    assert booster.num_feature() == columns
    grid = IntervalGrid(np.arange(intervals + 1), -0.1 * np.arange(intervals + 1.0))
    model = BoostedHazard(booster, grid, shared, shared + intervals * each, {}, offset)
    return finish(model.graph(), 0.8), np.concatenate([values, own.reshape(n, -1)], axis=1)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shared=st.integers(0, 4),
    each=st.integers(1, 3),
    intervals=st.sampled_from([1, 2, 7, 17, 63, 64]),
    trees=st.integers(1, 6),
    leaves=st.integers(2, 40),
    corrects=st.booleans(),
)
def test_it_answers_like_onnxruntime(
    seed: int, shared: int, each: int, intervals: int, trees: int, leaves: int, corrects: bool
) -> None:
    rng = np.random.default_rng(seed)
    offset = int(rng.integers(each)) if corrects else None
    model, vectors = boosted_model(
        rng, shared=shared, each=each, intervals=intervals, offset=offset, trees=trees, leaves=leaves
    )
    graph = read_boosted(model)
    assert graph is not None and len(graph.roots) <= trees and graph.width == vectors.shape[1]
    known = np.zeros(graph.width, dtype=bool)
    if offset is not None:
        known[shared + offset :: each] = True
    inputs = hard_inputs(vectors, rng, known)
    expected = HazardGraph(model).hazards(inputs)
    whole = graph.hazards(inputs)
    np.testing.assert_allclose(whole, expected, atol=SIGMOID, rtol=0.0)
    first = rng.integers(0, intervals, len(inputs))
    late = graph.hazards(inputs, first)
    asked = np.arange(intervals) >= first[:, None]
    np.testing.assert_array_equal(late[asked], whole[asked])
    assert ((late >= 0.0) & (late <= 1.0)).all()


def test_a_running_request_is_forecast_as_its_admission_goes_on(boosted: Trained) -> None:
    """Only the intervals that are still to come are evaluated; two landmarks of one request share the earlier one's."""
    forecaster = load_forecaster(boosted.path)
    requests = [Request(request_id=str(n), prompt_tokens=n) for n in (1, 30, 700)]
    ages = np.array([0, 1, 7, 90, 128, 400, 5_000])
    for request in requests:
        (admission,) = forecaster.forecast([Landmark(request=request)])
        assert admission.hazards is not None
        landmarks = [Landmark(request=request, generated_tokens=int(age)) for age in ages]
        alone = [forecaster.forecast([landmark])[0] for landmark in landmarks]
        for made, age in zip([*alone, *forecaster.forecast(landmarks)], [*ages, *ages], strict=True):
            going_on = admission.batch.advance(np.array([age]))
            for h in (1, 16, 200):
                assert made.survival(h) == pytest.approx(float(going_on.survival_at(h)[0]), rel=1e-9)
            assert made.hazards is not None
            later = slice(int(forecaster.grid.interval_of(np.array([age]))[0]), None)
            np.testing.assert_array_equal(made.hazards[:, later], admission.hazards[:, later])


def test_intervals_that_there_are_not_are_refused() -> None:
    model, vectors = boosted_model(
        np.random.default_rng(0), shared=2, each=1, intervals=7, offset=None, trees=1, leaves=4
    )
    graph = read_boosted(model)
    assert graph is not None
    for wrong in (np.full(len(vectors), 7), np.full(len(vectors), -1), np.zeros(len(vectors) + 1, dtype=np.int64)):
        with pytest.raises(ValueError, match="below 7"):
            graph.hazards(vectors, wrong)


def test_both_graphs_of_a_bundle_are_read_back(reading: Trained) -> None:
    bundle = read_bundle(reading.path)
    assert bundle.output is not None
    for graph in (bundle.admission, bundle.output):
        loaded = load_graph(graph, graph.golden_features.shape[1])
        assert isinstance(loaded, BoostedGraph) and len(loaded.roots) > 5
        inputs = np.repeat(graph.golden_features, 8, axis=0)
        expected = HazardGraph(graph.model).hazards(inputs)
        np.testing.assert_allclose(loaded.hazards(inputs), expected, atol=SIGMOID, rtol=0.0)
    forecaster = load_forecaster(reading.path)
    assert isinstance(forecaster._graph, BoostedGraph) and forecaster._output is not None
    assert isinstance(forecaster._output._graph, BoostedGraph)


def test_rows_do_not_depend_on_each_other() -> None:
    model, vectors = boosted_model(
        np.random.default_rng(0), shared=3, each=2, intervals=17, offset=0, trees=9, leaves=31
    )
    graph = read_boosted(model)
    assert graph is not None
    together = graph.hazards(vectors)
    for i in range(0, len(vectors), 7):
        np.testing.assert_array_equal(graph.hazards(vectors[i : i + 1])[0], together[i])
    np.testing.assert_array_equal(graph.hazards(np.asfortranarray(vectors)), together)
    assert graph.hazards(vectors[:0]).shape == (0, 17)


def test_trees_over_more_intervals_run_in_onnxruntime() -> None:
    model, vectors = boosted_model(
        np.random.default_rng(0), shared=2, each=1, intervals=65, offset=None, trees=2, leaves=9
    )
    assert read_boosted(model) is None
    golden = vectors[:5]
    graph = Graph(model, IntervalGrid(np.arange(66), np.zeros(66)), golden, HazardGraph(model).hazards(golden))
    assert isinstance(load_graph(graph, golden.shape[1]), HazardGraph)


@pytest.mark.parametrize("family", ["kaplan_meier", "kaplan_meier_by_size"])
def test_other_families_run_in_onnxruntime(bundle_of: Callable[[str], Trained], family: str) -> None:
    graph = read_bundle(bundle_of(family).path).admission
    assert read_boosted(graph.model) is None
    assert isinstance(load_graph(graph, graph.golden_features.shape[1]), HazardGraph)


def changed(model: bytes, change: Callable[[onnx.ModelProto], None]) -> bytes:
    proto = onnx.load_from_string(model)
    change(proto)
    return bytes(proto.SerializeToString(deterministic=True))


def ensemble(proto: onnx.ModelProto) -> onnx.NodeProto:
    (node,) = (node for node in proto.graph.node if node.op_type == "TreeEnsembleRegressor")
    assert isinstance(node, onnx.NodeProto)
    return node


def attribute(proto: onnx.ModelProto, name: str) -> onnx.AttributeProto:
    (entry,) = (entry for entry in ensemble(proto).attribute if entry.name == name)
    assert isinstance(entry, onnx.AttributeProto)
    return entry


def last_branch(proto: onnx.ModelProto) -> int:
    return max(i for i, mode in enumerate(attribute(proto, "nodes_modes").strings) if mode != b"LEAF")


def _another_operator(proto: onnx.ModelProto) -> None:
    proto.graph.node[-1].op_type = "Tanh"


def _a_further_node(proto: onnx.ModelProto) -> None:
    proto.graph.node[-1].output[0] = "almost"
    proto.graph.node.append(helper.make_node("Identity", ["almost"], ["hazards"]))


def _another_comparison(proto: onnx.ModelProto) -> None:
    attribute(proto, "nodes_modes").strings[last_branch(proto)] = b"BRANCH_LT"


def _a_mean_of_trees(proto: onnx.ModelProto) -> None:
    attribute(proto, "aggregate_function").s = b"AVERAGE"


def _a_transform(proto: onnx.ModelProto) -> None:
    attribute(proto, "post_transform").s = b"LOGISTIC"


def _base_values(proto: onnx.ModelProto) -> None:
    ensemble(proto).attribute.append(helper.make_attribute("base_values", [0.5]))


def _a_loop(proto: onnx.ModelProto) -> None:
    at = last_branch(proto)
    attribute(proto, "nodes_falsenodeids").ints[at] = 0


def _beyond_the_end(proto: onnx.ModelProto) -> None:
    attribute(proto, "nodes_falsenodeids").ints[last_branch(proto)] = 10**6


def _a_column_that_is_not_there(proto: onnx.ModelProto) -> None:
    attribute(proto, "nodes_featureids").ints[last_branch(proto)] = 10**4


def _two_values_a_leaf(proto: onnx.ModelProto) -> None:
    for name in ("target_treeids", "target_nodeids", "target_ids"):
        attribute(proto, name).ints.append(attribute(proto, name).ints[-1])
    attribute(proto, "target_weights").floats.append(1.0)


def _too_few_numbers(proto: onnx.ModelProto) -> None:
    del attribute(proto, "nodes_values").floats[-1]


def _other_interval_numbers(proto: onnx.ModelProto) -> None:
    numbers = next(entry for entry in proto.graph.initializer if entry.name == "numbers")
    numbers.raw_data = np.arange(1, 8, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    "change",
    [
        _another_operator, _a_further_node, _another_comparison, _a_mean_of_trees, _a_transform, _base_values, _a_loop,
        _beyond_the_end, _a_column_that_is_not_there, _two_values_a_leaf, _too_few_numbers, _other_interval_numbers,
    ],
    ids=lambda change: change.__name__.strip("_"),
)  # fmt: skip
def test_a_graph_of_another_shape_is_left_to_onnxruntime(change: Callable[[onnx.ModelProto], None]) -> None:
    model, _ = boosted_model(np.random.default_rng(0), shared=3, each=1, intervals=7, offset=0, trees=4, leaves=9)
    assert read_boosted(model) is not None
    assert read_boosted(changed(model, change)) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_do_no_harm(data: st.DataObject) -> None:
    """Cut or changed anywhere, a file is no boosted graph, or one whose every descent ends."""
    model, vectors = boosted_model(np.random.default_rng(0), shared=3, each=1, intervals=7, offset=0, trees=4, leaves=9)
    at = data.draw(st.integers(0, len(model) - 1))
    damaged = data.draw(
        st.sampled_from([model[:at], model[:at] + data.draw(st.binary(min_size=1, max_size=9)) + model[at + 1 :]])
    )
    graph = read_boosted(damaged)
    if graph is not None and graph.width == vectors.shape[1]:
        hazards = graph.hazards(vectors)
        assert hazards.shape == (len(vectors), graph.intervals)


def test_vectors_of_another_width_are_refused() -> None:
    model, vectors = boosted_model(np.random.default_rng(0), shared=3, each=1, intervals=7, offset=0, trees=4, leaves=9)
    graph = read_boosted(model)
    assert graph is not None
    wrongs: list[Any] = [vectors[:, 1:], vectors[0], vectors.astype(np.float64)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="features must be"):
            graph.hazards(wrong)
    golden = Graph(
        model, IntervalGrid(np.arange(8), np.zeros(8)), vectors[:4].astype(np.float64), graph.hazards(vectors[:4])
    )
    with pytest.raises(BundleError, match="other feature columns"):
        load_graph(golden, graph.width)


def test_a_wrong_golden_answer_is_refused() -> None:
    model, vectors = boosted_model(np.random.default_rng(0), shared=3, each=1, intervals=7, offset=0, trees=4, leaves=9)
    answer = HazardGraph(model).hazards(vectors[:4])
    grid = IntervalGrid(np.arange(8), np.zeros(8))
    assert isinstance(load_graph(Graph(model, grid, vectors[:4], answer), vectors.shape[1]), BoostedGraph)
    with pytest.raises(BundleError, match="off its golden output"):
        load_graph(Graph(model, grid, vectors[:4], np.minimum(answer + 1e-3, 1.0)), vectors.shape[1])


def test_nodes_and_constants_are_read_as_the_library_reads_them(reading: Trained) -> None:
    model = read_bundle(reading.path).admission.model
    proto = onnx.load_from_string(model)
    nodes, constants = read_model(model)
    assert [(n.op, n.inputs, n.outputs) for n in nodes] == [
        (n.op_type, tuple(n.input), tuple(n.output)) for n in proto.graph.node
    ]
    for entry in proto.graph.initializer:
        np.testing.assert_array_equal(constants[entry.name], onnx.numpy_helper.to_array(entry))
    (trees,) = (node for node in nodes if node.op == "TreeEnsembleRegressor")
    for entry in ensemble(proto).attribute:
        if entry.ints:
            assert trees.ints(entry.name).tolist() == list(entry.ints)
        if entry.floats:
            assert trees.floats(entry.name).tolist() == list(entry.floats)
    assert (
        trees.whole("n_targets") == 1 and trees.text("aggregate_function") == b"SUM" and trees.whole("nothing") is None
    )


@pytest.mark.parametrize("data", [b"\x07", b"\xff", b"\x3b", b"\x0a"])
def test_what_is_no_model_is_told(data: bytes) -> None:
    with pytest.raises(MalformedModelError):
        read_model(data)
    assert read_boosted(data) is None
