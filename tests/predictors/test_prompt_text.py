"""Which text an answer is to, whatever shape the request has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Request
from endcast.predictors.text.prompt_text import KEPT, MOST_PARTS, bounded, prompt_text, said_last
from endcast.predictors.text.remembered import MOST_TEXTS, Remembered


def text_of(*messages: Mapping[str, Any]) -> str | None:
    return prompt_text(Request(request_id="a", messages=messages))


def test_a_bare_prompt_is_the_text() -> None:
    assert prompt_text(Request(request_id="a", prompt="Why?")) == "Why?"
    assert prompt_text(Request(request_id="a", prompt="")) == ""
    assert prompt_text(Request(request_id="a")) is None


def test_of_a_conversation_it_is_what_the_user_said_last() -> None:
    assert (
        text_of(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "First"},
            {"role": "assistant", "content": "Answer"},
            {"role": "user", "content": [{"type": "text", "text": "Se"}, {"type": "image_url"}, {"text": "cond"}]},
            {"role": "tool", "content": "4"},
        )
        == "Second"
    )


def test_without_a_user_it_is_the_last_message() -> None:
    assert text_of({"role": "system", "content": "a"}, {"content": "b"}) == "b"
    assert text_of() is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "text"]), inner),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=5))
def test_malformed_messages_never_raise(messages: list[Any]) -> None:
    text = prompt_text(Request(request_id="a", messages=tuple(messages)))
    assert (text is None) == (not messages)


@given(st.text(max_size=50))
def test_what_is_within_the_bound_is_kept_whole(text: str) -> None:
    assert bounded(text) == text
    assert bounded(text * (2 * KEPT // max(len(text), 1))) == text * (2 * KEPT // max(len(text), 1))


def test_a_long_text_keeps_its_ends() -> None:
    text = "a" * KEPT + "b" * 492_000 + "c" * KEPT
    assert prompt_text(Request(request_id="a", prompt=text)) == "a" * KEPT + "\n" + "c" * KEPT
    parts = [{"text": "a"}, *[{"text": "b"}] * 5 * MOST_PARTS, {"text": "c"}]
    kept = text_of({"role": "user", "content": parts})
    assert kept is not None and len(kept) == 2 * MOST_PARTS and kept[0] + kept[-1] == "ac"


def test_only_the_last_message_is_read() -> None:
    messages = ({"role": "user", "content": "x" * 100}, {"role": "user", "content": "y"})
    assert said_last(Request(request_id="a", messages=messages)) == "y"


def test_what_is_remembered_is_read_once() -> None:
    read: list[str] = []

    def count(kept: str, characters: int) -> int:
        read.append(kept)
        return characters

    remembered = Remembered(count)
    long = "a" * 3 * KEPT
    assert [remembered("one"), remembered("one"), remembered(long), remembered(long + "a")] == [3, 3, 12_000, 12_001]
    assert read == ["one", bounded(long), bounded(long)]


@pytest.mark.parametrize("more", [0, 5])
def test_what_is_remembered_is_bounded(more: int) -> None:
    read: list[str] = []

    def note(kept: str, characters: int) -> int:
        read.append(kept)
        return characters

    remembered = Remembered(note)
    for number in range(MOST_TEXTS + more):
        remembered(str(number))
    remembered("0")
    assert read.count("0") == (2 if more else 1)
    assert len(remembered._found) <= MOST_TEXTS
