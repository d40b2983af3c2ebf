"""A network on the censored likelihood: all K hazards in one pass, stopped early on the validation part."""

from __future__ import annotations

import numpy as np

from endcast.predictors.models.dense import Encoding, looked_at
from endcast.predictors.models.harmless import Uncorrected, unless_harmful
from endcast.predictors.models.network import OPTIONS, Lesson, Recipe, Trainer, base_rows, network, observed
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import IntArray


class NeuralHazard:
    """Sees every column; learns from what happened."""

    name = "neural"
    uses_features = True
    options = OPTIONS

    def fit(self, data: TrainingData) -> FittedModel:
        """Learn from the fit part until the validation part stops gaining."""
        recipe = Recipe.of(data.options)
        encoding = Encoding.fit(data.vectors(data.fit), looked_at(data))
        lesson, held_out = (_lesson(data, encoding, index) for index in (data.fit, data.validation))
        net, epochs, losses = trainer(data, recipe).train(lesson, held_out, recipe.epochs)
        card = {"epochs": epochs, "hidden": recipe.hidden, "layers": recipe.layers, "validation_loss": min(losses)}
        return unless_harmful(data, network(data, encoding, net, card))

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """Learn from everything for as many epochs as were chosen."""
        if isinstance(fitted, Uncorrected):
            return Uncorrected.of(data, fitted.card)
        everything = np.sort(data.everything)
        encoding = Encoding.fit(data.vectors(everything), looked_at(data))
        lesson = _lesson(data, encoding, everything)
        net, _, _ = trainer(data, Recipe.of(data.options)).train(lesson, None, int(fitted.card["epochs"]))
        return network(data, encoding, net, fitted.card)


def trainer(data: TrainingData, recipe: Recipe) -> Trainer:
    """As the training at hand wants it."""
    return Trainer(recipe, data.seed, data.threads, data.tell, data.device, data.checkpoint)


def _lesson(data: TrainingData, encoding: Encoding, index: IntArray) -> Lesson:
    vectors = data.vectors(index)
    hazard, weight = observed(data, index)
    return Lesson(encoding(vectors), base_rows(data, vectors), hazard, weight)
