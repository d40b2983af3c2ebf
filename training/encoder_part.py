"""What a bundle's text encoder is made of: its vocabulary, and the scores of prompts if a feature group asks for them.

The score is the log of the tokens that a fine-tuned encoder expects after a prompt. Folds of prompts are scored by encoders that
were trained on the others; the one that goes into the bundle has read all. How many epochs to train is found on the first fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.datasets.person_period import person_periods
from endcast.datasets.trace import Trace
from endcast.errors import TrainingError
from endcast.predictors.features.encoder_score import EncoderScore
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.hazard_graph import open_session
from endcast.predictors.models.encoder.fitted import EncodedHazard, rounded
from endcast.predictors.models.encoder.net import TextNet, clean_pieces
from endcast.predictors.models.encoder.scorer import expected_tokens, score_graph
from endcast.predictors.models.encoder.source import EncoderSource, encoder_source
from endcast.predictors.models.network import Lesson, Recipe, Trainer
from endcast.predictors.models.text import LOADED_RATE, MADE_RATE, reading_trainer
from endcast.predictors.text.encoder_files import GOLDEN, SCORER, TOKENIZER
from endcast.predictors.text.prompt_text import prompt_text
from endcast.predictors.text.text_encoder import GoldenScore, TextEncoder
from endcast.predictors.text.wordpieces import PROMPT_PIECES, Wordpieces
from endcast.survival import FloatArray, IntArray
from endcast.training.replay import prompt_groups

#: Parts of the prompts of which each is scored by an encoder of the others.
FOLDS = 4
#: How an encoder learns of prompts: one that was made here, and one whose weights are from a folder.
MADE = Recipe(hidden=32, batch=64, epochs=20, patience=3)
LOADED = replace(MADE, batch=16, epochs=6, patience=2)
#: How far the graph's scores may lie from the model's.
PARITY = 1e-4


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """``folder`` of weights, if any; seed, threads, device and checkpoint as those of training."""

    folder: Path | None
    seed: int
    threads: int
    device: str
    checkpoint: Path | None
    tell: Callable[[str], None]


@dataclass(frozen=True, eq=False)
class EncoderPart:
    """``encoder`` for the pipeline and the bundle, ``source`` for families that train it further, ``out_of_fold`` raw
    scores (n, 1) by group, for training."""

    encoder: TextEncoder
    source: EncoderSource
    out_of_fold: dict[str, Float32Array]


@dataclass(frozen=True, eq=False)
class _Prompts:
    """P prompts: word ``pieces`` (P, PROMPT_PIECES), and what came after each, (P, K): share of ends, mean at risk."""

    pieces: Float32Array
    hazard: Float32Array
    weight: Float32Array
    grid: IntervalGrid

    def lesson(self, index: IntArray) -> Lesson:
        base = self.grid.base_logit[None, :].astype(np.float32)
        return Lesson(self.pieces[index], base, self.hazard[index], self.weight[index])


def make_encoder_part(part: Trace, rows: IntArray, pipeline: FeaturePipeline, settings: EncoderSettings) -> EncoderPart:
    """From ``rows`` (n,) of the training part, for the groups of ``pipeline`` that read with an encoder."""
    drawn = part.take(rows)
    group = prompt_groups(drawn)
    _, first, place = np.unique(group, return_index=True, return_inverse=True)
    texts = [prompt_text(request) for request in drawn.take(first).requests()]
    source = encoder_source(settings.folder, [text for text in texts if text is not None])
    files, out_of_fold = {TOKENIZER: source.tokenizer}, dict[str, Float32Array]()
    if EncoderScore.name in pipeline.encoded_groups:
        told = np.array([text is not None for text in texts], dtype=bool)
        teaches = np.flatnonzero(told & (np.bincount(place, drawn.is_event, minlength=len(texts)) > 0))
        if len(teaches) < 2 * FOLDS:
            settings.tell(f"encoder_score stays unknown: fewer than {2 * FOLDS} prompts have an answer that ended")
        else:
            settings.tell("fine-tuning the encoder on prompts, and on folds of them")
            pieces = _pieces(texts, source)
            prompts = _prompts(drawn, pieces, place, pipeline.grid)
            scores, files[SCORER] = _fit(prompts, teaches, source, settings)
            scores[~told] = np.nan
            out_of_fold[EncoderScore.name] = EncoderScore.raw_from_scores(scores[place])
            text = texts[int(teaches[0])]
            assert text is not None
            files[GOLDEN] = _golden(files, text)
    return EncoderPart(TextEncoder(files), source, out_of_fold)


def _pieces(texts: list[str | None], source: EncoderSource) -> Float32Array:
    """(P, PROMPT_PIECES), cleaned."""
    cut = Wordpieces(source.tokenizer)
    rows = np.full((len(texts), PROMPT_PIECES), np.nan, dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        if text is not None:
            row[:] = cut.prompt(text)
    return clean_pieces(rows, source.vocabulary)


def _prompts(trace: Trace, pieces: Float32Array, place: npt.NDArray[np.integer], grid: IntervalGrid) -> _Prompts:
    """Answers to one prompt teach together: the same likelihood, in one row."""
    rows = person_periods(trace.output_tokens, trace.is_event, grid.edges)
    cell = place[rows.request] * len(grid) + rows.interval
    shape, cells = (len(pieces), len(grid)), len(pieces) * len(grid)
    at_risk = np.bincount(cell, rows.weight, minlength=cells).reshape(shape)
    ends = np.bincount(cell, rows.event * rows.weight, minlength=cells).reshape(shape)
    answers = len(trace) / len(pieces)
    hazard = np.divide(ends, at_risk, out=np.zeros(shape), where=at_risk > 0)
    return _Prompts(pieces, hazard.astype(np.float32), (at_risk / answers).astype(np.float32), grid)


def _fit(
    prompts: _Prompts, teaches: IntArray, source: EncoderSource, settings: EncoderSettings
) -> tuple[FloatArray, bytes]:
    """(P,) scores of which none is by an encoder that was trained on the prompt, and the graph of one trained on all."""
    trainer = _trainer(source, settings)
    scores, epochs = _out_of_fold(prompts, teaches, source, trainer, settings.seed)
    net, _, _ = trainer.train(prompts.lesson(teaches), None, epochs)
    model = _model(net, prompts, source)
    graph = score_graph(model)
    some = prompts.pieces[teaches[:32]]
    (exported,) = open_session(graph).run(["score"], {"features": some})
    off = float(np.abs(np.asarray(exported)[:, 0] - _scored(model, some)).max())
    if not off <= PARITY:
        raise TrainingError(f"the exported encoder differs from the model by {off:.2g} in its scores")
    return scores, graph


def _out_of_fold(
    prompts: _Prompts, teaches: IntArray, source: EncoderSource, trainer: Trainer, seed: int
) -> tuple[FloatArray, int]:
    """(P,) scores, fold by fold, and the epochs that served best on the first fold."""
    fold = np.zeros(len(prompts.pieces), dtype=np.int64)
    fold[teaches] = np.random.default_rng([seed, 5]).permutation(len(teaches)) % FOLDS
    scores, epochs = np.empty(len(fold)), trainer.recipe.epochs
    for number in range(FOLDS):
        others, held = teaches[fold[teaches] != number], teaches[fold[teaches] == number]
        found = prompts.lesson(held) if number == 0 else None
        net, chosen, _ = trainer.train(prompts.lesson(others), found, epochs)
        epochs = max(chosen, 1) if number == 0 else epochs
        trainer.tell(f"encoder of fold {number + 1} of {FOLDS}: {epochs} epochs")
        mine = fold == number
        scores[mine] = _scored(_model(net, prompts, source), prompts.pieces[mine])
    return scores, epochs


def _trainer(source: EncoderSource, settings: EncoderSettings) -> Trainer:
    recipe, rate = (MADE, MADE_RATE) if source.folder is None else (LOADED, LOADED_RATE)
    plain = Trainer(recipe, settings.seed, settings.threads, settings.tell, settings.device, settings.checkpoint)
    return reading_trainer(plain, source, PROMPT_PIECES, rate)


def _model(net: object, prompts: _Prompts, source: EncoderSource) -> EncodedHazard:
    assert isinstance(net, TextNet)
    return EncodedHazard(rounded(net), None, 0, source.vocabulary, prompts.grid, PROMPT_PIECES, PROMPT_PIECES, {})


def _scored(model: EncodedHazard, pieces: Float32Array) -> FloatArray:
    """(n,), logs of the tokens expected."""
    hazards = 1.0 / (1.0 + np.exp(-model.logits(pieces)))
    return np.log(expected_tokens(hazards, model.grid.edges))


def _golden(files: dict[str, bytes], text: str) -> bytes:
    """A text and the score that it gets here."""
    unchecked = TextEncoder(files, check=False)
    return msgspec.json.encode(GoldenScore(text, unchecked.score(text)))
