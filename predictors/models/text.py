"""A text encoder with a hazard head, fine-tuned on the censored likelihood: it reads the prompt itself, or the output's tail.

At admission it sees the prompt's word pieces beside the other columns; in the model that reads outputs, the tail's. All K
hazards come from one pass. Without a folder of weights it begins small and random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from endcast.errors import TrainingError
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models.dense import Encoding, looked_at
from endcast.predictors.models.encoder.fitted import EncodedHazard, inputs_of, rounded
from endcast.predictors.models.encoder.net import TextNet
from endcast.predictors.models.encoder.source import LAYERS, UNITS, EncoderSource
from endcast.predictors.models.harmless import Uncorrected, unless_harmful
from endcast.predictors.models.network import OPTIONS, Lesson, Recipe, Trainer, base_rows, observed
from endcast.predictors.models.protocol import FittedModel, TrainingData
from endcast.survival import IntArray

#: How fast the encoder itself learns: weights from a folder are only adjusted.
ENCODER_RATE = "encoder_learning_rate"
MADE_RATE, LOADED_RATE = 1e-3, 5e-5
#: How large an encoder is that is made here.
MADE_LAYERS, MADE_UNITS = "encoder_layers", "encoder_units"
_DEFAULTS: dict[str, Any] = {"hidden": 64, "batch": 256, "epochs": 12, "patience": 2}
#: The head has two layers.
_HEAD_OPTIONS = tuple(name for name in OPTIONS if name != "layers")
#: Names of piece columns begin with one of these.
_PIECES = ("prompt_pieces.", "output_pieces.")


@dataclass(frozen=True, eq=False)
class _Reading:
    """How feature vectors become inputs of the network."""

    encoding: Encoding | None
    first_piece: int
    pieces: int
    source: EncoderSource

    @classmethod
    def of(cls, data: TrainingData, index: IntArray) -> _Reading:
        """For these rows. ``TrainingError`` where nothing was cut into pieces."""
        columns = np.flatnonzero([name.startswith(_PIECES) for name in data.columns])
        if data.encoder is None or not columns.size:
            raise TrainingError("there is no text to be read", hint="Train on a log with prompts, or another model")
        others = np.setdiff1d(looked_at(data), columns)
        encoding = Encoding.fit(data.vectors(index), others) if others.size else None
        layers, units = (
            int(data.options.get(name, usual)) for name, usual in ((MADE_LAYERS, LAYERS), (MADE_UNITS, UNITS))
        )
        return cls(encoding, int(columns[0]), len(columns), data.encoder.sized(layers, units))

    def inputs(self, features: Float32Array) -> Float32Array:
        """(n, E + pieces)."""
        return inputs_of(features, self.encoding, self.first_piece, self.pieces, self.source.vocabulary)

    def lesson(self, data: TrainingData, index: IntArray) -> Lesson:
        """What these rows teach."""
        vectors = data.vectors(index)
        hazard, weight = observed(data, index)
        return Lesson(self.inputs(vectors), base_rows(data, vectors), hazard, weight)

    def fitted(self, data: TrainingData, net: Any, card: dict[str, Any]) -> EncodedHazard:
        """What was trained, as it is served."""
        values = data.features.values.shape[1]
        return EncodedHazard(
            rounded(net),
            self.encoding,
            self.first_piece,
            self.source.vocabulary,
            data.grid,
            values,
            data.width,
            card,
            data.offset,
        )


class TextHazard:
    """The encoder and the head learn together."""

    name = "text"
    uses_features = True
    own_groups = ("prompt_pieces",)
    options = (*_HEAD_OPTIONS, ENCODER_RATE, MADE_LAYERS, MADE_UNITS)

    def fit(self, data: TrainingData) -> FittedModel:
        """Learn from the fit part until the validation part stops gaining."""
        reading, recipe = _Reading.of(data, data.fit), _recipe(data)
        lesson, held_out = (reading.lesson(data, index) for index in (data.fit, data.validation))
        net, epochs, losses = _trainer(data, reading).train(lesson, held_out, recipe.epochs)
        card = {
            "epochs": epochs,
            "hidden": recipe.hidden,
            "encoder": reading.source.card,
            "validation_loss": min(losses),
        }
        return unless_harmful(data, reading.fitted(data, net, card))

    def refit(self, data: TrainingData, fitted: FittedModel) -> FittedModel:
        """Learn from everything for as many epochs as were chosen."""
        if isinstance(fitted, Uncorrected):
            return Uncorrected.of(data, fitted.card)
        everything = np.sort(data.everything)
        reading = _Reading.of(data, everything)
        lesson = reading.lesson(data, everything)
        net, _, _ = _trainer(data, reading).train(lesson, None, int(fitted.card["epochs"]))
        return reading.fitted(data, net, dict(fitted.card))


def _recipe(data: TrainingData) -> Recipe:
    return Recipe.of({name: value for name, value in data.options.items() if name in _HEAD_OPTIONS}, **_DEFAULTS)


def _trainer(data: TrainingData, reading: _Reading) -> Trainer:
    plain = Trainer(_recipe(data), data.seed, data.threads, data.tell, data.device, data.checkpoint)
    rate = data.options.get(ENCODER_RATE, MADE_RATE if reading.source.folder is None else LOADED_RATE)
    return reading_trainer(plain, reading.source, reading.pieces, float(rate))


def reading_trainer(plain: Trainer, source: EncoderSource, pieces: int, rate: float) -> Trainer:
    """The same for networks that read ``pieces`` word pieces behind their other inputs; the encoder learns at ``rate``."""

    def make(inputs: int, outputs: int, recipe: Recipe) -> TextNet:
        return TextNet(inputs, outputs, recipe, source, pieces)

    return replace(plain, make=make, groups=lambda net: net.parameter_groups(plain.recipe.learning_rate, rate))
