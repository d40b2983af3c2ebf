"""A bundle's graphs: features in, hazards out; golden pairs say whether they do here what onnxruntime did in training.

Graphs run in onnxruntime, but for those of boosted trees, which are read back and evaluated faster (``boosted_graph``).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

from endcast.errors import BundleError
from endcast.predictors.bundle import Graph
from endcast.predictors.features.protocol import Float32Array
from endcast.survival import IntArray

#: onnxruntime raises a class of its own for each kind of damage.
GRAPH_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)
#: How far a graph's answer may lie from its golden one.
GOLDEN_TOLERANCE = 1e-5


def open_session(model: bytes) -> onnxruntime.InferenceSession:
    """A graph in onnxruntime, on one thread; ``BundleError`` if it is none."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except GRAPH_ERRORS as error:
        raise BundleError(f"the bundle's graph cannot be loaded: {error!s:.200}") from None


class HazardGraph:
    """A graph in onnxruntime, on one thread; features (n, F) in, hazards (n, K) out."""

    def __init__(self, model: bytes) -> None:
        self._session = open_session(model)

    def hazards(self, features: Float32Array, first: IntArray | None = None) -> Float32Array:
        """(n, K), in [0, 1]; all of them, whatever ``first`` is."""
        (hazards,) = self._session.run(["hazards"], {"features": features})
        out: Float32Array = hazards
        return out


class Hazards(Protocol):
    """Whatever evaluates a graph."""

    def hazards(self, features: Float32Array, first: IntArray | None = None) -> Float32Array:
        """(n, K), in [0, 1], of features (n, F). Those before the intervals ``first`` (n,), where that is given, are not
        looked at and may be anything in [0, 1]."""


def load_graph(graph: Graph, width: int) -> Hazards:
    """The graph of a bundle for feature vectors of ``width`` F; ``BundleError`` unless it gives its golden answer."""
    loaded = evaluator(graph.model)
    golden = graph.golden_features
    if golden.ndim != 2 or golden.shape[1] != width or golden.dtype != np.float32:
        raise BundleError("the bundle was made with other feature columns than this endcast has", hint="Train it again")
    try:
        hazards = loaded.hazards(golden)
        loaded.hazards(golden[:1])  # one alone may take another way: what has to be compiled for it is compiled now
    except GRAPH_ERRORS as error:
        raise BundleError(f"the bundle's graph does not run: {error!s:.200}") from None
    if hazards.shape != graph.golden_hazards.shape or hazards.shape[1] != len(graph.grid):
        raise BundleError("the bundle's graph gives hazards of another shape than its golden output")
    off = float(np.abs(hazards - graph.golden_hazards).max(initial=0.0))
    if not off <= GOLDEN_TOLERANCE:
        raise BundleError(
            f"the bundle's graph is {off:.2g} off its golden output here", hint="Train it on this machine's versions"
        )
    return loaded


def evaluator(model: bytes) -> Hazards:
    """What evaluates this graph fastest; ``BundleError`` if it is none."""
    if b"TreeEnsembleRegressor" in model:  # else nothing is compiled
        from endcast.predictors.boosted_graph import read_boosted

        boosted = read_boosted(model)
        if boosted is not None:
            return boosted
    return HazardGraph(model)
