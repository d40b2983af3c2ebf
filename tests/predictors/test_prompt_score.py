"""The learned score of a prompt's words as a feature group."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from endcast import BundleError, Request
from endcast.predictors.features.prompt_score import STEP, PromptScore, grams_of
from endcast.predictors.features.protocol import LearnedGroup
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.text.ngrams import PROMPT_BITS, NgramScore

GRID = IntervalGrid(np.array([0, 1]), np.array([0.0, -1.0]))
PROMPT = Request(request_id="a", prompt="Why is the sky blue?")
BARE = Request(request_id="b", prompt_tokens=5)


def table(seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed).normal(size=1 << PROMPT_BITS).astype(np.float32)
    return {"table": drawn, "bias": np.array([5.25], dtype=np.float32)}


@pytest.fixture
def group() -> PromptScore:
    made = PromptScore(GRID)
    made.load_learned(table())
    return made


def test_it_knows_nothing_before_it_has_a_table() -> None:
    fresh = PromptScore(GRID)
    assert np.isnan(fresh.collect([PROMPT, BARE])).all() and dict(fresh.dump_learned()) == {}


def test_its_column_is_the_score_of_its_table(group: PromptScore) -> None:
    grams = grams_of(PROMPT)
    assert grams is not None and grams_of(BARE) is None
    expected = 5.25 + table()["table"][grams].sum() / math.sqrt(len(grams))
    raw = group.collect([PROMPT, BARE, PROMPT])
    assert (
        raw[0, 0] == pytest.approx(round(expected / STEP) * STEP, rel=1e-6)
        and np.isnan(raw[1, 0])
        and raw[2, 0] == raw[0, 0]
    )
    np.testing.assert_array_equal(group.transform(raw).values, raw)


def test_a_dumped_table_reads_as_the_original(group: PromptScore) -> None:
    assert isinstance(group, LearnedGroup)
    other = PromptScore(GRID)
    other.load_learned(group.dump_learned())
    np.testing.assert_array_equal(other.collect([PROMPT]), group.collect([PROMPT]))


def test_another_table_is_read_at_once(group: PromptScore) -> None:
    before = group.collect([PROMPT])
    group.load_learned(table(seed=1))
    assert group.collect([PROMPT]) != before
    group.load_learned({})
    assert np.isnan(group.collect([PROMPT])).all()


def test_out_of_fold_scores_take_the_place_of_its_own(group: PromptScore) -> None:
    raw = group.raw_from_scores([1.53, math.nan])
    assert raw.dtype == np.float32 and raw.shape == group.collect([PROMPT, BARE]).shape
    np.testing.assert_array_equal(group.transform(raw).values[:, 0], np.array([1.6, np.nan], dtype=np.float32))


def test_a_score_that_training_made_is_what_is_dumped() -> None:
    made = PromptScore(GRID)
    made.set_score(NgramScore(table()["table"], 5.25))
    assert made.dump_learned()["bias"].tolist() == [5.25]
    np.testing.assert_array_equal(made.dump_learned()["table"], table()["table"])


@pytest.mark.parametrize(
    "damage",
    [
        {"table": np.zeros(8, dtype=np.float32)},
        {"table": np.full(1 << PROMPT_BITS, np.nan, dtype=np.float32)},
        {"bias": np.zeros(2, dtype=np.float32)},
        {"bias": np.array([np.inf], dtype=np.float32)},
    ],
)
def test_a_table_that_does_not_fit_is_refused(damage: dict[str, np.ndarray]) -> None:
    with pytest.raises(BundleError, match="prompt_score"):
        PromptScore(GRID).load_learned({**table(), **damage})
    with pytest.raises(BundleError, match="prompt_score"):
        PromptScore(GRID).load_learned(damage)


def test_the_table_is_no_memory(group: PromptScore) -> None:
    assert msgspec.msgpack.encode(group.dump()) == msgspec.msgpack.encode(None)
