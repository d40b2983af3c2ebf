"""Learned scores of texts: a linear model on hashed words, and scores that were made out of fold.

One text often fills many rows (a prompt that many models answered, an output seen at many landmarks). A score that was
fitted on a row's own text says more of that row than it can of a new one, and whatever is trained on it next trusts it
too much. So training rows get scores from models that saw no row of their group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import lsqr
from scipy.special import expit, logit

from endcast.errors import InputError, TrainingError
from endcast.predictors.text.ngrams import Grams, NgramScore
from endcast.survival import FloatArray, IntArray

Kind = Literal["logistic", "ridge"]

#: Penalties Σ table² that are tried, next to Σ weight·error² (ridge) or to 2·Σ weight·log loss (logistic).
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
#: The penalty is chosen on this many rows at most, and on so many folds of them: it does not grow with the rows.
CHOICE_ROWS, CHOICE_FOLDS = 20_000, 3
#: Steps of a fit, at most.
STEPS = 100


def fit_ngram_score(
    grams: Sequence[Grams],
    target: npt.NDArray[np.floating[Any]],
    group: npt.NDArray[np.integer[Any]],
    *,
    kind: Kind,
    bits: int,
    folds: int = 5,
    seed: int = 0,
    weight: npt.NDArray[np.floating[Any]] | None = None,
) -> tuple[NgramScore, FloatArray]:
    """The score of ``target`` (n,), 0 or 1 for ``logistic`` and real for ``ridge``, and (n,) scores out of fold.

    ``group`` (n,) names rows that are always in one fold; ``weight`` (n,) ≥ 0. The penalty is chosen by groups that a fit
    had not seen. The same input gives the same score. ``TrainingError`` if there are not two groups.
    """
    if folds < 2:
        raise InputError("folds", f"must be at least 2, not {folds}")
    y = np.asarray(target, dtype=np.float64)
    w = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float64)
    _check(y, w, kind, len(grams), len(group))
    x = _matrix(grams, bits)
    place = shuffled(group, seed)
    fold = place % folds
    fit = _fit_ridge if kind == "ridge" else _fit_logistic
    penalty = _choose_penalty(x, y, w, place, folds, fit, kind)
    out_of_fold = np.empty(len(y))
    for number in np.unique(fold):
        own, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        table, bias = fit(x[others], y[others], w[others], penalty)
        out_of_fold[own] = x[own] @ table + bias
    table, bias = fit(x, y, w, penalty)
    return NgramScore(table.astype(np.float32), bias), out_of_fold


def shuffled(group: npt.NDArray[np.integer[Any]], seed: int) -> IntArray:
    """(n,), the groups numbered 0 … G−1 in a random order; ``TrainingError`` if there is only one."""
    names, index = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise TrainingError("a score of words needs at least two texts to learn from", hint="Train on more requests")
    place: IntArray = np.random.default_rng(seed).permutation(len(names))[index].astype(np.int64)
    return place


def _check(y: FloatArray, w: FloatArray, kind: Kind, *others: int) -> None:
    if len({len(y), len(w), *others}) > 1:
        raise InputError("target", "must have one number for each text, as group and weight")
    if not (np.isfinite(y).all() and np.isfinite(w).all() and (w >= 0).all() and w.sum() > 0):
        raise InputError("target", "must be finite, with weights ≥ 0 that are not all zero")
    if kind == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise InputError("target", "must be 0 or 1 for a logistic score")


def _matrix(grams: Sequence[Grams], bits: int) -> Any:
    """(n, 2**bits) sparse: 1/√k at each of a text's k grams, so that the product with a table is ``NgramScore.of``."""
    sizes = np.array([len(some) for some in grams], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.concatenate([np.empty(0, np.int32), *grams])
    if places.size and not 0 <= places.min() <= places.max() < 1 << bits:
        raise InputError("grams", f"must lie between 0 and 2**{bits}")
    values = np.repeat(1.0 / np.sqrt(np.maximum(sizes, 1)), sizes)
    return csr_matrix((values, places, starts), shape=(len(grams), 1 << bits))


Fit = Callable[[Any, FloatArray, FloatArray, float], tuple[FloatArray, float]]


def _fit_ridge(x: Any, y: FloatArray, w: FloatArray, penalty: float) -> tuple[FloatArray, float]:
    """Least squares around the mean; the bias then takes up what is left on average."""
    root = np.sqrt(w)
    mean = float(np.average(y, weights=w))
    scaled = x.multiply(root[:, None]).tocsr() if np.ptp(w) > 0 else x * root[0]
    table = lsqr(scaled, root * (y - mean), damp=float(np.sqrt(penalty)), iter_lim=STEPS)[0]
    return table, float(np.average(y - x @ table, weights=w))


def _fit_logistic(x: Any, y: FloatArray, w: FloatArray, penalty: float) -> tuple[FloatArray, float]:
    """Maximum likelihood with a penalised table and a free bias, from zero."""
    total, transposed = w.sum(), x.T.tocsr()

    def loss(entries: FloatArray) -> tuple[float, FloatArray]:
        table, bias = entries[:-1], entries[-1]
        z = x @ table + bias
        value = w @ (np.logaddexp(0.0, z) - y * z) + 0.5 * penalty * (table @ table)
        slope = w * (expit(z) - y)
        return value / total, np.append(transposed @ slope + penalty * table, slope.sum()) / total

    start = np.zeros(x.shape[1] + 1)
    start[-1] = logit(float(np.clip(np.average(y, weights=w), 1e-6, 1 - 1e-6)))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS, "gtol": 1e-6}).x
    return found[:-1], float(found[-1])


def _choose_penalty(x: Any, y: FloatArray, w: FloatArray, place: IntArray, folds: int, fit: Fit, kind: Kind) -> float:
    """The one of ``PENALTIES`` whose scores lose least on folds that they were not fitted on, of some of the groups."""
    last = max(int(np.sort(place)[min(CHOICE_ROWS, len(place)) - 1]), 1)
    rows = np.flatnonzero(place <= last)  # whole groups, two at least
    fold = place % folds
    losses = np.zeros(len(PENALTIES))
    for number in np.unique(fold[rows])[:CHOICE_FOLDS]:
        own, others = rows[fold[rows] == number], rows[fold[rows] != number]
        if not w[own].sum() > 0 or not w[others].sum() > 0:
            continue
        x_others, x_own = x[others], x[own]
        for i, penalty in enumerate(PENALTIES):
            table, bias = fit(x_others, y[others], w[others], penalty)
            losses[i] += w[own] @ _loss(x_own @ table + bias, y[own], kind)
    return PENALTIES[int(losses.argmin())]


def _loss(score: FloatArray, y: FloatArray, kind: Kind) -> FloatArray:
    """(n,), of each row."""
    loss: FloatArray = (score - y) ** 2 if kind == "ridge" else np.logaddexp(0.0, score) - y * score
    return loss
