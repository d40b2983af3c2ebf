"""Boosted hazards: LightGBM trees correct the pooled curve, interval by interval.

Each person-period row is one interval that a request reached. Trees see the request's columns, the interval's number and
its interval columns, and start from the log-odds that they correct (the pooled curve's, or those that an interval column
brings), so that no tree at all *is* that curve: it is what is used where trees do not help on the validation part beyond
doubt (``harmless``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from endcast.errors import TrainingError
from endcast.predictors.features.pipeline import split
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.graph import BASE, INPUT, LOGITS, LogitGraph, base_alone, constant, node, pooled_base
from endcast.predictors.models.harmless import DOUBT, gain_and_error
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.predictors.models.trees import ensemble_node
from endcast.survival import FloatArray, IntArray

PARAMETERS: Mapping[str, Any] = {
    "objective": "binary",
    "learning_rate": 0.04,
    "num_leaves": 31,
    "min_data_in_leaf": 100,
    "lambda_l2": 5.0,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "max_bin": 255,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
#: What differs where trees correct curves row by row (at landmarks: many rows of few prompts, many columns of text).
CORRECTING: Mapping[str, Any] = {
    "learning_rate": 0.08,
    "num_leaves": 63,
    "min_data_in_leaf": 400,
    "feature_fraction": 0.3,
}
TUNABLE = (
    "rounds",
    "learning_rate",
    "num_leaves",
    "min_data_in_leaf",
    "lambda_l2",
    "feature_fraction",
    "bagging_fraction",
    "bagging_freq",
    "max_bin",
)
#: Most trees; rounds without gain after which fitting stops.
MOST_ROUNDS, PATIENCE = 600, 40
#: Trees grow with the data that refitting adds.
REFIT_GROWTH = 1.1


@dataclass(frozen=True, eq=False)
class BoostedHazard:
    """Trees on top of the log-odds that they correct; ``booster`` is ``None`` where no tree helps."""

    booster: lightgbm.Booster | None
    grid: IntervalGrid
    values: int  #: f
    width: int  #: F
    card: Mapping[str, Any]
    offset: int | None = None  #: the interval column that brings those log-odds; ``None``: the pooled ones

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        columns = split(features, self.values, len(self.grid))
        base = (
            np.tile(self.grid.base_logit, (len(features), 1))
            if self.offset is None
            else columns.intervals[:, :, self.offset].astype(np.float64)
        )
        if self.booster is None:
            return base
        request = np.repeat(np.arange(len(features)), len(self.grid))
        interval = np.tile(np.arange(len(self.grid)), len(features))
        raw = self.booster.predict(_matrix(columns, request, interval), raw_score=True, num_threads=1)
        logits: FloatArray = base + np.asarray(raw, dtype=np.float64).reshape(base.shape)
        return logits

    def graph(self) -> LogitGraph:
        """Expand each row to its K intervals, evaluate all trees in one node, add the log-odds that they correct."""
        k = len(self.grid)
        if self.booster is None and self.offset is None:
            return base_alone(self.grid.base_logit, self.width)
        rest = (self.width - self.values) // k
        constants = [
            constant(name, value, np.int64)
            for name, value in {
                "zero": [0],
                "one": [1],
                "f": [self.values],
                "end": [self.width],
                "interval_shape": [-1, k, rest],
                "values_shape": [1, k, self.values],
                "k_by_one": [k, 1],
                "table_shape": [-1, self.values + 1 + rest],
                "output_shape": [-1, k],
            }.items()
        ]
        nodes = [
            node("Slice", [INPUT, "f", "end", "one"], "flat_intervals"),
            node("Reshape", ["flat_intervals", "interval_shape"], "intervals"),
        ]
        if self.offset is None:
            constants.append(pooled_base(self.grid.base_logit))
        else:
            constants.append(constant("offset", self.offset, np.int64))
            nodes.append(node("Gather", ["intervals", "offset"], BASE, axis=2))
        if self.booster is None:
            return LogitGraph((*nodes, node("Identity", [BASE], LOGITS)), tuple(constants), self.width, k)
        constants.append(constant("numbers", np.arange(k).reshape(1, k, 1), np.float32))
        nodes += [
            node("Slice", [INPUT, "zero", "f", "one"], "values"),
            node("Unsqueeze", ["values", "one"], "values_3d"),
            node("Expand", ["values_3d", "values_shape"], "values_each"),
            node("Shape", [INPUT], "rows", start=0, end=1),
            node("Concat", ["rows", "k_by_one"], "number_shape", axis=0),
            node("Expand", ["numbers", "number_shape"], "number_each"),
            node("Concat", ["values_each", "number_each", "intervals"], "table", axis=2),
            node("Reshape", ["table", "table_shape"], "period_rows"),
            ensemble_node(self.booster, "period_rows", "boosted"),
            node("Reshape", ["boosted", "output_shape"], "boosted_each"),
            node("Add", ["boosted_each", BASE], LOGITS),
        ]
        return LogitGraph(tuple(nodes), tuple(constants), self.width, k)


class LightGbmHazard:
    """The default family."""

    name = "lightgbm"
    uses_features = True
    options = TUNABLE

    def fit(self, data: TrainingData) -> FittedModel:
        """Boost on the fit part until the validation part stops gaining; no tree if the gain is doubtful."""
        train = _dataset(data, data.fit)
        held_out = _dataset(data, data.validation, train)
        most = max(int(data.options.get("rounds", MOST_ROUNDS)), 1)
        booster = _boost(
            _parameters(data),
            train,
            most,
            valid_sets=[held_out],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), _telling(data, most)],
        )
        rounds = int(booster.best_iteration or booster.current_iteration())
        gain, error = _gain(data, booster, rounds)
        harmless = gain > DOUBT * error
        card = {
            "rounds": rounds if harmless else 0,
            "validation_gain_nats_a_request": gain,
            "validation_gain_standard_error": error,
        }
        if not harmless:
            data.tell("trees do not help beyond doubt on the validation part: none is used")
        return _fitted(data, booster if harmless else None, card)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """Boost on everything for as many rounds as were chosen, and a little more."""
        rounds = round(fitted.card["rounds"] * REFIT_GROWTH)
        if rounds == 0:
            return _fitted(data, None, fitted.card)
        train = _dataset(data, data.everything)
        booster = _boost(_parameters(data), train, rounds, callbacks=[_telling(data, rounds)])
        return _fitted(data, booster, {**fitted.card, "rounds": rounds, "importance": _importance(data, booster)})


def _boost(parameters: dict[str, Any], train: lightgbm.Dataset, rounds: int, **more: Any) -> lightgbm.Booster:
    try:
        return lightgbm.train(parameters, train, rounds, **more)
    except lightgbm.basic.LightGBMError as error:
        raise TrainingError(
            f"LightGBM refuses to train: {str(error).splitlines()[0]:.200}", hint="Check its options"
        ) from None


def _fitted(data: TrainingData, booster: lightgbm.Booster | None, card: Mapping[str, Any]) -> BoostedHazard:
    return BoostedHazard(booster, data.grid, data.features.values.shape[1], data.width, card, data.offset)


def _parameters(data: TrainingData) -> dict[str, Any]:
    own = {name: value for name, value in data.options.items() if name != "rounds"}
    correcting = {} if data.offset is None else CORRECTING
    return {**PARAMETERS, **correcting, **own, "num_threads": data.threads, "seed": data.seed}


def _matrix(columns: Columns, request: IntArray, interval: IntArray) -> Float32Array:
    """(r, f + 1 + c): a row for each request and interval."""
    number = interval.astype(np.float32)[:, None]
    return np.concatenate([columns.values[request], number, columns.intervals[request, interval]], axis=1)


def _dataset(data: TrainingData, index: IntArray, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
    rows = data.rows(index)
    return lightgbm.Dataset(
        _matrix(data.features, rows.request, rows.interval),
        rows.event,
        weight=rows.weight,
        init_score=data.base_logits(rows.request, rows.interval),
        reference=reference,
        feature_name=[*data.columns, "interval", *(f"{name}.k" for name in data.interval_columns)],
        params={"max_bin": 255, "verbosity": -1},
    )


def _gain(data: TrainingData, booster: lightgbm.Booster, rounds: int) -> tuple[float, float]:
    """Gain in log likelihood over the curve that is corrected, in nats a validation row, and its standard error by block."""
    rows = data.rows(data.validation)
    base = data.base_logits(rows.request, rows.interval)
    matrix = _matrix(data.features, rows.request, rows.interval)
    trees = np.asarray(booster.predict(matrix, raw_score=True, num_iteration=rounds, num_threads=data.threads))
    return gain_and_error(data, rows, base + trees)


def _importance(data: TrainingData, booster: lightgbm.Booster) -> dict[str, float]:
    """Share of the total gain by feature group, largest first."""
    gain = booster.feature_importance("gain")
    shares: dict[str, float] = {}
    for name, value in zip(booster.feature_name(), gain, strict=True):
        group = name.split(".")[0]
        shares[group] = shares.get(group, 0.0) + float(value) / float(max(gain.sum(), 1e-12))
    return {name: round(share, 4) for name, share in sorted(shares.items(), key=lambda item: -item[1])}


def _telling(data: TrainingData, most: int) -> Any:
    def callback(env: Any) -> None:
        if (env.iteration + 1) % 25 == 0:
            data.tell(f"boosting: {env.iteration + 1} of at most {most} rounds")

    return callback
