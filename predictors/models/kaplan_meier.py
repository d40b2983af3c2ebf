"""Kaplan-Meier as a model: the pooled curve, and one curve a prompt size, shrunk to the pooled one.

Both read nothing of a request but, the second, the size of its prompt. Every other family must beat the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endcast.errors import TrainingError
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import logit
from endcast.predictors.models.graph import INPUT, LOGITS, LogitGraph, base_alone, constant, node, pooled_base
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray, IntArray

#: Requests' worth of pooled hazard in each stratum; number of strata.
PRIOR_REQUESTS, STRATA = 50.0, 8
#: The column of prompt size; the exact one if there are both.
SIZE_COLUMNS = ("prompt_size.log_prompt_tokens", "rough_size.log_prompt_tokens")


@dataclass(frozen=True, eq=False)
class PooledCurve:
    """The grid's own pooled curve; ``width`` is F."""

    base_logit: FloatArray
    width: int
    card: Mapping[str, Any]

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        return np.tile(self.base_logit.astype(np.float32).astype(np.float64), (len(features), 1))

    def graph(self) -> LogitGraph:
        """A constant."""
        return base_alone(self.base_logit, self.width)


class KaplanMeier:
    """The pooled curve: nothing is left to choose."""

    name = "kaplan_meier"
    uses_features = False
    options = ()

    def fit(self, data: TrainingData) -> FittedModel:
        """The grid has it already."""
        return PooledCurve(data.grid.base_logit, data.width, {})

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """The same."""
        return self.fit(data)


@dataclass(frozen=True, eq=False)
class SizeStrata:
    """``bounds`` (S−1,) log sizes; ``table`` (S+1, K) log-odds, the last row for unknown sizes; ``column`` of the size."""

    bounds: Float32Array
    table: FloatArray
    column: int
    width: int
    card: Mapping[str, Any]

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        return self.table.astype(np.float32).astype(np.float64)[_stratum(features[:, self.column], self.bounds)]

    def graph(self) -> LogitGraph:
        """Count the bounds below the size, unless it is unknown; look the row up."""
        nodes = (
            node("Gather", [INPUT, "column"], "size", axis=1),
            node("IsNaN", ["size"], "unknown"),
            node("Greater", ["size", "bounds"], "above"),
            node("Cast", ["above"], "above_count", to=7),
            node("ReduceSum", ["above_count", "axis"], "stratum", keepdims=0),
            node("Squeeze", ["unknown", "axis"], "is_unknown"),
            node("Where", ["is_unknown", "pooled", "stratum"], "row"),
            node("Gather", ["table", "row"], LOGITS, axis=0),
        )
        constants = (
            constant("column", [self.column], np.int64),
            constant("bounds", self.bounds[None, :], np.float32),
            constant("axis", [1], np.int64),
            constant("pooled", len(self.table) - 1, np.int64),
            constant("table", self.table, np.float32),
            pooled_base(self.table[-1]),
        )
        return LogitGraph(nodes, constants, self.width, self.table.shape[1])


def _stratum(size: Float32Array, bounds: Float32Array) -> IntArray:
    above = (size[:, None] > bounds[None, :]).sum(axis=1)
    return np.where(np.isnan(size), len(bounds) + 1, above).astype(np.int64)


class KaplanMeierBySize:
    """One curve a quantile of prompt size, each hazard shrunk to the pooled one."""

    name = "kaplan_meier_by_size"
    uses_features = True
    reads_outputs = False
    options = ()

    def fit(self, data: TrainingData) -> FittedModel:
        """Nothing is chosen on the validation part: the strata are quantiles."""
        return self._fit(data, data.fit)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """The same with all of the training part."""
        return self._fit(data, data.everything)

    def _fit(self, data: TrainingData, index: IntArray) -> FittedModel:
        column = next((data.columns.index(name) for name in SIZE_COLUMNS if name in data.columns), None)
        if column is None:
            raise TrainingError(f"{self.name} needs the feature group prompt_size", hint="Name it in --features")
        sizes = data.features.values[:, column]
        told = sizes[index][~np.isnan(sizes[index])]
        shares = np.linspace(0, 1, STRATA + 1)[1:-1]
        bounds = np.unique(np.quantile(told, shares).astype(np.float32)) if told.size else told
        rows = data.rows(index)
        stratum = _stratum(sizes[rows.request], bounds)
        shape = (len(bounds) + 2, len(data.grid))
        events, at_risk = np.zeros(shape), np.zeros(shape)
        np.add.at(events, (stratum, rows.interval), rows.event)
        np.add.at(at_risk, (stratum, rows.interval), rows.weight)
        pooled = data.grid.base_hazard
        table = logit((events + PRIOR_REQUESTS * pooled) / (at_risk + PRIOR_REQUESTS))
        table[-1] = data.grid.base_logit
        return SizeStrata(bounds, table, column, data.width, {"strata": len(bounds) + 1})
