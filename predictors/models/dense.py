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
from endcast.survival import IntArray

#: Standard deviations beyond which a number counts no further.
BOUND = 4.0
#: Quantiles between which a column's mean and deviation are taken, so that a few stray numbers do not set them.
_CORE = (0.005, 0.995)
#: Deviations (of the core) below which a column is constant: it is not used.
_CONSTANT = 1e-6
#: Shares of rows with a missing value outside which the column of its absence says nothing.
_LEAST_MISSING = 1e-3
ENCODED = "encoded"


@dataclass(frozen=True, eq=False)
class Encoding:
    """``centre``, ``per_deviation`` (F,), 0 where a column is not used; ``absent`` (m,) columns whose absence is told.

    Encoded rows have ``width`` = F + m columns.
    """

    centre: Float32Array
    per_deviation: Float32Array
    absent: IntArray

    @property
    def width(self) -> int:
        """Columns of an encoded row."""
        return len(self.centre) + len(self.absent)

    @classmethod
    def fit(cls, features: Float32Array) -> Encoding:
        """From rows (n, F), n ≥ 1, in which missing numbers are NaN."""
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
        return cls(centre, per_deviation, absent)

    def __call__(self, features: Float32Array) -> Float32Array:
        """(n, width) of rows (n, F)."""
        missing = np.isnan(features)
        scaled = np.clip((features - self.centre) * self.per_deviation, -BOUND, BOUND)
        told = missing[:, self.absent].astype(np.float32)
        return np.concatenate([np.where(missing, np.float32(0.0), scaled), told], axis=1, dtype=np.float32)

    def nodes(self) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """The same from the graph's input to ``ENCODED``."""
        nodes = [
            node("IsNaN", [INPUT], "missing"),
            node("Where", ["missing", "centre", INPUT], "filled"),
            node("Sub", ["filled", "centre"], "centred_features"),
            node("Mul", ["centred_features", "per_deviation"], "deviations"),
            node("Clip", ["deviations", "least", "most"], "bounded"),
            node("Cast", ["missing"], "missing_count", to=onnx.TensorProto.FLOAT),
            node("Gather", ["missing_count", "absent"], "told", axis=1),
            node("Concat", ["bounded", "told"], ENCODED, axis=1),
        ]
        constants = [
            constant("centre", self.centre[None, :], np.float32),
            constant("per_deviation", self.per_deviation[None, :], np.float32),
            constant("least", -BOUND, np.float32),
            constant("most", BOUND, np.float32),
            constant("absent", self.absent, np.int64),
        ]
        return nodes, constants
