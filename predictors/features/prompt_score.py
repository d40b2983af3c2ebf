"""What the prompt's words tell of the output's length: one learned score, from a table of hashed words.

The table is made in training from the log's own prompts (``training.ngram_scores``) and never changes afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.predictors.features.protocol import Columns, Float32Array, Stateless, no_intervals
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.text.ngrams import PROMPT_BITS, Grams, NgramScore
from endcast.predictors.text.prompt_grams import prompt_grams
from endcast.predictors.text.prompt_text import said_last
from endcast.predictors.text.remembered import Remembered
from endcast.types import Request

#: Scores are told to this step. Exact ones would be a name for each prompt: where many models answer one prompt, trees
#: then learn the prompts by heart instead of what scores mean.
STEP = 0.2


def grams_of(request: Request) -> Grams | None:
    """(k,) hashed words of the text that the answer is to; ``None`` where there is no text."""
    text = said_last(request)
    return None if text is None else prompt_grams(text)


class PromptScore(Stateless):
    """One column: the expected log output length by the prompt's words, in steps; NaN without a text or a table."""

    name = "prompt_score"
    columns = ("score",)
    interval_columns = ()
    inputs = ("prompt", "messages")

    def __init__(self, grid: IntervalGrid) -> None:
        super().__init__(grid)
        self._score: NgramScore | None = None
        self._read: Remembered[float] | None = None

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 1), the score."""
        return self.raw_from_scores([self._score_of(request) for request in requests])

    def _score_of(self, request: Request) -> float:
        text = said_last(request)
        return math.nan if text is None or self._read is None else self._read(text)

    @staticmethod
    def raw_from_scores(scores: npt.ArrayLike) -> Float32Array:
        """(n, 1) raw rows of scores (n,), rounded to ``STEP``: training puts out-of-fold scores in the place of what
        ``collect`` gives."""
        return (np.round(np.asarray(scores, dtype=np.float64) / STEP) * STEP).astype(np.float32).reshape(-1, 1)

    def transform(self, raw: Float32Array) -> Columns:
        """The score as it is."""
        return Columns(raw, no_intervals(len(raw), self.grid))

    def set_score(self, score: NgramScore) -> None:
        """Read with this table from now on."""
        self._score = score
        self._read = Remembered(lambda kept, characters: score.of(prompt_grams(kept)))

    def load_learned(self, tables: Mapping[str, Float32Array]) -> None:
        """Take over a dumped table; none is none yet. ``BundleError`` if it is not one for hashed words."""
        if not tables:
            self._score = self._read = None
            return
        table, bias = tables.get("table"), tables.get("bias")
        fits = table is not None and table.shape == (1 << PROMPT_BITS,) and np.isfinite(table).all()
        if table is None or bias is None or not fits or bias.shape != (1,) or not np.isfinite(bias).all():
            raise BundleError(f"{self.name}: the table of words has another shape", hint="Train the bundle again")
        self.set_score(NgramScore(table, float(bias[0])))

    def dump_learned(self) -> dict[str, Float32Array]:
        """``table`` (2**PROMPT_BITS,) and ``bias`` (1,), float32; empty before there is a table."""
        if self._score is None:
            return {}
        return {"table": self._score.table, "bias": np.array([self._score.bias], dtype=np.float32)}
