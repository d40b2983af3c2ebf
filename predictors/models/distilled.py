"""A student of the boosted model: a small network that gives all of its hazards in one pass, many times as fast.

The teacher knows a hazard for *every* interval of a row, where the log knows one end. So a student needs few rows, may be
shown rows that nobody logged, because the teacher answers those too: rows with columns exchanged between requests show
it the teacher's ground between the logged ones (as in Buciluă, Caruana and Niculescu-Mizil, "Model compression", 2006).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.dense import Encoding, looked_at
from endcast.predictors.models.harmless import gain_over_base
from endcast.predictors.models.lightgbm import TUNABLE, BoostedHazard, LightGbmHazard
from endcast.predictors.models.network import OPTIONS, HazardNetwork, Lesson, Recipe, base_rows, network
from endcast.predictors.models.neural import trainer
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import IntArray

#: Options of the teacher are its own names with this in front.
TEACHER = "teacher_"
#: Weight of an interval that hardly any row reaches, so that far hazards are learned at all.
_LEAST_REACHED = 0.02
#: Rows that a student is shown where the log has fewer, so many times the log's rows at most, and the most that one row
#: exchanges of its columns.
_SHOWN, _MOST_TIMES, _MOST_EXCHANGED = 30_000, 6, 0.6
_DEFAULTS: dict[str, Any] = {"hidden": 64, "layers": 2, "dropout": 0.0, "weight_decay": 1e-3, "epochs": 60}


@dataclass(frozen=True, eq=False)
class Student:
    """The network, and the teacher from which others are refitted."""

    network: HazardNetwork
    teacher: BoostedHazard

    @property
    def card(self) -> dict[str, Any]:
        """Of both."""
        return {**self.network.card, "teacher": dict(self.teacher.card)}

    def logits(self, features: Float32Array) -> Any:
        """(n, K)."""
        return self.network.logits(features)

    def graph(self) -> Any:
        """The network's."""
        return self.network.graph()


class DistilledHazard:
    """LightGBM teaches, a network learns."""

    name = "distilled"
    uses_features = True
    options = (*OPTIONS, *(TEACHER + name for name in TUNABLE))

    def fit(self, data: TrainingData) -> FittedModel:
        """A teacher of the fit part; a student until it comes no nearer to it on the validation part."""
        teacher = LightGbmHazard().fit(_for_teacher(data))
        assert isinstance(teacher, BoostedHazard)
        if teacher.booster is None:
            return teacher
        recipe = _recipe(data)
        encoding = Encoding.fit(data.vectors(data.fit), looked_at(data))
        lesson = _lessons(data, teacher, encoding, data.fit)
        held_out = _lesson(data, teacher, encoding, data.vectors(data.validation))
        net, epochs, losses = trainer(data, recipe).train(lesson, held_out, recipe.epochs)
        card = {"epochs": epochs, "hidden": recipe.hidden, "layers": recipe.layers, "distance": min(losses)}
        student = network(data, encoding, net, card)
        gain, _ = gain_over_base(data, student.logits(data.vectors(data.validation)))
        return Student(replace(student, card={**card, "validation_gain_nats_a_request": gain}), teacher)

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """The same teacher and student on everything."""
        if isinstance(fitted, BoostedHazard):
            return LightGbmHazard().refit(_for_teacher(data), fitted)
        assert isinstance(fitted, Student)
        teacher = LightGbmHazard().refit(_for_teacher(data), fitted.teacher)
        assert isinstance(teacher, BoostedHazard)
        everything = np.sort(data.everything)
        encoding = Encoding.fit(data.vectors(everything), looked_at(data))
        lesson = _lessons(data, teacher, encoding, everything)
        net, _, _ = trainer(data, _recipe(data)).train(lesson, None, int(fitted.network.card["epochs"]))
        return Student(network(data, encoding, net, fitted.network.card), teacher)


def _recipe(data: TrainingData) -> Recipe:
    own = {name: value for name, value in data.options.items() if not name.startswith(TEACHER)}
    return Recipe.of(own, **_DEFAULTS)


def _for_teacher(data: TrainingData) -> TrainingData:
    own = {n.removeprefix(TEACHER): value for n, value in data.options.items() if n.startswith(TEACHER)}
    return replace(data, options=own)


def _lessons(data: TrainingData, teacher: BoostedHazard, encoding: Encoding, index: IntArray) -> Lesson:
    """Of the logged rows and, at admission, where they are few, of mixed ones.

    What a text says so far hangs together: rows mixed of several texts taught nothing (less, on AlpacaEval's validation part).
    """
    vectors, rng = data.vectors(index), np.random.default_rng(data.seed)
    times = min(_SHOWN // max(len(index), 1), _MOST_TIMES) if data.offset is None else 0
    column = _column_of(data)
    lessons = [_lesson(data, teacher, encoding, vectors)]
    for _ in range(times):
        lessons.append(_lesson(data, teacher, encoding, mixed(vectors, column, rng)))
    base = [one.base for one in lessons]
    return Lesson(
        np.concatenate([one.inputs for one in lessons]),
        base[0] if len(base[0]) == 1 else np.concatenate(base),
        np.concatenate([one.hazard for one in lessons]),
        np.concatenate([one.weight for one in lessons]),
    )


def _column_of(data: TrainingData) -> IntArray:
    """(F,), the column that each number of a feature vector is of: an interval column's numbers stay together."""
    values, each = data.features.values.shape[1], data.features.intervals.shape[2]
    return np.concatenate([np.arange(values), values + np.tile(np.arange(each), len(data.grid))])


def mixed(vectors: Float32Array, column: IntArray, rng: np.random.Generator) -> Float32Array:
    """(n, F): each row with some of its columns, a share drawn for the row, taken from another row."""
    share = rng.uniform(0.0, _MOST_EXCHANGED, (len(vectors), 1))
    exchanged = rng.random((len(vectors), int(column.max(initial=-1)) + 1)) < share
    return np.where(exchanged[:, column], vectors[rng.integers(len(vectors), size=len(vectors))], vectors)


def _lesson(data: TrainingData, teacher: BoostedHazard, encoding: Encoding, vectors: Float32Array) -> Lesson:
    """The teacher's hazards; an interval counts as often as rows reach it by the teacher's own curve."""
    hazard = np.empty((len(vectors), len(data.grid)), dtype=np.float32)
    for part in np.array_split(np.arange(len(vectors)), len(vectors) // 2048 + 1):
        hazard[part] = 1.0 / (1.0 + np.exp(-teacher.logits(vectors[part])))
    reached = np.cumprod(1.0 - hazard[:, :-1], axis=1)
    weight = np.concatenate([np.ones((len(vectors), 1), np.float32), np.maximum(reached, _LEAST_REACHED)], axis=1)
    return Lesson(encoding(vectors), base_rows(data, vectors), hazard, weight.astype(np.float32))
