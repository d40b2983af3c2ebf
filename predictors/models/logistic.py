"""Discrete-time logistic hazard: a regression for each band of intervals, on hinges of the columns.

Each band is a stretch of neighbouring intervals with about as many ends as the others. Inside one, the log-odds of a
person-period row are linear in the request's columns, in hinges max(0, x − q) at their quartiles, so that effects may
bend, and in the interval's own columns, the log-odds at hand first. Singer and Willett 1993; Cox 1972.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from endcast.predictors.calibration import log_loss
from endcast.predictors.features.pipeline import split
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.dense import ENCODED, Encoding
from endcast.predictors.models.graph import BASE, LOGITS, LogitGraph, constant, node, pooled_base
from endcast.predictors.models.harmless import Uncorrected, offset_nodes, unless_harmful
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray, IntArray

#: Bands of intervals; quantiles of a column at which hinges bend; the strengths that are tried, 1/(2σ²) of a prior.
BANDS, QUANTILES, STRENGTHS = 6, (0.25, 0.5, 0.75), (3e-4, 3e-3, 3e-2)
#: Person-period rows of a band that are fitted at most, drawn at random; steps of the solver.
MOST_ROWS, MOST_STEPS = 150_000, 200
#: The log-odds at hand are scaled up by this, so that the prior does not pull their weight, which is near 1, to 0.
_BASE_SCALE = np.float32(5.0)


@dataclass(frozen=True, eq=False)
class Hinges:
    """The basis of a request's columns: ``encoding`` of all F, ``column`` (h,) and ``knot`` (h,) of max(0, x − q)."""

    encoding: Encoding
    values: int  #: f: columns of the request
    column: IntArray
    knot: Float32Array

    @classmethod
    def fit(cls, features: Float32Array, values: int) -> Hinges:
        """Knots at the quartiles of each of the first ``values`` columns, where they differ."""
        encoding = Encoding.fit(features)
        encoded = encoding(features)[:, :values]
        column, knot = list[int](), list[float]()
        for c in np.flatnonzero(encoding.per_deviation[:values]):
            inside = np.unique(np.quantile(encoded[:, c], QUANTILES))
            inside = inside[(inside > encoded[:, c].min()) & (inside < encoded[:, c].max())]
            column += [int(c)] * len(inside)
            knot += inside.tolist()
        return cls(encoding, values, np.array(column, dtype=np.int64), np.array(knot, dtype=np.float32))

    @property
    def own(self) -> IntArray:
        """Encoded columns of the request itself: its values and which are missing."""
        told = len(self.encoding.centre) + np.flatnonzero(self.encoding.absent < self.values)
        return np.concatenate([np.arange(self.values), told])

    def __call__(self, encoded: Float32Array) -> Float32Array:
        """(n, D) of encoded rows."""
        bent = np.maximum(encoded[:, self.column] - self.knot, np.float32(0.0))
        return np.concatenate([encoded[:, self.own], bent], axis=1)


class _Weights(NamedTuple):
    """``basis`` (D, K); ``own`` (K, c) of the interval's encoded columns; ``base`` (K,) of the log-odds at hand; ``bias``
    (K,)."""

    basis: Float32Array
    own: Float32Array
    base: Float32Array
    bias: Float32Array


@dataclass(frozen=True, eq=False)
class Logistic:
    """Fitted regressions, each spread over the intervals of its band."""

    hinges: Hinges
    weights: _Weights
    grid: IntervalGrid
    width: int
    card: Mapping[str, Any]
    offset: int | None = None

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        encoded = self.hinges.encoding(features)
        own = split(encoded[:, : self.width], self.hinges.values, len(self.grid)).intervals
        sums = self.hinges(encoded) @ self.weights.basis + (own * self.weights.own).sum(axis=2) + self.weights.bias
        logits: FloatArray = (sums + self.weights.base * self._base(features)).astype(np.float64)
        return logits

    def _base(self, features: Float32Array) -> Float32Array:
        if self.offset is None:
            return self.grid.base_logit[None, :].astype(np.float32)
        base: Float32Array = split(features, self.hinges.values, len(self.grid)).intervals[:, :, self.offset]
        return base

    def graph(self) -> LogitGraph:
        """One matrix product of the basis; the interval's own columns beside it."""
        nodes, constants = self.hinges.encoding.nodes()
        k, values = len(self.grid), self.hinges.values
        if self.offset is None:
            constants.append(pooled_base(self.grid.base_logit))
        else:
            own_nodes, own_constants = offset_nodes(self.width, values, k, self.offset)
            nodes += own_nodes
            constants += own_constants
        constants += [
            constant("hinge_columns", self.hinges.column, np.int64),
            constant("knots", self.hinges.knot[None, :], np.float32),
            constant("own_columns", self.hinges.own, np.int64),
            constant("weight", self.weights.basis, np.float32),
            constant("bias", self.weights.bias, np.float32),
            constant("base_weight", self.weights.base[None, :], np.float32),
            constant("interval_columns", np.arange(values, self.width), np.int64),
            constant("interval_shape", [-1, k, self.weights.own.shape[1]], np.int64),
            constant("own_weight", self.weights.own[None], np.float32),
            constant("last", [2], np.int64),
        ]
        nodes += [
            node("Gather", [ENCODED, "hinge_columns"], "bending", axis=1),
            node("Sub", ["bending", "knots"], "past_knots"),
            node("Relu", ["past_knots"], "hinges"),
            node("Gather", [ENCODED, "own_columns"], "plain", axis=1),
            node("Concat", ["plain", "hinges"], "basis", axis=1),
            node("Gemm", ["basis", "weight", "bias"], "linear"),
            node("Gather", [ENCODED, "interval_columns"], "flat_intervals", axis=1),
            node("Reshape", ["flat_intervals", "interval_shape"], "intervals"),
            node("Mul", ["intervals", "own_weight"], "weighted_intervals"),
            node("ReduceSum", ["weighted_intervals", "last"], "own", keepdims=0),
            node("Mul", [BASE, "base_weight"], "weighted_base"),
            node("Add", ["linear", "own"], "without_base"),
            node("Add", ["without_base", "weighted_base"], LOGITS),
        ]
        return LogitGraph(tuple(nodes), tuple(constants), self.width, k)


class LogisticHazard:
    """scikit-learn's logistic regressions; the strength is chosen on the validation part."""

    name = "logistic"
    uses_features = True
    options = ("bands", "strength")

    def fit(self, data: TrainingData) -> FittedModel:
        """Each strength on the fit part; the one that the validation part likes best, unless it is harmful."""
        asked = data.options.get("strength")
        found = {s: _fit(data, data.fit, s) for s in (STRENGTHS if asked is None else (float(asked),))}
        losses = {strength: _loss(data, model) for strength, model in found.items()}
        best = min(losses, key=losses.__getitem__)
        data.tell(f"strength {best:g} of {', '.join(f'{s:g}' for s in found)}")
        return unless_harmful(data, found[best])

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """The same strength on everything."""
        if isinstance(fitted, Uncorrected):
            return Uncorrected.of(data, fitted.card)
        return _fit(data, np.sort(data.everything), float(fitted.card["strength"]))


def _loss(data: TrainingData, model: FittedModel) -> float:
    rows = data.rows(data.validation)
    position = np.searchsorted(data.validation, rows.request)
    logits = model.logits(data.vectors(data.validation))[position, rows.interval]
    return float(log_loss(logits, rows.event, rows.weight).sum())


def _bands(interval: IntArray, event: Float32Array, intervals: int, bands: int) -> IntArray:
    """(K,), the band of each interval: about as many ends in each."""
    ends = np.bincount(interval, weights=event, minlength=intervals)
    before = (np.cumsum(ends) - ends / 2) / max(float(ends.sum()), 1.0)
    band: IntArray = np.minimum((before * bands).astype(np.int64), bands - 1)
    _, dense = np.unique(band, return_inverse=True)
    return np.asarray(dense, dtype=np.int64)


def _fit(data: TrainingData, index: IntArray, strength: float) -> Logistic:
    values, k = data.features.values.shape[1], len(data.grid)
    rows, vectors = data.rows(index), data.vectors(index)
    hinges = Hinges.fit(vectors, values)
    encoded = hinges.encoding(vectors)
    own = split(encoded[:, : data.width], values, k).intervals
    basis, base = hinges(encoded), np.broadcast_to(data.base_of(vectors), (len(index), k))
    position = np.searchsorted(index, rows.request)
    band = _bands(rows.interval, rows.event, k, max(int(data.options.get("bands", BANDS)), 1))
    weight, own_weight = np.zeros((basis.shape[1], k)), np.zeros((k, own.shape[2]))
    base_weight, bias, converged = np.ones(k), np.zeros(k), True
    rng = np.random.default_rng(data.seed)
    for b in range(int(band.max()) + 1):
        here = np.flatnonzero(band[rows.interval] == b)
        if len(here) > MOST_ROWS:
            here = np.sort(rng.permutation(here)[:MOST_ROWS])
        if len(np.unique(rows.event[here])) < 2:
            continue
        at, number = position[here], rows.interval[here]
        table = np.concatenate([basis[at], own[at, number], base[at, number, None].astype(np.float32)], axis=1)
        model = LogisticRegression(C=strength, max_iter=MOST_STEPS, tol=1e-4)
        table[:, -1] *= _BASE_SCALE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the validation part judges what was reached
            model.fit(table, rows.event[here], sample_weight=rows.weight[here])
        converged &= int(model.n_iter_[0]) < MOST_STEPS
        coefficients, columns = model.coef_[0], np.flatnonzero(band == b)
        weight[:, columns] = coefficients[: basis.shape[1], None]
        own_weight[columns] = coefficients[basis.shape[1] : -1]
        base_weight[columns], bias[columns] = coefficients[-1] * _BASE_SCALE, model.intercept_[0]
    card = {"strength": strength, "bands": int(band.max()) + 1, "basis": basis.shape[1], "converged": converged}
    weights = _Weights(*(part.astype(np.float32) for part in (weight, own_weight, base_weight, bias)))
    return Logistic(hinges, weights, data.grid, data.width, card, data.offset)
