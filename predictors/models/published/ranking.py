"""Ranking (Fu et al., arXiv 2408.15792): who will be longer than whom, and nothing more.

A ranker's score has no unit. It is made into a curve by what became of requests with such scores: one Kaplan-Meier curve a
quantile of scores, each shrunk to the pooled one, and between quantiles a mixture of the two neighbours' log-odds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid, logit
from endcast.predictors.models.graph import LOGITS, LogitGraph, constant, node
from endcast.predictors.models.kaplan_meier import PRIOR_REQUESTS
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.predictors.models.published.booster import SCORES, Boosted, base_nodes, boost
from endcast.survival import FloatArray, IntArray

#: Requests that are ranked among each other; grades of length that count; strata of scores.
GROUP, GRADES, STRATA = 64, 16, 16
_LEAST_GAP = 1e-4


@dataclass(frozen=True, eq=False)
class RankedStrata:
    """``middle`` (S,) scores, ascending; ``table`` (S, K) log-odds there."""

    boosted: Boosted
    middle: FloatArray
    table: FloatArray
    grid: IntervalGrid
    values: int
    width: int
    card: Mapping[str, Any]
    offset: int | None

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        gaps = np.diff(self.middle)
        passed = np.clip((self.boosted(features) - self.middle[:-1]) / gaps, 0.0, 1.0)
        log_odds: FloatArray = self.table[0] + passed @ np.diff(self.table, axis=0)
        return log_odds

    def graph(self) -> LogitGraph:
        """How much of each step between strata a score has passed, times what the step changes."""
        nodes, constants = self.boosted.nodes()
        more_nodes, more_constants = base_nodes(self.width, self.values, self.grid.base_logit, self.offset)
        nodes += [
            *more_nodes,
            node("Sub", [SCORES, "middle"], "beyond"),
            node("Mul", ["beyond", "per_gap"], "steps"),
            node("Clip", ["steps", "none", "all"], "passed"),
            node("Gemm", ["passed", "changes", "first"], LOGITS),
        ]
        constants += [
            *more_constants,
            constant("middle", self.middle[None, :-1], np.float32),
            constant("per_gap", 1.0 / np.diff(self.middle)[None, :], np.float32),
            constant("none", 0.0, np.float32),
            constant("all", 1.0, np.float32),
            constant("changes", np.diff(self.table, axis=0), np.float32),
            constant("first", self.table[0], np.float32),
        ]
        return LogitGraph(tuple(nodes), tuple(constants), self.width, len(self.grid))


class RankingHazard:
    """LightGBM's pairwise objective."""

    name = "ranking"
    uses_features = True
    options = ("rounds",)

    def fit(self, data: TrainingData) -> FittedModel:
        """Boost until the validation part stops gaining; strata of the validation part, which the trees did not see."""
        return self._fit(data, None, data.validation)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """As many rounds on everything, strata of everything."""
        return self._fit(data, int(fitted.card["rounds"]), np.sort(data.everything))

    def _fit(self, data: TrainingData, rounds: int | None, index: IntArray) -> FittedModel:
        objective = {
            "objective": "lambdarank",
            "label_gain": list(range(GRADES)),
            "lambdarank_truncation_level": GROUP,
            "metric": "ndcg",
            "eval_at": [GROUP],
        }
        boosted = boost(data, objective, _grades(data).astype(np.float64), rounds=rounds, group=GROUP)
        score = boosted(data.vectors(index))[:, 0]
        middle, stratum = _strata(score)
        rows = data.rows(index)
        own = stratum[np.searchsorted(index, rows.request)]
        events, at_risk = np.zeros((2, len(middle), len(data.grid)))
        np.add.at(events, (own, rows.interval), rows.event)
        np.add.at(at_risk, (own, rows.interval), rows.weight)
        pooled = data.grid.base_hazard
        table = logit((events + PRIOR_REQUESTS * pooled) / (at_risk + PRIOR_REQUESTS))
        card = {"rounds": boosted.rounds, "strata": len(middle)}
        values = data.features.values.shape[1]
        return RankedStrata(boosted, middle, table, data.grid, values, data.width, card, data.offset)


def _grades(data: TrainingData) -> IntArray:
    """(n,) 0 … GRADES − 1 by quantiles of the lengths that are learned from."""
    bounds = np.quantile(data.lengths[data.fit], np.linspace(0.0, 1.0, GRADES + 1)[1:-1])
    grades: IntArray = np.searchsorted(bounds, data.lengths, side="left").astype(np.int64)
    return grades


def _strata(score: FloatArray) -> tuple[FloatArray, IntArray]:
    """(S,) mean score of each stratum, S ≥ 2, and the stratum (n,) of each score."""
    bounds = np.unique(np.quantile(score, np.linspace(0.0, 1.0, STRATA + 1)[1:-1]))
    stratum = np.searchsorted(bounds, score, side="left")
    _, dense = np.unique(stratum, return_inverse=True)
    middle = np.bincount(dense, weights=score) / np.bincount(dense)
    if len(middle) == 1:
        middle = np.array([middle[0], middle[0] + 1.0])
    return np.maximum.accumulate(middle + _LEAST_GAP * np.arange(len(middle))), np.asarray(dense, dtype=np.int64)
