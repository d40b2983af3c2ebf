"""Do no harm: a model is used only where it beats, beyond doubt, the log-odds that it corrects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from endcast.datasets.person_period import PersonPeriods
from endcast.predictors.calibration import log_loss
from endcast.predictors.features.pipeline import split
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.graph import BASE, INPUT, LOGITS, LogitGraph, base_alone, constant, node
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import FloatArray

#: Standard errors of gain below which a model is not used.
DOUBT = 2.0


@dataclass(frozen=True, eq=False)
class Uncorrected:
    """The log-odds to be corrected, as they are."""

    grid: IntervalGrid
    values: int  #: f
    width: int  #: F
    offset: int | None
    card: Mapping[str, Any]

    @classmethod
    def of(cls, data: TrainingData, card: Mapping[str, Any]) -> Uncorrected:
        """What ``data`` is to correct."""
        return cls(data.grid, data.features.values.shape[1], data.width, data.offset, card)

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        if self.offset is None:
            return np.tile(self.grid.base_logit, (len(features), 1))
        return split(features, self.values, len(self.grid)).intervals[:, :, self.offset].astype(np.float64)

    def graph(self) -> LogitGraph:
        """A constant, or the columns that bring them."""
        if self.offset is None:
            return base_alone(self.grid.base_logit, self.width)
        nodes, constants = offset_nodes(self.width, self.values, len(self.grid), self.offset)
        return LogitGraph((*nodes, node("Identity", [BASE], LOGITS)), tuple(constants), self.width, len(self.grid))


def offset_nodes(width: int, values: int, intervals: int, offset: int) -> tuple[list[Any], list[Any]]:
    """Nodes and constants that read ``BASE`` (n, K) out of the interval columns of the graph's input."""
    each = (width - values) // intervals
    columns = values + offset + each * np.arange(intervals)
    return [node("Gather", [INPUT, "offset_columns"], BASE, axis=1)], [constant("offset_columns", columns, np.int64)]


def gain_over_base(data: TrainingData, logits: FloatArray) -> tuple[float, float]:
    """Gain in log likelihood of ``logits`` (validation rows, K) over what they correct, in nats a validation row, and its
    standard error by block; the error is infinite where there is one block."""
    rows = data.rows(data.validation)
    position = np.searchsorted(data.validation, rows.request)
    return gain_and_error(data, rows, logits[position, rows.interval])


def gain_and_error(data: TrainingData, rows: PersonPeriods, logits: FloatArray) -> tuple[float, float]:
    """The same from the log-odds (r,) of each person-period row."""
    base = data.base_logits(rows.request, rows.interval)
    gain = log_loss(base, rows.event, rows.weight) - log_loss(logits, rows.event, rows.weight)
    _, block = np.unique(data.block[rows.request], return_inverse=True)
    sums = np.bincount(block, weights=gain)
    n = len(data.validation)
    error = float(np.std(sums) * np.sqrt(len(sums)) / n) if len(sums) > 1 else float("inf")
    return float(gain.sum() / n), error


def unless_harmful(data: TrainingData, model: FittedModel) -> FittedModel:
    """The model, or what it corrects where its gain on the validation part is in doubt; the card says how much it was."""
    gain, error = gain_over_base(data, model.logits(data.vectors(data.validation)))
    if gain > DOUBT * error:
        return model
    data.tell("the model does not help beyond doubt on the validation part: it is not used")
    card = {**model.card, "validation_gain_nats_a_request": gain, "validation_gain_standard_error": error}
    return Uncorrected.of(data, {**card, "used": False})
