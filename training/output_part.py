"""Training of the model that reads outputs: landmarks along each logged output, features of the text up to there.

It corrects admission curves, so it is shown curves of models that did not see the request: the log's training part is cut
into folds (by prompt or by time), and each fold's curves come from the others. The scores of last words are made out of
fold in the same way, by the same clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from endcast.datasets.person_period import rows_each
from endcast.datasets.trace import BoolArray, Trace
from endcast.predictors.bundle import OutputManifest
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.landmarks import EVERY, Conditioned, FurtherGrid, further_edges
from endcast.predictors.learned import Tables
from endcast.predictors.models.protocol import FittedModel, ModelFamily, TrainingData
from endcast.predictors.output_columns import (
    NAMES,
    OFFSET_COLUMN,
    PIECE_NAMES,
    SCORE_HORIZONS,
    TailScores,
    learned,
    output_columns,
    tail_grams,
    with_pieces,
)
from endcast.predictors.output_model import output_reader
from endcast.predictors.product_limit import product_limit
from endcast.predictors.text.ngrams import TAIL_BITS
from endcast.predictors.text.output_reader import COLUMNS
from endcast.predictors.text.wordpieces import TAIL_PIECES, Wordpieces
from endcast.survival import CurveTable, IntArray
from endcast.training.alignment import landmarks_of, written
from endcast.training.calibrate import calibrate
from endcast.training.export import Exported, export
from endcast.training.ngram_scores import fit_ngram_score

#: Parts of which each is forecast by a model of the others.
FOLDS = 4
#: A log must have the text of so many outputs before they are worth a model.
LEAST_OUTPUTS = 200


@dataclass(frozen=True)
class OutputPart:
    """What training adds to a bundle that reads outputs."""

    manifest: OutputManifest
    exported: Exported
    grid: IntervalGrid
    learned: dict[str, Tables]


@dataclass(frozen=True, eq=False)
class _Landmarks:
    """m landmarks: ``request`` (m,) row of the training data, ``generated`` (m,) tokens, what the text told."""

    request: IntArray
    generated: IntArray
    text: Float32Array
    grams: list[npt.NDArray[np.int32]]
    pieces: Float32Array | None  #: (m, TAIL_PIECES) word pieces of the tails, for a family that reads them


def has_outputs(trace: Trace) -> bool:
    """Whether enough outputs are in the log."""
    column = trace.table.column("output")
    return int(len(column) - column.null_count) >= LEAST_OUTPUTS


def train_output_part(
    trace: Trace,
    data: TrainingData,
    family: ModelFamily,
    fitted: FittedModel,
    most_rows: int,
    pieces: Wordpieces | None = None,
) -> OutputPart:
    """``trace`` holds the rows of ``data``, one by one, and ``fitted`` is what ``family`` made of them; ``pieces`` is the
    vocabulary of a family that reads texts itself."""
    admission = _crossfit_curves(data, family, fitted)
    marks = _read(trace, data, most_rows, pieces)
    data.tell(f"{len(marks.request)} landmarks along the outputs train the model that reads them")
    remaining, ended = data.lengths[marks.request] - marks.generated, data.ended[marks.request]
    grid = _further_grid(data.grid.fine, remaining, ended)
    scores, out_of_fold = _tail_scores(marks, remaining, ended, data)
    further = FurtherGrid(grid, data.grid.fine)
    base = np.concatenate(
        [
            Conditioned.of(admission, marks.request[part], marks.generated[part], further.fine).logits(further.at)
            for part in np.array_split(np.arange(len(marks.request)), len(marks.request) // 4096 + 1)
        ]
    )
    text = np.concatenate([marks.text, out_of_fold], axis=1)
    features = output_columns(text, marks.generated, base)
    own = replace(
        data,
        grid=grid,
        columns=NAMES if marks.pieces is None else (*NAMES, *PIECE_NAMES),
        interval_columns=(OFFSET_COLUMN,),
        features=features if marks.pieces is None else with_pieces(features, marks.pieces),
        lengths=remaining,
        ended=ended,
        fit=np.flatnonzero(np.isin(marks.request, data.fit)),
        validation=np.flatnonzero(np.isin(marks.request, data.validation)),
        block=data.block[marks.request],
        offset=0,
    )
    model = family.fit(own)
    slope, metrics = calibrate(own, model)
    final = family.refit(own, model)
    exported = export(own, final, slope)
    manifest = OutputManifest(
        every=EVERY,
        columns=list(own.columns),
        interval_columns=list(own.interval_columns),
        intervals=len(grid),
        landmarks=len(marks.request),
        slope=slope,
        metrics={"validation": metrics, "parity": exported.difference},
        card=dict(final.card),
    )
    return OutputPart(manifest, exported, grid, dict(learned(scores)))


def _folds(data: TrainingData) -> IntArray:
    """(n,), clusters dealt out to folds: neighbours in time stay together, prompts are dealt in turn."""
    _, block = np.unique(data.block, return_inverse=True)
    fold: IntArray = (block % FOLDS).astype(np.int64)
    return fold


def _crossfit_curves(data: TrainingData, family: ModelFamily, fitted: FittedModel) -> CurveTable:
    """(n, ·) admission curves of all rows, each from a model that was refitted without the row's fold."""
    fold = _folds(data)
    hazards = np.empty((len(data.lengths), len(data.grid)))
    nothing = np.empty(0, dtype=np.int64)
    for number in np.unique(fold):
        data.tell(f"admission curves of fold {number + 1}, from the others")
        others = data.everything[fold[data.everything] != number]
        model = family.refit(replace(data, fit=others, validation=nothing, tell=lambda text: None), fitted)
        for index in np.array_split(np.flatnonzero(fold == number), 16):
            hazards[index] = 1.0 / (1.0 + np.exp(-model.logits(data.vectors(index))))
    return data.grid.curves(hazards)


def _further_grid(fine: IntArray, remaining: IntArray, ended: BoolArray) -> IntervalGrid:
    edges = further_edges(fine)
    base = product_limit(remaining, ended, shrink=0.5)
    beyond = int(edges[-1]) + 1 - len(base)
    step = base[-1] / max(len(base) - 1, 1)
    padded = np.concatenate([base, base[-1] + step * np.arange(1, max(beyond, 0) + 1)])
    return IntervalGrid(edges, padded[: int(edges[-1]) + 1])


def _read(trace: Trace, data: TrainingData, most_rows: int, pieces: Wordpieces | None) -> _Landmarks:
    """Text features at (a draw of) the landmarks of all rows whose output is in the log."""
    request, generated = landmarks_of(data.lengths)
    told = trace.table.column("output").is_valid().to_numpy()
    request, generated = request[told[request]], generated[told[request]]
    each = rows_each(data.lengths[request] - generated, further_edges(data.grid.fine))
    if each.sum() > most_rows:
        count = max(int(len(request) * most_rows / each.sum()), 1)
        drawn = np.sort(np.random.default_rng([data.seed, 3]).permutation(len(request))[:count])
        request, generated = request[drawn], generated[drawn]
    outputs = trace.table.column("output")
    text, grams = np.empty((len(request), len(COLUMNS)), dtype=np.float32), []
    tails = None if pieces is None else np.empty((len(request), TAIL_PIECES), dtype=np.float32)
    rows, starts = np.unique(request, return_index=True)
    stops = [*starts[1:].tolist(), len(request)]
    asking = trace.take(rows).requests()
    for one, (row, start, stop, asked) in enumerate(zip(rows.tolist(), starts.tolist(), stops, asking, strict=True)):
        reader, output, so_far = output_reader(asked), outputs[row].as_py(), 0
        for i in range(start, stop):
            upto = written(len(output), int(generated[i]), int(data.lengths[row]))
            reader.append(output[so_far:upto])
            so_far = upto
            text[i] = reader.features()
            grams.append(tail_grams(reader))
            if tails is not None and pieces is not None:
                tails[i] = pieces.tail(reader.tail())
        if one % 2000 == 1999:
            data.tell(f"outputs read: {one + 1} of {len(starts)}")
    return _Landmarks(request, generated, text, grams, tails)


def _tail_scores(
    marks: _Landmarks, remaining: IntArray, ended: BoolArray, data: TrainingData
) -> tuple[TailScores, Float32Array]:
    """Scores of last words for serving, and (m, 2) those made out of fold for training."""
    tables = np.zeros((len(SCORE_HORIZONS), 1 << TAIL_BITS), dtype=np.float32)
    bias = np.zeros(len(SCORE_HORIZONS), dtype=np.float32)
    out_of_fold = np.empty((len(remaining), len(SCORE_HORIZONS)), dtype=np.float32)
    for i, horizon in enumerate(SCORE_HORIZONS):
        data.tell(f"learning which last words end within {horizon} tokens")
        ends = (ended & (remaining <= horizon)).astype(np.float64)
        score, scored = fit_ngram_score(
            marks.grams, ends, data.block[marks.request], kind="logistic", bits=TAIL_BITS, folds=FOLDS, seed=data.seed
        )
        tables[i], bias[i], out_of_fold[:, i] = score.table, score.bias, scored
    return TailScores(tables, bias), out_of_fold
