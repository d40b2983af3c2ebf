"""Hashed words of prompts and of the ends of outputs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.predictors.text.ngrams import (
    MOST_WORDS,
    PROMPT_BITS,
    TAIL_BITS,
    Grams,
    NgramScore,
    hashed,
    hashed_tail,
)
from endcast.predictors.text.prompt_grams import prompt_grams

TAIL = " plenty of water.\n\n3. **Sleep**: 7 to 9 hours.\n\nIn conclusion, a healthy life"
HEAD = "In conclusion, a healthy"


def readings(text: str) -> list[tuple[Grams, int]]:
    return [
        (hashed(text), PROMPT_BITS),
        (hashed(text, 13), 13),
        (hashed_tail(text, text), TAIL_BITS),
        (prompt_grams(text), PROMPT_BITS),
        (hashed(text, 10, ["mark", text.encode("utf-8", "replace").decode()]), 10),
    ]


@given(st.text(max_size=80))
def test_grams_are_sorted_distinct_and_within_the_table(text: str) -> None:
    for grams, bits in readings(text):
        assert grams.dtype == np.int32 and (np.diff(grams) > 0).all()
        assert not grams.size or 0 <= grams[0] <= grams[-1] < 1 << bits


def test_they_are_the_same_in_every_process() -> None:
    code = (
        "from endcast.predictors.text.ngrams import *; from endcast.predictors.text.prompt_grams import *;"
        f"print(hashed_tail({TAIL!r}, {HEAD!r}).tolist(), prompt_grams({TAIL!r}).tolist())"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert shown == {f"{hashed_tail(TAIL, HEAD).tolist()} {prompt_grams(TAIL).tolist()}"}


def test_bundles_can_rely_on_the_hashes() -> None:
    """Pinned from this code: a change of the hash makes every table in every bundle meaningless."""
    assert hashed("Why not?").tolist() == [455, 4080, 15232, 17072, 29506, 29916, 32117]
    assert hashed_tail("so\n", "so").tolist() == [1027, 1683, 1688, 9857, 10063, 12358, 13829]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("List the FACTS", "list the facts"),
        ("pick 37 of them", "pick 85 of them"),
        ("１２ cats", "12 cats"),
        ("cafe\u0301", "café"),
    ],
)
def test_what_makes_no_difference(one: str, other: str) -> None:
    assert hashed(one).tolist() == hashed(other).tolist()


@pytest.mark.parametrize(("one", "other"), [("a b", "b a"), ("7 cats", "77 cats"), ("Why not", "Why not?")])
def test_what_makes_a_difference(one: str, other: str) -> None:
    assert hashed(one).tolist() != hashed(other).tolist()


def test_scripts_without_blanks_are_read_by_character() -> None:
    shared = np.intersect1d(hashed("我喜欢猫", 31), hashed("他不喜欢狗", 31))
    assert len(shared) == 3  # two characters and their pair
    assert len(np.intersect1d(hashed_tail("我喜欢猫。然后", "", 31), hashed_tail("他喜欢狗。但是", "", 31))) >= 3


def test_only_the_ends_of_a_long_prompt_count() -> None:
    first, last = (" ".join(f"{side}{chr(97 + i % 26) * (i // 26 + 1)}" for i in range(MOST_WORDS)) for side in "xy")
    grams = hashed(f"{first} {'middle ' * 1000}{last}")
    np.testing.assert_array_equal(grams, hashed(f"{first} {'other ' * 7}{last}"))
    assert not np.array_equal(grams, hashed(f"{first} {'middle ' * 1000}{last} z"))


def test_a_tail_tells_where_its_last_words_stand() -> None:
    assert hashed_tail("x the end of it", "").tolist() != hashed_tail("the end of it x", "").tolist()
    moved = np.setxor1d(hashed_tail("b c d a", "", 31), hashed_tail("b c d a b", "", 31))
    assert len(moved) > 2  # not only the new word and its pair


def test_the_head_of_the_line_is_no_part_of_the_tail() -> None:
    bare, headed = hashed_tail("we are done", "", 31), hashed_tail("we are done", "Finally we", 31)
    assert set(bare) - set(headed) and len(set(headed) - set(bare)) == 3  # two words, and both together
    assert not set(hashed_tail("", "Finally", 31)) & set(hashed_tail("Finally", "", 31))


def test_marks_are_not_words() -> None:
    assert len(set(hashed("cat", 31, ["cat"])) - set(hashed("cat", 31))) == 1
    assert set(hashed("name ten cats")) < set(prompt_grams("name ten cats"))


def test_what_is_asked_is_in_the_grams_of_a_prompt() -> None:
    """Two ways to ask for the same share more than their words."""
    one, other = "Summarize in 3 sentences", "Résume en trois phrases"
    assert not set(hashed(one)) & set(hashed(other))
    assert len(set(prompt_grams(one)) & set(prompt_grams(other))) >= 4


def test_the_score_of_a_text() -> None:
    table = np.zeros(1 << 4, dtype=np.float32)
    table[[1, 2, 5]] = 1.0, 2.0, 6.0
    score = NgramScore(table, 0.5)
    assert score.of(np.array([1, 2, 5, 9], dtype=np.int32)) == pytest.approx(0.5 + 9 / 2)
    assert score.of(np.array([], dtype=np.int32)) == 0.5


HARD = ("x", "no_blanks", "long ", "\n", "👩‍🚀", "\u0301", "\ud800", "漢", "كتب ", "1", "1.", '"', "a\u0301")


@pytest.mark.parametrize("unit", HARD)
@pytest.mark.parametrize("read", [hashed, prompt_grams, lambda text: hashed_tail(text, text)])
def test_half_a_million_characters(unit: str, read: Callable[[str], Grams]) -> None:
    """CPU time: ``hashed`` alone reads all of it, the others what is bounded."""
    start = time.process_time()
    grams = read(unit * (500_000 // len(unit)))
    assert time.process_time() - start < 3.0
    assert grams.size <= 4 * MOST_WORDS + 100
