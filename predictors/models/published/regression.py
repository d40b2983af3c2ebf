"""Length regression: one number, the logarithm of the length, with one spread for all (Zheng et al., arXiv 2305.13144, and
most length predictors since).

The number is made into a curve by a logistic distribution of log length around it: S(t) = 1/(1 + (t/m)^(1/s)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid
from endcast.predictors.models.graph import LOGITS, LogitGraph, constant, node
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.predictors.models.published.booster import SCORES, Boosted, base_nodes, boost, ended
from endcast.survival import FloatArray

#: log of edge 0, far below that of any length.
_LOG_ZERO = -40.0
#: Spreads below this are none that a validation part can tell.
_LEAST_SPREAD = 0.02


@dataclass(frozen=True, eq=False)
class LogLength:
    """``spread`` s > 0 of the logistic distribution."""

    boosted: Boosted
    spread: float
    grid: IntervalGrid
    values: int
    width: int
    card: Mapping[str, Any]
    offset: int | None

    @property
    def _log_edges(self) -> FloatArray:
        edges = self.grid.edges.astype(np.float64)
        return np.concatenate([[_LOG_ZERO], np.log(edges[1:] + 0.5)])

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        middle = self.boosted(features)
        cumulative = np.logaddexp(0.0, (self._log_edges[None, :] - middle) / self.spread)  # −log S at each edge
        lost = np.clip(np.diff(cumulative, axis=1), *_bounds())
        log_odds: FloatArray = np.log(-np.expm1(-lost)) + lost
        return log_odds

    def graph(self) -> LogitGraph:
        """Softplus at the edges; differences of neighbours."""
        nodes, constants = self.boosted.nodes()
        more_nodes, more_constants = base_nodes(self.width, self.values, self.grid.base_logit, self.offset)
        k, (least, most) = len(self.grid), _bounds()
        nodes += [
            *more_nodes,
            node("Sub", ["log_edges", SCORES], "past_middle"),
            node("Mul", ["past_middle", "per_spread"], "deviations"),
            node("Softplus", ["deviations"], "cumulative"),
            node("Gather", ["cumulative", "starts"], "at_start", axis=1),
            node("Gather", ["cumulative", "ends"], "at_end", axis=1),
            node("Sub", ["at_end", "at_start"], "lost"),
            node("Clip", ["lost", "least", "most"], "lost_bounded"),
            node("Neg", ["lost_bounded"], "log_stays"),
            node("Exp", ["log_stays"], "stays"),
            node("Sub", ["one", "stays"], "leaves"),
            node("Log", ["leaves"], "log_leaves"),
            node("Add", ["log_leaves", "lost_bounded"], LOGITS),
        ]
        constants += [
            *more_constants,
            constant("log_edges", self._log_edges[None, :], np.float32),
            constant("per_spread", 1.0 / self.spread, np.float32),
            constant("starts", np.arange(k), np.int64),
            constant("ends", np.arange(1, k + 1), np.int64),
            constant("least", least, np.float32),
            constant("most", most, np.float32),
            constant("one", 1.0, np.float32),
        ]
        return LogitGraph(tuple(nodes), tuple(constants), self.width, k)


def _bounds() -> tuple[float, float]:
    """Of the cumulative hazard of an interval."""
    return float(-np.log1p(-Q_MIN)), float(-np.log1p(-Q_MAX))


class RegressionHazard:
    """Squared error of log length."""

    name = "regression"
    uses_features = True
    options = ("rounds",)

    def fit(self, data: TrainingData) -> FittedModel:
        """Boost until the validation part stops gaining; the spread is that of the validation part's errors."""
        boosted = boost(data, {"objective": "regression"}, np.log(data.lengths))
        own = ended(data, data.validation)
        errors = np.log(data.lengths[own]) - boosted(data.vectors(own))[:, 0]
        spread = max(float(np.std(errors)) * np.sqrt(3.0) / np.pi, _LEAST_SPREAD)
        return self._of(data, boosted, spread)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """As many rounds on everything; the same spread."""
        boosted = boost(data, {"objective": "regression"}, np.log(data.lengths), rounds=int(fitted.card["rounds"]))
        return self._of(data, boosted, float(fitted.card["spread"]))

    def _of(self, data: TrainingData, boosted: Boosted, spread: float) -> FittedModel:
        card = {"rounds": boosted.rounds, "spread": spread}
        values = data.features.values.shape[1]
        return LogLength(boosted, spread, data.grid, values, data.width, card, data.offset)
