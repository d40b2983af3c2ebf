"""``--model auto``: the family that the validation part likes best among those that are quick enough."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from endcast.errors import TrainingError
from endcast.predictors.hazard_graph import Hazards, evaluator
from endcast.predictors.models import MODELS
from endcast.predictors.models.graph import finish
from endcast.predictors.models.protocol import FittedModel, ModelFamily, TrainingData
from endcast.training.calibrate import calibrate

AUTO = "auto"
#: Families that are tried, the cheapest to use first: of equals the first is taken.
CANDIDATES: tuple[str, ...] = ("kaplan_meier", "logistic", "distilled", "lightgbm")
#: Those that train with torch.
_NETWORKS = frozenset({"distilled", "neural"})
#: Validation loss, in nats a request, that a cheaper family may be worse by.
TOLERANCE = 0.002
#: Landmarks a batch, and batches, over which the time of one is taken (the median batch).
_BATCH, _TIMED = 64, 25


@dataclass(frozen=True, eq=False)
class Tried:
    """One family on the data at hand: ``loss`` nats a validation request, ``cost_us`` microseconds a landmark."""

    family: ModelFamily
    fitted: FittedModel
    slope: float
    validation: Mapping[str, Any]
    cost_us: float

    @property
    def loss(self) -> float:
        """Of the validation part, uncalibrated: a slope is kept only where it helps."""
        return float(self.validation["log_loss_a_request"])


@dataclass(frozen=True, eq=False)
class Choice:
    """The family taken, and ``why`` in one sentence; ``figures`` for the manifest, without times: two runs give one bundle."""

    taken: Tried
    why: str
    figures: dict[str, Any]


def candidates() -> tuple[str, ...]:
    """Those of ``CANDIDATES`` that can be trained here."""
    torch = importlib.util.find_spec("torch") is not None
    return tuple(name for name in CANDIDATES if torch or name not in _NETWORKS)


def choose(data: TrainingData, names: Sequence[str], budget_us: float | None) -> Choice:
    """Fit each on the fit part; take the best on the validation part within ``budget_us`` microseconds a landmark, the
    first of those that are as good. ``TrainingError`` if none is quick enough."""
    tried = [_try(data, MODELS.get(name)()) for name in names]
    quick = [one for one in tried if budget_us is None or one.cost_us <= budget_us]
    if not quick:
        least = min(one.cost_us for one in tried)
        raise TrainingError(
            f"no model takes less than {budget_us:g} microseconds a landmark here; the quickest takes {least:.1f}",
            hint="Give a larger --budget",
        )
    best = min(one.loss for one in quick)
    taken = next(one for one in quick if one.loss <= best + TOLERANCE)
    budget = "without a budget" if budget_us is None else f"within {budget_us:g} µs a landmark"
    told = ", ".join(f"{one.family.name} {one.loss:.4f} nats, {one.cost_us:.1f} µs" for one in tried)
    why = f"{taken.family.name}: the cheapest within {TOLERANCE:g} nats of the best on the validation part {budget} ({told})"
    losses = {one.family.name: one.loss for one in tried}
    return Choice(taken, why, {"budget_us": budget_us, "log_loss_a_request": losses})


def _try(data: TrainingData, family: ModelFamily) -> Tried:
    fitted = family.fit(replace(data, tell=_quiet, options={}))
    slope, validation = calibrate(data, fitted)
    model = finish(fitted.graph(), slope)
    return Tried(family, fitted, slope, validation, cost_us(evaluator(model), data))


def cost_us(graph: Hazards, data: TrainingData) -> float:
    """Microseconds a landmark, one thread, in batches of 64 of the data."""
    rows = np.resize(np.arange(len(data.lengths)), _BATCH)
    vectors = data.vectors(rows)
    graph.hazards(vectors)
    return float(np.median([_seconds(lambda: graph.hazards(vectors)) for _ in range(_TIMED)])) / _BATCH * 1e6


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _quiet(_text: str) -> None:
    """Of each family's own steps nothing is told: there are several."""
