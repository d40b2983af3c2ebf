"""What a model family is: features of requests in, one hazard an interval out, and a graph that does the same.

``fit`` chooses on its own validation part; ``refit`` then uses all of the training part with what was chosen. A fitted
model answers natively (``logits``) and as an ONNX graph (``graph``); training checks that both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from endcast.datasets.person_period import PersonPeriods, person_periods
from endcast.errors import TrainingError
from endcast.predictors.features.pipeline import join, split
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.survival import FloatArray, IntArray

if TYPE_CHECKING:
    from endcast.predictors.models.encoder.source import EncoderSource
    from endcast.predictors.models.graph import LogitGraph


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Requests to learn from: ``features`` of n rows, ``lengths`` (n,) ≥ 1, ``ended`` (n,) event or censored.

    ``fit`` and ``validation`` are disjoint indices of rows, validation the later part; ``block`` (n,) numbers the
    clusters (stretches of time, prompts) within which rows are not independent. ``offset`` names the interval column
    that holds the log-odds which a model corrects, row by row; without one it corrects the grid's pooled curve. Networks
    train on ``device`` and go on from what lies in the folder ``checkpoint``; those that read texts begin with ``encoder``.
    """

    grid: IntervalGrid
    columns: tuple[str, ...]
    interval_columns: tuple[str, ...]
    features: Columns
    lengths: IntArray
    ended: npt.NDArray[np.bool_]
    fit: IntArray
    validation: IntArray
    block: IntArray
    seed: int = 0
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda text: None
    offset: int | None = None
    device: str = "auto"
    checkpoint: Path | None = None
    encoder: EncoderSource | None = None

    @property
    def width(self) -> int:
        """F, of a feature vector."""
        return int(self.features.values.shape[1] + len(self.grid) * self.features.intervals.shape[2])

    def base_logits(self, request: IntArray, interval: IntArray) -> FloatArray:
        """(r,), the log-odds that a model corrects, for each pair of a row and an interval."""
        base: FloatArray = (
            self.grid.base_logit[interval]
            if self.offset is None
            else self.features.intervals[request, interval, self.offset].astype(np.float64)
        )
        return base

    def base_of(self, features: Float32Array) -> FloatArray:
        """(n, K) or (1, K), the same from feature vectors (n, F)."""
        if self.offset is None:
            return self.grid.base_logit[None, :]
        values = self.features.values.shape[1]
        return split(features, values, len(self.grid)).intervals[:, :, self.offset].astype(np.float64)

    def rows(self, index: IntArray) -> PersonPeriods:
        """Person-period rows of these requests; ``request`` indexes all n."""
        rows = person_periods(self.lengths[index], self.ended[index], self.grid.edges)
        return PersonPeriods(index[rows.request], rows.interval, rows.event, rows.weight)

    def vectors(self, index: IntArray) -> Float32Array:
        """(len(index), F), feature vectors of these requests."""
        return join(Columns(self.features.values[index], self.features.intervals[index]))

    @property
    def everything(self) -> IntArray:
        """All rows that may be learned from."""
        return np.concatenate([self.fit, self.validation])


def check_options(family: ModelFamily | type[ModelFamily], options: Mapping[str, Any]) -> None:
    """``TrainingError`` unless all ``options`` are known to the family and finite numbers, ≥ 0."""
    name, known = family.name, family.options
    unknown = sorted(set(options) - set(known))
    if unknown:
        hint = f"It has {', '.join(known)}" if known else "It has none"
        raise TrainingError(f"{name} has no option {', '.join(unknown)}", hint=hint)
    for option, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise TrainingError(f"{name}'s option {option} must be a number ≥ 0, not {value!r:.40}")


def own_groups(family: ModelFamily) -> tuple[str, ...]:
    """Those of a family; most have none."""
    return tuple(getattr(family, "own_groups", ()))


def reads_outputs(family: ModelFamily) -> bool:
    """Whether it can make anything of the text so far; most that use features can."""
    return family.uses_features and bool(getattr(family, "reads_outputs", True))


class FittedModel(Protocol):
    """A fitted hazard model."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What was chosen and why, for the manifest."""

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K) log-odds of the hazards, from features (n, F), computed natively."""

    def graph(self) -> LogitGraph:
        """The same as ONNX nodes."""


class ModelFamily(Protocol):
    """One family; one file and one registry line add one. Made without arguments.

    A family may have ``own_groups``: names of feature groups that only it can make anything of; and ``reads_outputs``
    False, if no model of it can be made that reads the text so far.
    """

    name: str
    uses_features: bool  #: whether feature groups are computed for it
    options: tuple[str, ...]  #: names of the numbers ≥ 0 that may be set

    def fit(self, data: TrainingData) -> FittedModel:
        """Learn from ``data.fit``, choose on ``data.validation``."""

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """Learn from ``data.everything`` with what ``fitted`` chose."""
