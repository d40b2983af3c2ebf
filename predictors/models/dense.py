"""Feature vectors for models that add and multiply: standardized, bounded, with a column that tells what is missing.

Trees take any number as it is. Linear models and networks need numbers of one size, and none that a stray input could
blow up: what lies beyond ``BOUND`` standard deviations counts as lying there, and what is missing counts as the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.graph import INPUT, constant, node
from endcast.predictors.models.protocol import TrainingData
from endcast.survival import IntArray

#: Standard deviations beyond which a number counts no further.
BOUND = 4.0
#: Quantiles between which a column's mean and deviation are taken, so that a few stray numbers do not set them.
_CORE = (0.005, 0.995)
#: Deviations (of the core) below which a column is constant: it is not used.
_CONSTANT = 1e-6
#: Shares of rows with a missing value outside which the column of its absence says nothing.
_LEAST_MISSING = 1e-3
#: Inputs that are shown of interval columns, about.
_INTERVAL_INPUTS = 64
ENCODED = "encoded"


def looked_at(data: TrainingData) -> IntArray:
    """The columns of a feature vector that a model is shown which takes all intervals at once: all of the request's, and of each interval column so many
    intervals, evenly spaced, that it costs little. Neighbouring intervals say nearly the same."""
    values, intervals = data.features.values.shape[1], len(data.grid)
    each = data.features.intervals.shape[2]
    if each == 0:
        return np.arange(values)
    shown = np.unique(
        np.linspace(0, intervals - 1, min(max(_INTERVAL_INPUTS // each, 4), intervals)).round().astype(int)
    )
    return np.concatenate([np.arange(values), (values + shown[:, None] * each + np.arange(each)).ravel()])


@dataclass(frozen=True, eq=False)
class Encoding:
    """``columns`` (E,) of F that are looked at; ``centre``, ``per_deviation`` (E,), 0 where one is not used; ``absent`` (m,)
    of them, whose absence is told.

    Encoded rows have ``width`` = E + m columns.
    """

    columns: IntArray
    centre: Float32Array
    per_deviation: Float32Array
    absent: IntArray

    @property
    def width(self) -> int:
        """Columns of an encoded row."""
        return len(self.centre) + len(self.absent)

    @classmethod
    def fit(cls, features: Float32Array, columns: IntArray | None = None) -> Encoding:
        """From rows (n, F), n ≥ 1, in which missing numbers are NaN; ``columns`` all unless given."""
        columns = np.arange(features.shape[1]) if columns is None else columns
        features = features[:, columns]
        known = ~np.isnan(features)
        centre, per_deviation = np.zeros((2, features.shape[1]), dtype=np.float32)
        for column in np.flatnonzero(known.any(axis=0)):
            values = features[known[:, column], column].astype(np.float64)
            core = np.clip(values, *np.quantile(values, _CORE))
            centre[column], deviation = core.mean(), core.std()
            if deviation > _CONSTANT * max(1.0, abs(float(centre[column]))):
                per_deviation[column] = 1.0 / deviation
        share = 1.0 - known.mean(axis=0)
        absent = np.flatnonzero((share > _LEAST_MISSING) & (share < 1.0 - _LEAST_MISSING))
        return cls(columns, centre, per_deviation, absent)

    def __call__(self, features: Float32Array) -> Float32Array:
        """(n, width) of rows (n, F)."""
        features = features[:, self.columns]
        missing = np.isnan(features)
        scaled = np.clip((features - self.centre) * self.per_deviation, -BOUND, BOUND)
        told = missing[:, self.absent].astype(np.float32)
        return np.concatenate([np.where(missing, np.float32(0.0), scaled), told], axis=1, dtype=np.float32)

    def nodes(self) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """The same from the graph's input to ``ENCODED``."""
        nodes = [
            node("Gather", [INPUT, "columns"], "looked_at", axis=1),
            node("IsNaN", ["looked_at"], "missing"),
            node("Where", ["missing", "centre", "looked_at"], "filled"),
            node("Sub", ["filled", "centre"], "centred_features"),
            node("Mul", ["centred_features", "per_deviation"], "deviations"),
            node("Clip", ["deviations", "least", "most"], "bounded"),
            node("Cast", ["missing"], "missing_count", to=onnx.TensorProto.FLOAT),
            node("Gather", ["missing_count", "absent"], "told", axis=1),
            node("Concat", ["bounded", "told"], ENCODED, axis=1),
        ]
        constants = [
            constant("columns", self.columns, np.int64),
            constant("centre", self.centre[None, :], np.float32),
            constant("per_deviation", self.per_deviation[None, :], np.float32),
            constant("least", -BOUND, np.float32),
            constant("most", BOUND, np.float32),
            constant("absent", self.absent, np.int64),
        ]
        return nodes, constants
