"""The graph that ``models.lightgbm`` exports, read back and evaluated without expanding rows: about ten times as fast.

The file in the bundle stays an ONNX graph that any runtime evaluates. Only a graph of exactly this shape is read here; all
others, and this one elsewhere, run in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.onnx_nodes import MalformedModelError, OnnxNode, read_model
from endcast.predictors.tree_blocks import TreeBlocks
from endcast.predictors.tree_kernel import (
    COLUMN_BITS,
    LEAF,
    MOST_INTERVALS,
    UNKNOWN_BIT,
    Int32Array,
    add_trees,
    to_hazards,
)
from endcast.predictors.wire_kernel import fingerprint
from endcast.survival import IntArray

#: Landmarks from which on applying every split to all of them is faster than walking the trees with each.
FEW = 4
_ENSEMBLE = "TreeEnsembleRegressor"
#: Operator, inputs and output of each node; trees that correct a column's log-odds begin with a look at that column.
_HEAD = (
    ("Slice", "features f end one", "flat_intervals"),
    ("Reshape", "flat_intervals interval_shape", "intervals"),
)
_OFFSET = ("Gather", "intervals offset", "base")
_BODY = (
    ("Slice", "features zero f one", "values"),
    ("Unsqueeze", "values one", "values_3d"),
    ("Expand", "values_3d values_shape", "values_each"),
    ("Shape", "features", "rows"),
    ("Concat", "rows k_by_one", "number_shape"),
    ("Expand", "numbers number_shape", "number_each"),
    ("Concat", "values_each number_each intervals", "table"),
    ("Reshape", "table table_shape", "period_rows"),
    (_ENSEMBLE, "period_rows", "boosted"),
    ("Reshape", "boosted output_shape", "boosted_each"),
    ("Add", "boosted_each base", "logits"),
    ("Sub", "logits base", "centred"),
    ("Mul", "centred calibration_slope", "scaled"),
    ("Add", "scaled base", "calibrated"),
    ("Sigmoid", "calibrated", "hazards"),
)
Constants = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class BoostedGraph:
    """Trees, and what they correct: a column of each interval (``offset``), or the pooled log-odds ``base`` (1, K)."""

    roots: Int32Array  #: (trees,)
    splits: Int32Array  #: (N,), see ``tree_kernel``
    value: Float32Array  #: (N,)
    shared: int  #: columns that all intervals see alike
    each: int  #: columns of each interval
    intervals: int  #: K
    slope: float
    base: Float32Array | None
    offset: int

    @property
    def width(self) -> int:
        """F."""
        return self.shared + self.intervals * self.each

    @cached_property
    def _blocks(self) -> TreeBlocks:
        return TreeBlocks.of_trees(self.roots, self.splits, self.value, self.shared, self.shared + 1 + self.each)

    def hazards(self, features: Float32Array, first: IntArray | None = None) -> Float32Array:
        """(n, K), in [0, 1], of features (n, F). Before the intervals ``first`` (n,), in [0, K), no tree is asked: what
        stands there is the base alone."""
        if features.ndim != 2 or features.shape[1] != self.width or features.dtype != np.float32:
            raise ValueError(f"features must be (n, {self.width}) float32, not {features.shape} {features.dtype}")
        vectors = np.ascontiguousarray(features)
        out = np.zeros((len(vectors), self.intervals), dtype=np.float32)
        start = np.zeros(len(vectors), dtype=np.int64) if first is None else np.ascontiguousarray(first, dtype=np.int64)
        if start.shape != (len(vectors),) or not ((start >= 0) & (start < self.intervals)).all():
            raise ValueError(f"first must be (n,) intervals below {self.intervals}")
        if len(vectors) < FEW:
            add_trees(out, vectors, start, self.roots, self.splits, self.value, self.shared)
        else:
            self._blocks.add(out, vectors, start)
        base = self.base
        if base is None:
            base = np.ascontiguousarray(vectors[:, self.shared + self.offset :: self.each])
        to_hazards(out, base, np.float32(self.slope))
        return out


def read_boosted(model: bytes) -> BoostedGraph | None:
    """The graph's trees; ``None`` if it is another one."""
    try:
        nodes, constants = read_model(model)
    except (MalformedModelError, UnicodeDecodeError, ValueError):
        return None
    shape = [(node.op, " ".join(node.inputs), " ".join(node.outputs)) for node in nodes]
    if shape not in ([*_HEAD, *_BODY], [*_HEAD, _OFFSET, *_BODY]):
        return None
    (ensemble,) = (node for node in nodes if node.op == _ENSEMBLE)
    try:
        return _boosted(ensemble, constants)
    except (KeyError, ValueError, IndexError):
        return None


def _boosted(ensemble: OnnxNode, constants: Constants) -> BoostedGraph | None:
    _, intervals, each = (int(size) for size in constants["interval_shape"])
    shared = int(constants["f"][0])
    trees = _trees(ensemble, shared + 1 + each)
    numbers = constants["numbers"]
    if trees is None or intervals > MOST_INTERVALS or numbers.ravel().tolist() != list(range(intervals)):
        return None
    base = constants["base"].astype(np.float32) if "base" in constants else None
    offset = int(constants["offset"]) if base is None else 0
    slope = float(constants["calibration_slope"])
    return BoostedGraph(*trees, shared, each, intervals, slope, base, offset)


def _trees(ensemble: OnnxNode, columns: int) -> tuple[Int32Array, Int32Array, Float32Array] | None:
    """Roots, splits and values as ``tree_kernel`` wants them; ``None`` where they are not those of a sum of trees with one
    value a leaf, each split followed by its "yes"."""
    tree, own = ensemble.ints("nodes_treeids"), ensemble.ints("nodes_nodeids")
    leaf, branch = (fingerprint(np.frombuffer(mode, np.uint8), 0, len(mode)) for mode in (b"LEAF", b"BRANCH_LEQ"))
    modes = ensemble.texts("nodes_modes")
    leaves, node = modes == leaf, np.arange(len(tree))
    first = np.flatnonzero(own == 0)
    start = first[np.searchsorted(tree[first], tree)]  # where each node's tree begins
    column, unknown = ensemble.ints("nodes_featureids"), ensemble.ints("nodes_missing_value_tracks_true")
    yes, no = start + ensemble.ints("nodes_truenodeids"), start + ensemble.ints("nodes_falsenodeids")
    at_leaf = first[np.searchsorted(tree[first], ensemble.ints("target_treeids"))] + ensemble.ints("target_nodeids")
    value = ensemble.floats("nodes_values").copy()
    value[at_leaf] = ensemble.floats("target_weights")
    further, inside = no[~leaves] - node[~leaves], no[~leaves] < len(tree)
    sound = (
        _is_plain_sum(ensemble)
        and bool((leaves | (modes == branch)).all() and (own == node - start).all() and (np.diff(tree) >= 0).all())
        and np.array_equal(np.sort(at_leaf), node[leaves])
        and bool((column < min(columns, 1 << COLUMN_BITS)).all() and np.isin(unknown, (0, 1)).all())
        and not np.isnan(value[~leaves]).any()
        and bool((yes == node + 1)[~leaves].all() and (further > 1).all() and (further < 1 << 15).all())
        and bool(inside.all() and (tree[no[~leaves]] == tree[~leaves]).all())
    )
    if not sound:
        return None
    splits = np.where(leaves, LEAF, column + UNKNOWN_BIT * unknown + ((no - node) << 16))
    return first.astype(np.int32), splits.astype(np.int32), value


def _is_plain_sum(ensemble: OnnxNode) -> bool:
    return (
        ensemble.domain == "ai.onnx.ml"
        and ensemble.whole("n_targets") == 1
        and ensemble.text("aggregate_function") == b"SUM"
        and ensemble.text("post_transform") == b"NONE"
        and set(ensemble.attributes) == _ATTRIBUTES
    )


_ATTRIBUTES = frozenset(
    [
        *("n_targets", "aggregate_function", "post_transform", "nodes_treeids", "nodes_nodeids", "nodes_featureids"),
        *("nodes_modes", "nodes_values", "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true"),
        *("target_treeids", "target_nodeids", "target_ids", "target_weights"),
    ]
)
