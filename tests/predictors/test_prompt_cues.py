"""Columns of what the prompt's text asks for and how it is built."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Request
from endcast.predictors.features.prompt_cues import PromptCues
from endcast.predictors.features.protocol import Columns
from endcast.predictors.grid import IntervalGrid

GRID = IntervalGrid(np.array([0, 10, 100]), -np.arange(101) / 50)


def columns_of(**known: Any) -> Columns:
    group = PromptCues(GRID)
    return group.transform(group.collect([Request(request_id="a", **known)]))


def told(prompt: str) -> dict[str, float]:
    return dict(zip(PromptCues.columns, columns_of(prompt=prompt).values[0].tolist(), strict=True))


def said(*messages: Mapping[str, Any]) -> dict[str, float]:
    return dict(zip(PromptCues.columns, columns_of(messages=messages).values[0].tolist(), strict=True))


def test_what_is_asked() -> None:
    told_of = told("Write a python poem of 12 lines in at most 100 words, briefly.")
    assert told_of["log_asked_lines"] == pytest.approx(math.log(12))
    assert told_of["log_asked_words"] == pytest.approx(math.log(100))
    assert math.isnan(told_of["log_asked_items"])
    assert [told_of[flag] for flag in ("code", "brief", "detailed", "intent_write", "intent_what")] == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("prompt", ["Why?", "Write it", "cat", "", "是什么"])
def test_there_is_one_intent_at_most(prompt: str) -> None:
    intents = [value for name, value in told(prompt).items() if name.startswith("intent_")]
    assert sum(intents) == (0 if prompt in ("cat", "") else 1)


def test_structure() -> None:
    told_of = told('Is "abc" at http://x.org\nworth 12 or 3? What?')
    assert told_of["log_characters"] == pytest.approx(math.log1p(45))
    assert told_of["log_lines"] == pytest.approx(math.log(2))
    assert told_of["log_questions"] == pytest.approx(math.log(3))
    assert told_of["log_numbers"] == pytest.approx(math.log(3))
    assert told_of["quoted_share"] == pytest.approx(5 / 45)
    assert [told_of[name] for name in ("ends_asking", "url", "code_fence", "non_ascii_share")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("prompt", "asks"),
    [("Why?", 1), ("Why? ", 1), ('"Why?"', 1), ("为什么？", 1), ("Why? Tell me.", 0), ("", 0), ("why", 0)],
)
def test_whether_it_ends_with_a_question(prompt: str, asks: float) -> None:
    assert told(prompt)["ends_asking"] == asks


def test_shares_of_scripts() -> None:
    told_of = told("猫 café!")
    assert told_of["non_ascii_share"] == pytest.approx(2 / 7) and told_of["cjk_share"] == pytest.approx(1 / 7)
    assert told("```a```")["code_fence"] == 1


def test_the_conversation() -> None:
    user = {"role": "user", "content": "Why?"}
    whole = said({"role": "system", "content": "x" * 99}, user, {"role": "assistant", "content": "x" * 30}, user)
    assert whole["log_messages"] == pytest.approx(math.log(5))
    assert whole["system_prompt"] == 1
    assert whole["log_earlier_answer"] == pytest.approx(math.log(31))
    assert whole["log_characters"] == pytest.approx(math.log(5))  # of what the user said last
    alone = said(user)
    assert alone["system_prompt"] == 0 and math.isnan(alone["log_earlier_answer"])


def test_intervals_beside_asked_words_and_sentences() -> None:
    intervals = columns_of(prompt="in 2 sentences and 20 words").intervals[0]
    np.testing.assert_allclose(intervals[:, 0], GRID.log_middle - math.log(20 * 1.35), rtol=1e-5)
    np.testing.assert_allclose(intervals[:, 1], GRID.log_middle - math.log(2 * 25), rtol=1e-5)
    assert np.isnan(columns_of(prompt="Why?").intervals).all()


@pytest.mark.parametrize(("prompt", "tokens"), [("under 280 characters please", 70.0), ("用200字回答这个问题", 200.0)])
def test_asked_characters_stand_in_for_words(prompt: str, tokens: float) -> None:
    intervals = columns_of(prompt=prompt).intervals[0]
    np.testing.assert_allclose(intervals[:, 0], GRID.log_middle - math.log(tokens), rtol=1e-4)


def test_without_a_text_all_is_unknown() -> None:
    for known in ({}, {"messages": ()}):
        columns = columns_of(**known)
        assert np.isnan(columns.values).all() and np.isnan(columns.intervals).all()


@given(st.text(max_size=60), st.integers(0, 3))
def test_nothing_is_infinite(text: str, before: int) -> None:
    columns = columns_of(
        messages=({"role": "assistant", "content": text},) * before + ({"role": "user", "content": text},)
    )
    assert not np.isinf(columns.values).any() and not np.isinf(columns.intervals).any()


HARD = (
    "x",
    "long ",
    "\n",
    '"',
    '"a',
    "«a",
    "“",
    "?",
    "? ",
    "http",
    "1",
    "1 ",
    "写十个句子",
    "👩‍🚀",
    "\u0301",
    "\ud800",
    "كتب ",
)


@pytest.mark.parametrize("unit", HARD)
def test_half_a_million_characters(unit: str) -> None:
    """CPU time; some milliseconds, where anything quadratic would take seconds."""
    request = Request(request_id="a", prompt=unit * (500_000 // len(unit)))
    start = time.process_time()
    raw = PromptCues(GRID).collect([request])
    assert time.process_time() - start < 0.5
    assert not np.isinf(raw).any() and raw[0, PromptCues.columns.index("log_characters")] > 13
