"""Hazard models as ONNX graphs: ``features`` (n, F) float32 in, ``hazards`` (n, K) float32 out.

A family gives the nodes up to the log-odds; calibration and the logistic function are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from endcast.predictors.calibration import Calibration

OPSET, ML_OPSET, IR_VERSION = 17, 3, 9
INPUT, OUTPUT, LOGITS = "features", "hazards", "logits"


@dataclass(frozen=True)
class LogitGraph:
    """Nodes that compute ``logits`` (n, K) from ``features`` (n, ``width``), and the constants they use."""

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


def finish(graph: LogitGraph, calibration: Calibration) -> bytes:
    """The whole model: calibrated hazards. Two equal models give equal bytes."""
    nodes = [
        *graph.nodes,
        node("Sub", [LOGITS, "calibration_base"], "centred"),
        node("Mul", ["centred", "calibration_slope"], "scaled"),
        node("Add", ["scaled", "calibration_shift"], "calibrated"),
        node("Sigmoid", ["calibrated"], OUTPUT),
    ]
    constants = [
        *graph.constants,
        constant("calibration_base", calibration.base, np.float32),
        constant("calibration_slope", calibration.slope, np.float32),
        constant("calibration_shift", calibration.base + calibration.shift, np.float32),
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


def constant_logits(logits: npt.ArrayLike, width: int) -> LogitGraph:
    """The same log-odds (K,) for every request."""
    row = np.asarray(logits, dtype=np.float32)
    nodes = (
        node("Shape", [INPUT], "rows", start=0, end=1),
        node("Concat", ["rows", "intervals"], "shape", axis=0),
        node("Expand", ["row", "shape"], LOGITS),
    )
    constants = (constant("row", row[None, :], np.float32), constant("intervals", [len(row)], np.int64))
    return LogitGraph(nodes, constants, width, len(row))
