"""LightGBM's trees as one ONNX ``TreeEnsembleRegressor``, equal to the native model on every float32 input.

LightGBM compares doubles, ONNX float32: thresholds are rounded *down* to float32, which changes no comparison of a
float32 value. A missing value goes where LightGBM sends it: to the default side where the split has seen missing values,
else it counts as zero.
"""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import onnx
from onnx import helper

from endcast.errors import TrainingError

#: LightGBM takes what is this near to zero for zero, the bound included.
ZERO = np.float32(1e-35)


def round_down(threshold: float) -> float:
    """The float32 that float32 values compare with as LightGBM compares them with ``threshold``: the largest that is not
    above it, be it beyond them all ("any finite value"); a threshold that parts zero from what is below parts it there."""
    if -float(ZERO) <= threshold < 0.0:
        return float(np.nextafter(-ZERO, np.float32(-np.inf)))
    with np.errstate(over="ignore"):
        near = np.float32(threshold)
        return float(np.nextafter(near, np.float32(-np.inf)) if float(near) > threshold else near)


class _Attributes:
    """The parallel lists that the operator wants."""

    def __init__(self, targets: int) -> None:
        self.targets = targets
        self.nodes: dict[str, list[Any]] = {
            key: []
            for key in (
                "nodes_treeids",
                "nodes_nodeids",
                "nodes_featureids",
                "nodes_modes",
                "nodes_values",
                "nodes_truenodeids",
                "nodes_falsenodeids",
                "nodes_missing_value_tracks_true",
                "target_treeids",
                "target_nodeids",
                "target_ids",
                "target_weights",
            )
        }

    def branch(self, tree: int, number: int, node: dict[str, Any], left: int, right: int) -> None:
        if node["decision_type"] != "<=":
            raise TrainingError(f"cannot export a split of type {node['decision_type']!r}")
        threshold = float(node["threshold"])
        to_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0.0
        self._node(tree, number, "BRANCH_LEQ", node["split_feature"], round_down(threshold), left, right, int(to_left))

    def leaf(self, tree: int, number: int, value: float) -> None:
        self._node(tree, number, "LEAF", 0, 0.0, 0, 0, 0)
        for key, entry in (
            ("target_treeids", tree),
            ("target_nodeids", number),
            ("target_ids", tree % self.targets),
            ("target_weights", value),
        ):
            self.nodes[key].append(entry)

    def _node(self, tree: int, number: int, mode: str, feature: int, value: float, yes: int, no: int, nan: int) -> None:
        entries = (tree, number, feature, mode, value, yes, no, nan)
        for key, entry in zip(list(self.nodes)[:8], entries, strict=True):
            self.nodes[key].append(entry)


def _add(attributes: _Attributes, tree: int, node: dict[str, Any], number: int = 0) -> None:
    """Add the subtree at ``node`` under ``number``, parents before children as runtimes expect."""
    if "leaf_value" in node:
        attributes.leaf(tree, number, float(node["leaf_value"]))
        return
    left, right = number + 1, number + 1 + _size(node["left_child"])
    attributes.branch(tree, number, node, left, right)
    _add(attributes, tree, node["left_child"], left)
    _add(attributes, tree, node["right_child"], right)


def _size(node: dict[str, Any]) -> int:
    return 1 if "leaf_value" in node else 1 + _size(node["left_child"]) + _size(node["right_child"])


def ensemble_node(booster: lightgbm.Booster, source: str, output: str) -> onnx.NodeProto:
    """One node: rows (r, columns) named ``source`` in, summed leaf values (r, classes) named ``output`` out; one class, but
    for a booster of several, whose trees take turns."""
    classes = booster.num_model_per_iteration()
    attributes = _Attributes(classes)
    for tree, entry in enumerate(booster.dump_model()["tree_info"]):
        _add(attributes, tree, entry["tree_structure"])
    every: dict[str, Any] = {
        "n_targets": classes,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        **attributes.nodes,
    }
    return helper.make_node("TreeEnsembleRegressor", [source], [output], name=output, domain="ai.onnx.ml", **every)
