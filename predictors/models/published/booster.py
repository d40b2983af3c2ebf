"""Boosting on one row a request, which the published predictors share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import onnx

from endcast.errors import TrainingError
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.dense import looked_at
from endcast.predictors.models.graph import BASE, INPUT, constant, node, pooled_base
from endcast.predictors.models.harmless import offset_nodes
from endcast.predictors.models.protocol import TrainingData
from endcast.predictors.models.trees import ensemble_node
from endcast.survival import FloatArray, IntArray

PARAMETERS: Mapping[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 50,
    "lambda_l2": 5.0,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
#: Most rounds; those without gain after which boosting stops; growth of rounds with the data that refitting adds.
MOST_ROUNDS, PATIENCE, REFIT_GROWTH = 400, 30, 1.1
SCORES = "scores"


@dataclass(frozen=True, eq=False)
class Boosted:
    """Trees on ``columns`` of a feature vector (n, F) → scores (n, classes)."""

    booster: lightgbm.Booster
    columns: IntArray
    rounds: int

    def __call__(self, features: Float32Array) -> FloatArray:
        """(n, classes), float64."""
        raw = self.booster.predict(features[:, self.columns], raw_score=True, num_threads=1, num_iteration=self.rounds)
        scores: FloatArray = np.asarray(raw, dtype=np.float64).reshape(len(features), -1)
        return scores

    def nodes(self) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """From the graph's input to ``SCORES``."""
        return (
            [node("Gather", [INPUT, "columns"], "looked_at", axis=1), ensemble_node(self.booster, "looked_at", SCORES)],
            [constant("columns", self.columns, np.int64)],
        )


def ended(data: TrainingData, index: IntArray) -> IntArray:
    """Those of ``index`` that ended by themselves."""
    own = index[data.ended[index]]
    if len(own) == 0:
        raise TrainingError("no request of this part ended by itself", hint="Train on a longer log")
    return own


def boost(
    data: TrainingData,
    objective: Mapping[str, Any],
    target: FloatArray,
    *,
    rounds: int | None = None,
    group: int | None = None,
) -> Boosted:
    """Boost ``target`` (n of the data,) on the fit part until the validation part stops gaining, or on everything for so
    many ``rounds``; ``group`` requests are ranked among each other."""
    columns = looked_at(data)
    parameters = {**PARAMETERS, **objective, "num_threads": data.threads, "seed": data.seed}

    def dataset(index: IntArray, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
        own = np.random.default_rng(data.seed).permutation(ended(data, index)) if group else ended(data, index)
        sizes = None if group is None else [len(part) for part in np.array_split(own, len(own) // group + 1)]
        table = data.vectors(own)[:, columns]
        return lightgbm.Dataset(table, target[own], group=sizes, reference=reference, params={"verbosity": -1})

    if rounds is not None:
        train = dataset(np.sort(data.everything))
        return Boosted(lightgbm.train(parameters, train, rounds), columns, rounds)
    train = dataset(data.fit)
    most = max(int(data.options.get("rounds", MOST_ROUNDS)), 1)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    booster = lightgbm.train(parameters, train, most, valid_sets=[dataset(data.validation, train)], callbacks=[stop])
    chosen = int(booster.best_iteration or booster.current_iteration())
    return Boosted(booster, columns, chosen)


def base_nodes(data_width: int, values: int, base_logit: FloatArray, offset: int | None) -> tuple[list[Any], list[Any]]:
    """``BASE``, which calibration pulls towards: the pooled log-odds, or those that come with each row."""
    if offset is None:
        return [], [pooled_base(base_logit)]
    return offset_nodes(data_width, values, len(base_logit), offset)


__all__ = ["BASE", "SCORES", "Boosted", "base_nodes", "boost", "ended"]
