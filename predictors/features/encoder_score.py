"""What a text encoder makes of the prompt: one learned score, the log of the output tokens that it expects.

The encoder is fine-tuned in training on the log's own prompts (``training.encoder_scores``) and lies in the bundle. It costs
milliseconds a prompt, so each prompt's score is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from endcast.predictors.features.prompt_score import PromptScore
from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.text.prompt_text import said_last
from endcast.predictors.text.remembered import Remembered
from endcast.types import Request

if TYPE_CHECKING:
    from endcast.predictors.text.text_encoder import TextEncoder


class EncoderScore(Stateless):
    """One column, in the steps of ``prompt_score``; NaN without a text or an encoder."""

    name = "encoder_score"
    columns = ("score",)
    interval_columns = ()
    inputs = ("prompt", "messages")
    raw_from_scores = staticmethod(PromptScore.raw_from_scores)

    def __init__(self, grid: IntervalGrid) -> None:
        super().__init__(grid)
        self._score: Remembered[float] | None = None

    def set_encoder(self, encoder: TextEncoder) -> None:
        """Ask this one from now on, if it gives scores."""
        self._score = Remembered(lambda kept, characters: encoder.score(kept)) if encoder.scores else None

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 1), the score."""
        return self.raw_from_scores([self._score_of(request) for request in requests])

    def _score_of(self, request: Request) -> float:
        text = said_last(request)
        return math.nan if text is None or self._score is None else self._score(text)

    def transform(self, raw: Float32Array) -> Columns:
        """The score as it is."""
        return Columns(raw, no_intervals(len(raw), self.grid))
