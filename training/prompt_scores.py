"""The learned score of prompts: what their words tell of output lengths, once models' own habits are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from endcast.errors import TrainingError
from endcast.predictors.features.prompt_score import grams_of
from endcast.predictors.text.ngrams import PROMPT_BITS, NgramScore
from endcast.survival import FloatArray, IntArray
from endcast.training.ngram_scores import fit_ngram_score
from endcast.types import Request

#: Rounds in which effects of prompts and of models are told apart; a model's effect is shrunk as if by so many zeros.
ROUNDS, HABIT_PRIOR = 10, 5.0


def fit_prompt_score(
    requests: Sequence[Request],
    lengths: IntArray,
    ended: npt.NDArray[np.bool_],
    group: npt.NDArray[np.integer[Any]],
    *,
    folds: int = 5,
    seed: int = 0,
) -> tuple[NgramScore, FloatArray]:
    """The score of n requests with output ``lengths`` (n,) ≥ 1, and (n,) scores out of fold, NaN where there is no text.

    ``group`` (n,) numbers the prompts: rows with one number have one text, and are always in one fold. Only what ``ended``
    by itself teaches. ``TrainingError`` if fewer than two prompts can teach.
    """
    names, first, index = np.unique(group, return_index=True, return_inverse=True)
    grams = [grams_of(requests[row]) for row in first.tolist()]
    told = np.array([some is not None for some in grams], dtype=bool)
    teaches = ended & told[index]
    if len(np.unique(index[teaches])) < 2:
        raise TrainingError("fewer than two prompts with text have an answer that ended", hint="Leave prompt_score out")
    models = [requests[row].model for row in np.flatnonzero(teaches).tolist()]
    targets, weights = np.zeros(len(names)), np.zeros(len(names))
    taught, place = np.unique(index[teaches], return_inverse=True)
    targets[taught], weights[taught] = prompt_targets(np.log(lengths[teaches]), models, place)
    rows = np.flatnonzero(told)
    texts = [some for some in grams if some is not None]
    score, scores = fit_ngram_score(
        texts, targets[rows], rows, kind="ridge", bits=PROMPT_BITS, folds=folds, seed=seed, weight=weights[rows]
    )
    each = np.full(len(names), np.nan)
    each[rows] = scores
    return score, each[index]


def prompt_targets(
    log_lengths: npt.NDArray[np.floating[Any]],
    models: Sequence[str | None] | None,
    group: npt.NDArray[np.integer[Any]],
) -> tuple[FloatArray, FloatArray]:
    """What a prompt's text can tell of lengths: for each group its mean log length with the models' own habits taken out.

    ``log_lengths`` (n,), ``models`` (n,) names or ``None`` if unknown, ``group`` (n,) numbers 0 … G−1, none left out. Returns
    (G,) targets around the overall mean, and (G,) weights ≤ 1 that grow with the answers: a mean of many tells the
    prompt's share, one answer tells it with the noise of a single answer.
    """
    y = np.asarray(log_lengths, dtype=np.float64)
    _, model = np.unique([name or "" for name in models] if models else np.zeros(len(y)), return_inverse=True)
    answers = np.bincount(group).astype(np.float64)
    habit, prompt, mean = np.zeros(int(model.max()) + 1), np.zeros(len(answers)), float(y.mean())
    for _ in range(ROUNDS):  # by turns, as not every model need have answered every prompt
        prompt = np.bincount(group, y - mean - habit[model]) / answers
        habit = np.bincount(model, y - mean - prompt[group]) / (np.bincount(model) + HABIT_PRIOR)
    return mean + prompt, answers / (answers + 1.0)
