"""One score out of a curve: the log of the output tokens to be expected, natively and as a graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from endcast.predictors.models.encoder.fitted import EncodedHazard
from endcast.predictors.models.graph import INPUT, IR_VERSION, LOGITS, OPSET, constant, node
from endcast.survival import FloatArray, IntArray

#: Chance that is left at least in each interval, so that a curve never breaks off.
_LEAST_STAY = 1e-6


def spans(edges: IntArray) -> tuple[float, FloatArray]:
    """What the first tokens count, and (K,) what each survival at an interval's end counts, in tokens: ends lie evenly in
    their interval, and nothing comes after the last edge."""
    widths = np.diff(edges).astype(np.float64)
    return float(widths[0]) / 2.0, (widths + np.append(widths[1:], 0.0)) / 2.0


def expected_tokens(hazards: FloatArray, edges: IntArray) -> FloatArray:
    """(n,), from hazards (n, K) on ``edges`` (K+1,)."""
    first, each = spans(edges)
    survival = np.exp(np.cumsum(np.log(np.maximum(1.0 - hazards, _LEAST_STAY)), axis=1))
    expected: FloatArray = first + survival @ each
    return expected


def score_graph(model: EncodedHazard) -> bytes:
    """``features`` (n, pieces) in, ``score`` (n, 1) out. Two equal models give equal bytes."""
    graph = model.graph()
    first, each = spans(model.grid.edges)
    nodes = [
        *graph.nodes,
        node("Sigmoid", [LOGITS], "hazards"),
        node("Sub", ["whole", "hazards"], "stays"),
        node("Max", ["stays", "least_stay"], "stays_kept"),
        node("Log", ["stays_kept"], "log_stays"),
        node("CumSum", ["log_stays", "over_intervals"], "log_survival"),
        node("Exp", ["log_survival"], "survival"),
        node("MatMul", ["survival", "each_counts"], "later_tokens"),
        node("Add", ["later_tokens", "first_counts"], "expected_tokens"),
        node("Log", ["expected_tokens"], "score"),
    ]
    constants = [
        *graph.constants,
        constant("whole", 1.0, np.float32),
        constant("least_stay", _LEAST_STAY, np.float32),
        constant("over_intervals", 1, np.int64),
        constant("each_counts", each[:, None], np.float32),
        constant("first_counts", first, np.float32),
    ]
    proto = helper.make_graph(
        nodes,
        "score",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", graph.width])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])],
        constants,
    )
    whole = helper.make_model(
        proto, producer_name="endcast", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(whole)
    return bytes(whole.SerializeToString(deterministic=True))
