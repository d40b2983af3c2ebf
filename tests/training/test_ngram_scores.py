"""Learned scores of hashed words, fitted and out of fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, Ridge

from endcast import InputError
from endcast.errors import TrainingError
from endcast.predictors.text.ngrams import Grams
from endcast.training import ngram_scores
from endcast.training.ngram_scores import Kind, fit_ngram_score, shuffled

BITS = 8
KINDS: tuple[Kind, ...] = ("ridge", "logistic")


@dataclass(frozen=True)
class Texts:
    """Texts whose target is the sum of what their grams are worth, and noise."""

    grams: list[Grams]
    worth: npt.NDArray[np.float64]
    group: npt.NDArray[np.int64]
    noise: npt.NDArray[np.float64]

    def target(self, kind: Kind) -> npt.NDArray[np.float64]:
        if kind == "ridge":
            return self.worth + self.noise
        drawn = (np.argsort(np.argsort(self.noise)) + 0.5) / len(self.noise)
        return np.asarray(expit(2.0 * self.worth) > drawn, dtype=np.float64)

    def fit(self, kind: Kind, **more: Any) -> Any:
        return fit_ngram_score(self.grams, self.target(kind), self.group, kind=kind, bits=BITS, **more)


@pytest.fixture(scope="module")
def texts() -> Texts:
    rng = np.random.default_rng(1)
    grams = [np.unique(rng.integers(0, 1 << BITS, 12)).astype(np.int32) for _ in range(600)]
    table = rng.normal(size=1 << BITS)
    worth = np.array([table[some].sum() / len(some) ** 0.5 for some in grams])
    group = np.arange(600, dtype=np.int64)
    return Texts([*grams, *grams], np.tile(worth, 2), np.tile(group, 2), rng.normal(size=1200) * 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_score_is_found(texts: Texts, kind: Kind) -> None:
    score, out_of_fold = texts.fit(kind)
    fitted = np.array([score.of(some) for some in texts.grams])
    assert score.table.shape == (1 << BITS,) and score.table.dtype == np.float32
    assert np.corrcoef(fitted, texts.worth)[0, 1] > 0.8
    assert 0.6 < np.corrcoef(out_of_fold, texts.worth)[0, 1] < np.corrcoef(fitted, texts.worth)[0, 1]
    if kind == "ridge":
        assert np.mean((out_of_fold - texts.worth) ** 2) < 0.6 * texts.worth.var()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_group_never_teach_each_other(kind: Kind) -> None:
    """Each text stands in two rows with a target of pure noise: a score that saw the other row would know it."""
    rng = np.random.default_rng(2)
    grams = [np.array([i], dtype=np.int32) for i in range(200)]
    noise = rng.integers(0, 2, 200).astype(float)
    score, out_of_fold = fit_ngram_score(
        [*grams, *grams], np.tile(noise, 2), np.tile(np.arange(200), 2), kind=kind, bits=BITS
    )
    fitted = np.array([score.of(some) for some in grams])
    assert abs(np.corrcoef(out_of_fold[:200], noise)[0, 1]) < 0.25
    np.testing.assert_allclose(out_of_fold[:200], out_of_fold[200:])
    assert np.corrcoef(fitted, noise)[0, 1] > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_input_gives_the_same_score(texts: Texts, kind: Kind) -> None:
    one, other = texts.fit(kind, seed=4), texts.fit(kind, seed=4)
    np.testing.assert_array_equal(one[0].table, other[0].table)
    np.testing.assert_array_equal(one[1], other[1])
    assert not np.array_equal(texts.fit(kind, seed=5)[1], one[1])


def dense(texts: Texts) -> npt.NDArray[np.float64]:
    x = np.zeros((len(texts.grams), 1 << BITS))
    for row, some in zip(x, texts.grams, strict=True):
        row[some] = 1.0 / len(some) ** 0.5
    return x


def test_the_fits_are_those_of_another_library(texts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One penalty, and weights: against scikit-learn's solvers."""
    monkeypatch.setattr(ngram_scores, "PENALTIES", (2.0,))
    weight = np.random.default_rng(3).uniform(0.2, 2.0, len(texts.grams))
    x = dense(texts)
    ridge, _ = texts.fit("ridge", weight=weight)
    y = texts.target("ridge")
    mean = np.average(y, weights=weight)
    other = Ridge(alpha=2.0, fit_intercept=False, solver="cholesky").fit(x, y - mean, sample_weight=weight)
    np.testing.assert_allclose(ridge.table, other.coef_, atol=2e-3)
    logistic, _ = texts.fit("logistic", weight=weight)
    y = texts.target("logistic")
    other = LogisticRegression(C=0.5, tol=1e-8, max_iter=2000).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(logistic.table, other.coef_[0], atol=2e-2)
    assert logistic.bias == pytest.approx(other.intercept_[0], abs=2e-2)


def test_a_weight_of_zero_teaches_nothing(texts: Texts) -> None:
    half = np.arange(len(texts.grams)) < 600
    y = texts.target("ridge")
    spoiled = np.where(half, y, 1e3)
    weighted, scored = fit_ngram_score(
        texts.grams, spoiled, texts.group, kind="ridge", bits=BITS, weight=half.astype(float)
    )
    assert abs(weighted.bias) < 2 and np.abs(scored).max() < 50
    assert np.corrcoef(scored, texts.worth)[0, 1] > 0.5


def test_texts_without_grams_score_the_bias(texts: Texts) -> None:
    nothing = np.empty(0, dtype=np.int32)
    score, _ = fit_ngram_score([nothing] * 40, np.arange(40) % 4 == 0, np.arange(40), kind="logistic", bits=BITS)
    assert not score.table.any() and expit(score.of(nothing)) == pytest.approx(0.25, abs=1e-3)
    one_kind, scores = fit_ngram_score([nothing] * 40, np.zeros(40), np.arange(40), kind="logistic", bits=BITS)
    assert np.isfinite(scores).all() and one_kind.bias < -5


def test_a_group_larger_than_what_the_penalty_is_chosen_on(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    monkeypatch.setattr(ngram_scores, "CHOICE_ROWS", 10)
    _, scores = fit_ngram_score(
        texts.grams, texts.target("ridge"), texts.group // 300, kind="ridge", bits=BITS, folds=3
    )
    assert np.isfinite(scores).all()


def test_groups_are_numbered_at_random_and_dealt_out_evenly() -> None:
    group = np.repeat(np.array([7, 3, 900, 41]), [5, 1, 2, 3])
    place = shuffled(group, 0)
    assert sorted(set(place.tolist())) == [0, 1, 2, 3]
    assert len({(a, b) for a, b in zip(group.tolist(), place.tolist(), strict=True)}) == 4
    assert any(not np.array_equal(shuffled(group, seed), place) for seed in range(1, 5))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"target": np.array([0.0, 2.0, 1.0])}, "0 or 1"),
        ({"target": np.array([0.0, np.nan, 1.0])}, "finite"),
        ({"target": np.zeros(2)}, "one number for each"),
        ({"weight": np.zeros(3)}, "weights"),
        ({"folds": 1}, "at least 2"),
        ({"bits": 1}, "between 0 and"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change: dict[str, Any], match: str) -> None:
    some = np.array([1, 3], dtype=np.int32)
    given = {
        "grams": [some] * 3,
        "target": np.array([0.0, 1.0, 1.0]),
        "group": np.arange(3),
        "kind": "logistic",
        "bits": 2,
    }
    with pytest.raises(InputError, match=match):
        fit_ngram_score(**{**given, **change})


def test_one_group_is_not_enough() -> None:
    some = np.array([1], dtype=np.int32)
    with pytest.raises(TrainingError, match="two texts"):
        fit_ngram_score([some] * 3, np.array([0.0, 1.0, 1.0]), np.zeros(3, dtype=int), kind="ridge", bits=2)
