"""The columns of the model that reads the output so far: one vector a landmark, the same code for training and serving.

A vector is what the text tells (``OutputReader``), two scores of its last words, the tokens so far and, interval by interval,
the log-odds of the admission curve, which the model corrects. All that is known of the request comes in through that
curve: with its columns beside it, trees learned the training prompts by heart (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.predictors.features.pipeline import LIMIT
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.learned import Tables
from endcast.predictors.text.ngrams import TAIL_BITS, hashed_tail
from endcast.predictors.text.output_reader import COLUMNS, OutputReader
from endcast.predictors.text.wordpieces import TAIL_PIECES
from endcast.survival import FloatArray, IntArray

#: "Ends within so many tokens" is what each score of the last words was taught.
SCORE_HORIZONS = (24, 96)
OWNER = "output_tail"
TEXT_COLUMNS = (*COLUMNS, *(f"tail_score_{horizon}" for horizon in SCORE_HORIZONS))
OFFSET_COLUMN = "admission_log_odds"


@dataclass(frozen=True, eq=False)
class TailScores:
    """A linear score of hashed words for each of ``SCORE_HORIZONS``: ``table`` (2, 2^bits), ``bias`` (2,)."""

    table: Float32Array
    bias: Float32Array

    @classmethod
    def from_tables(cls, tables: Tables) -> TailScores:
        """Out of a bundle; ``BundleError`` if they are not of this shape."""
        count = len(SCORE_HORIZONS)
        table, bias = tables.get("table"), tables.get("bias")
        if table is None or bias is None or table.shape != (count, 1 << TAIL_BITS) or bias.shape != (count,):
            raise BundleError("the tables that score last words have another shape", hint="Train the bundle again")
        return cls(table, bias)

    def tables(self) -> Tables:
        """For a bundle."""
        return {"table": self.table, "bias": self.bias}

    def of(self, grams: npt.NDArray[np.int32]) -> Float32Array:
        """(2,), of the grams (k,) of one text."""
        if not grams.size:
            return self.bias
        scores: Float32Array = self.bias + self.table[:, grams].sum(axis=1) / np.float32(np.sqrt(grams.size))
        return scores


def tail_grams(reader: OutputReader) -> npt.NDArray[np.int32]:
    """Hashed words at the end of the text so far."""
    return hashed_tail(reader.tail(), reader.line_head())


def text_row(reader: OutputReader, scores: TailScores) -> Float32Array:
    """(len(TEXT_COLUMNS),), what one text tells now."""
    row = np.empty(len(TEXT_COLUMNS), dtype=np.float32)
    row[: len(COLUMNS)] = reader.features()
    row[len(COLUMNS) :] = scores.of(tail_grams(reader))
    return row


#: (f,), of the columns of ``output_columns``.
NAMES = (*(f"output.{name}" for name in TEXT_COLUMNS), "output.log_generated")


#: What models see beside them that read word pieces themselves: those of the text's tail.
PIECE_NAMES = tuple(f"output_pieces.piece_{i}" for i in range(TAIL_PIECES))


def with_pieces(columns: Columns, pieces: Float32Array) -> Columns:
    """The columns with word pieces (n, TAIL_PIECES) of the texts' tails behind their values."""
    return Columns(np.concatenate([columns.values, pieces], axis=1), columns.intervals)


def output_columns(text: Float32Array, generated: IntArray, admission: FloatArray) -> Columns:
    """Vectors of n landmarks: ``text`` (n, len(TEXT_COLUMNS)), ``generated`` (n,) tokens, ``admission`` (n, K) log-odds of
    the admission curve's further intervals."""
    elapsed = np.log1p(generated).astype(np.float32)[:, None]
    values = np.concatenate([text, elapsed], axis=1)
    return Columns(np.clip(values, -LIMIT, LIMIT), admission.astype(np.float32)[:, :, None])


def learned(scores: TailScores) -> Mapping[str, Tables]:
    """Under the owner's name, for the bundle's learned tables."""
    return {OWNER: scores.tables()}
