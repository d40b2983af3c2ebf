"""Bodies of requests: read without judging them, passed on with the same meaning and, as far as it goes, the same bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.gateway.messages.body import asking_for_usage, parameters_of, prompt_of, read_body

BOTH = {"include_usage": True, "continuous_usage_stats": True}


def edited(text: str, *, chat: bool = True) -> str:
    return asking_for_usage(read_body(text.encode(), chat=chat)).decode()


def test_usage_is_asked_for_in_the_bytes() -> None:
    text = ' { "temperature": 1.0e0, "x": [1, 2.50], "stream": true, "messages": [{"role":"user","content":"\\u4f60"}]}'
    options = '"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
    assert edited(text) == text[:2] + options + text[2:]


@pytest.mark.parametrize(
    "options", ["null", '{"include_usage": false}', '{"include_usage": true}', '{"include_usage": true, "z": 1.0}']
)
def test_options_that_are_there_are_completed(options: str) -> None:
    text = f'{{"seed": 10000000000000000000000, "top_p": 0.10, "stream": true, "stream_options": {options}, "a": null}}'
    left = edited(text)
    told: dict[str, Any] = json.loads(options) or {}
    assert json.loads(left) == {**json.loads(text), "stream_options": told | BOTH}
    before, _, after = text.partition(options)
    assert left.startswith(before) and left.endswith(after), "every other byte stays"


@pytest.mark.parametrize(
    "text",
    [
        '{"stream": false}',
        '{"messages": []}',
        '{"stream": "true"}',
        '{"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}}',
        '{"stream": true, "stream_options": {}}',
        '{"stream": true, "stream_options": "yes"}',
        '{"stream": true, "stream_options": {"include_usage": 1}}',
        '{"stream": true, "stream_options": {"include_usage": false, "continuous_usage_stats": true}}',
        "not json",
        '{"stream": true, "temperature": NaN}',
        "[1]",
        "",
    ],
)
def test_what_is_not_ours_to_change_is_passed_on_as_it_came(text: str) -> None:
    assert edited(text) == text


VALUES = st.none() | st.booleans() | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=40)
@given(
    st.dictionaries(st.text(max_size=6), VALUES | st.lists(VALUES, max_size=3), max_size=5),
    st.sampled_from([None, {"include_usage": False}, {"include_usage": True}]),
)
def test_everything_else_means_the_same(members: dict[str, Any], options: dict[str, bool] | None) -> None:
    members.pop("stream_options", None)
    whole = {**members, "stream": True} | ({} if options is None else {"stream_options": options})
    sent = json.loads(asking_for_usage(read_body(json.dumps(whole).encode(), chat=True)))
    assert sent.pop("stream_options") == (options or {}) | BOTH
    whole.pop("stream_options", None)
    assert sent == whole


@pytest.mark.parametrize("cap", [None, 0, -1, 1_000_000_000, "3", 1e9, True, [], 1e300])
def test_senseless_caps_are_not_read_and_break_nothing(cap: object) -> None:
    body = read_body(json.dumps({"messages": [], "max_tokens": cap}).encode(), chat=True)
    assert body.readable and body.max_tokens is None


def test_caps() -> None:
    assert read_body(b'{"max_tokens": 7}', chat=True).max_tokens == 7
    assert read_body(b'{"max_tokens": 7, "max_completion_tokens": 5}', chat=True).max_tokens == 5
    assert read_body(b'{"max_tokens": 7, "max_completion_tokens": 5}', chat=False).max_tokens == 7
    assert read_body(b'{"prompt": "a"}', chat=False).max_tokens == 16, "the default of /v1/completions"


def test_prompts_of_every_shape_have_a_size() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 10
    plain = read_body(json.dumps({"prompt": text}).encode(), chat=False)
    chat = read_body(json.dumps({"messages": [{"role": "user", "content": text}]}).encode(), chat=True)
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 99_999}},
    ]
    mixed = read_body(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), chat=True)
    ids = read_body(json.dumps({"prompt": list(range(123))}).encode(), chat=False)
    assert plain.estimated_prompt == 100 and chat.estimated_prompt == mixed.estimated_prompt == 104
    assert ids.estimated_prompt == 123 and ids.exact_prompt and not plain.exact_prompt
    chinese = read_body(json.dumps({"prompt": "你好" * 50}).encode(), chat=False)
    assert 50 <= chinese.estimated_prompt <= 100


def test_lists_of_prompts_and_n_multiply() -> None:
    assert read_body(b'{"prompt": ["a b c", "d"], "n": 3}', chat=False).choices == 6
    assert read_body(b'{"prompt": [[1, 2], [3]]}', chat=False).choices == 2
    for n in ("null", "0", "-2", '"3"', "2.5", "true"):
        assert read_body(f'{{"n": {n}}}'.encode(), chat=True).choices == 1


FIELDS = ["model", "prompt", "messages", "n", "stream", "stream_options", "priority", "max_tokens"]
ODD = VALUES | st.integers() | st.lists(VALUES | st.dictionaries(st.just("content"), VALUES, max_size=1), max_size=2)


@settings(max_examples=60)
@given(
    st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=5).map(lambda v: json.dumps(v).encode())
)
def test_nothing_that_a_client_sends_breaks_reading(raw: bytes) -> None:
    for chat in (True, False):
        body = read_body(raw, chat=chat)
        assert body.raw == raw and body.choices >= 1 and body.estimated_prompt >= 1
        asking_for_usage(body)
        parameters_of(body)
        prompt_of(body)


def test_parameters_and_prompt() -> None:
    body = read_body(b'{"model": "m", "prompt": "hi", "top_k": 5, "stream": true, "max_tokens": 9}', chat=False)
    assert parameters_of(body) == {"top_k": 5}
    assert prompt_of(body) == ("hi", None)
    assert prompt_of(read_body(b'{"messages": [{"role": "user", "content": "x"}]}', chat=True)) == (
        None,
        ({"role": "user", "content": "x"},),
    )
