"""Length classes (S3, arXiv 2306.06000; Qiu et al., arXiv 2404.08509): which class of lengths a request will fall into.

Classes are equally frequent stretches of lengths. A classifier gives the chance of each; inside a class lengths are
spread as in training. Trained at landmarks, it forecasts classes of what remains, which is TRAIL's idea (Shahout et al.,
arXiv 2410.01035) on what a router can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid, logit
from endcast.predictors.models.graph import LOGITS, LogitGraph, constant, node
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.predictors.models.published.booster import SCORES, Boosted, base_nodes, boost, ended
from endcast.survival import FloatArray, IntArray

CLASSES = 10
#: Share of a class's weight that is spread as all lengths are: no length is impossible.
_SPREAD = 1e-3


@dataclass(frozen=True, eq=False)
class LengthClasses:
    """``survival`` (C, K+1): P(o > edge | class)."""

    boosted: Boosted
    survival: FloatArray
    grid: IntervalGrid
    values: int
    width: int
    card: Mapping[str, Any]
    offset: int | None

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        scores = self.boosted(features)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        reached = (chances / chances.sum(axis=1, keepdims=True)) @ self.survival
        return logit(1.0 - reached[:, 1:] / reached[:, :-1])

    def graph(self) -> LogitGraph:
        """Softmax, one matrix product, ratios of neighbours."""
        nodes, constants = self.boosted.nodes()
        more_nodes, more_constants = base_nodes(self.width, self.values, self.grid.base_logit, self.offset)
        k = len(self.grid)
        nodes += [
            *more_nodes,
            node("Softmax", [SCORES], "chances", axis=1),
            node("MatMul", ["chances", "survival"], "reached"),
            node("Gather", ["reached", "starts"], "at_start", axis=1),
            node("Gather", ["reached", "ends"], "at_end", axis=1),
            node("Div", ["at_end", "at_start"], "stays"),
            node("Clip", ["stays", "least", "most"], "stays_bounded"),
            node("Log", ["stays_bounded"], "log_stays"),
            node("Sub", ["one", "stays_bounded"], "leaves"),
            node("Log", ["leaves"], "log_leaves"),
            node("Sub", ["log_leaves", "log_stays"], LOGITS),
        ]
        constants += [
            *more_constants,
            constant("survival", self.survival, np.float32),
            constant("starts", np.arange(k), np.int64),
            constant("ends", np.arange(1, k + 1), np.int64),
            constant("least", 1.0 - Q_MAX, np.float32),
            constant("most", 1.0 - Q_MIN, np.float32),
            constant("one", 1.0, np.float32),
        ]
        return LogitGraph(tuple(nodes), tuple(constants), self.width, k)


class LengthClassHazard:
    """A classifier of lengths."""

    name = "length_class"
    uses_features = True
    options = ("classes", "rounds")

    def fit(self, data: TrainingData) -> FittedModel:
        """Boost until the validation part stops gaining."""
        return self._fit(data, None)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """As many rounds on everything."""
        return self._fit(data, int(fitted.card["rounds"]))

    def _fit(self, data: TrainingData, rounds: int | None) -> FittedModel:
        index = ended(data, data.fit if rounds is None else np.sort(data.everything))
        bounds = _bounds(data, index)
        label = np.searchsorted(bounds, data.lengths, side="left")
        classes = len(bounds) + 1
        objective = {"objective": "multiclass", "num_class": classes} if classes > 1 else {"objective": "regression"}
        boosted = boost(data, objective, label.astype(np.float64), rounds=rounds)
        lengths = data.lengths[index]
        pooled = _survival(lengths, data.grid)
        table = np.stack([_survival(lengths[label[index] == c], data.grid) for c in range(classes)])
        survival = (1.0 - _SPREAD) * table + _SPREAD * pooled
        card = {"rounds": boosted.rounds, "classes": classes}
        values = data.features.values.shape[1]
        return LengthClasses(boosted, survival, data.grid, values, data.width, card, data.offset)


def _bounds(data: TrainingData, index: IntArray) -> IntArray:
    """(C−1,) longest length of each class but the last."""
    classes = max(int(data.options.get("classes", CLASSES)), 2)
    shares = np.linspace(0.0, 1.0, classes + 1)[1:-1]
    bounds = np.unique(np.quantile(data.lengths[index], shares).astype(np.int64))
    below: IntArray = bounds[bounds < data.lengths[index].max()]
    return below


def _survival(lengths: IntArray, grid: IntervalGrid) -> FloatArray:
    """(K+1,) P(o > edge), with half a request that never ends."""
    beyond = (lengths[:, None] > grid.edges[None, :]).sum(axis=0)
    reached: FloatArray = (beyond + 0.5) / (len(lengths) + 0.5)
    return reached
