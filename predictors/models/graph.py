"""Hazard models as ONNX graphs: ``features`` (n, F) float32 in, ``hazards`` (n, K) float32 out.

A family gives the nodes up to the log-odds, and names what they correct (``BASE``: the pooled log-odds, or an interval
column that brings its own for each row); calibration and the logistic function are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, ML_OPSET, IR_VERSION = 17, 3, 9
INPUT, OUTPUT, LOGITS, BASE = "features", "hazards", "logits", "base"


@dataclass(frozen=True)
class LogitGraph:
    """Nodes that compute ``logits`` (n, K) from ``features`` (n, ``width``), and the constants they use.

    They, or the constants, make ``base`` too, (1, K) or (n, K): the log-odds that calibration pulls towards.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    width: int
    intervals: int


def constant(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike) -> onnx.TensorProto:
    """A named constant tensor."""
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    """One node with one output, named after it."""
    return helper.make_node(op, list(inputs), [output], name=output, **attributes)


def finish(graph: LogitGraph, slope: float) -> bytes:
    """The whole model: hazards, the log-odds pulled towards their base by ``slope``. Two equal models give equal bytes."""
    nodes = [
        *graph.nodes,
        node("Sub", [LOGITS, BASE], "centred"),
        node("Mul", ["centred", "calibration_slope"], "scaled"),
        node("Add", ["scaled", BASE], "calibrated"),
        node("Sigmoid", ["calibrated"], OUTPUT),
    ]
    constants = [
        *graph.constants,
        constant("calibration_slope", slope, np.float32),
    ]
    proto = helper.make_graph(
        nodes,
        "hazards",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", graph.width])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", graph.intervals])],
        constants,
    )
    model = helper.make_model(
        proto,
        producer_name="endcast",
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def pooled_base(logits: npt.ArrayLike) -> onnx.TensorProto:
    """``base`` as one row (K,) for all."""
    return constant(BASE, np.asarray(logits, dtype=np.float64)[None, :], np.float32)


def base_alone(base_logit: npt.ArrayLike, width: int) -> LogitGraph:
    """The pooled log-odds (K,) for every row: a model that corrects nothing."""
    row = np.asarray(base_logit, dtype=np.float32)
    nodes = (
        node("Shape", [INPUT], "rows", start=0, end=1),
        node("Concat", ["rows", "intervals"], "shape", axis=0),
        node("Expand", [BASE, "shape"], LOGITS),
    )
    constants = (pooled_base(row), constant("intervals", [len(row)], np.int64))
    return LogitGraph(nodes, constants, width, len(row))
