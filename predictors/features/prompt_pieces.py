"""The prompt's word pieces as numbers, for models that read them themselves (``--model text``).

They are numbers by name only: no other family can make anything of them, so none is shown them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.text.prompt_text import said_last
from endcast.predictors.text.remembered import Remembered
from endcast.predictors.text.wordpieces import PROMPT_PIECES
from endcast.types import Request

if TYPE_CHECKING:
    from endcast.predictors.text.text_encoder import TextEncoder


class PromptPieces(Stateless):
    """``PROMPT_PIECES`` columns; NaN where nothing is left of the text, or nobody could cut it."""

    name = "prompt_pieces"
    columns = tuple(f"piece_{i}" for i in range(PROMPT_PIECES))
    interval_columns = ()
    inputs = ("prompt", "messages")

    def __init__(self, grid: IntervalGrid) -> None:
        super().__init__(grid)
        self._cut: Remembered[Float32Array] | None = None

    def set_encoder(self, encoder: TextEncoder) -> None:
        """Cut with its vocabulary from now on."""
        self._cut = Remembered(lambda kept, characters: encoder.pieces.prompt(kept))

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, PROMPT_PIECES)."""
        rows = np.full((len(requests), PROMPT_PIECES), np.nan, dtype=np.float32)
        for row, request in zip(rows, requests, strict=True):
            text = said_last(request)
            if text is not None and self._cut is not None:
                row[:] = self._cut(text)
        return rows

    def transform(self, raw: Float32Array) -> Columns:
        """As they are."""
        return Columns(raw, no_intervals(len(raw), self.grid))
