"""A fitted model as a graph, checked against itself on hard inputs, with a golden pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.datasets.trace import BoolArray
from endcast.errors import TrainingError
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.hazard_graph import HazardGraph
from endcast.predictors.models.graph import finish
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray
from endcast.training.parity import golden_features, hard_inputs, worst_difference

#: The graph may differ from the native model by this much, in probability, on any input.
PARITY = 1e-5
#: Feature vectors of the training data from which hard inputs are made.
SAMPLE = 256


@dataclass(frozen=True, eq=False)
class Exported:
    """A graph's bytes, its golden pair and the largest ``difference`` from the native model that was found."""

    model: bytes
    golden_features: Float32Array
    golden_hazards: Float32Array
    difference: float


def native_hazards(data: TrainingData, fitted: FittedModel, slope: float, features: Float32Array) -> FloatArray:
    """(n, K), what the graph must give, computed by the model's own library."""
    base = data.base_of(features)
    logits = base + slope * (fitted.logits(features) - base)
    hazards: FloatArray = np.exp(-np.logaddexp(0.0, -logits))
    return hazards


def export(data: TrainingData, fitted: FittedModel, slope: float) -> Exported:
    """``TrainingError`` if graph and model differ."""
    model = finish(fitted.graph(), slope)
    graph = HazardGraph(model)
    rng = np.random.default_rng(data.seed)
    features = data.vectors(np.sort(rng.permutation(len(data.lengths))[:SAMPLE]))
    inputs = hard_inputs(features, rng, _log_odds(data))
    difference = worst_difference(lambda rows: native_hazards(data, fitted, slope, rows), graph.hazards, inputs)
    if not difference <= PARITY:
        raise TrainingError(f"the exported graph differs from the model by {difference:.2g}, more than {PARITY}")
    golden = golden_features(inputs, rng)
    return Exported(model, golden, graph.hazards(golden), difference)


def _log_odds(data: TrainingData) -> BoolArray:
    """(F,), the columns that hold log-odds to be corrected."""
    values, each = data.features.values.shape[1], data.features.intervals.shape[2]
    held = np.zeros(data.width, dtype=bool)
    if data.offset is not None:
        held[values + data.offset :: each] = True
    return held
