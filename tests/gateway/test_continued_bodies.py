"""Requests that engines gave back, as they are sent again: what goes in, what stays, and what cannot go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.messages.continuing import (
    continued,
    obstacle,
    stops_of,
    wants_token_ids,
    without_begun_stop,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def sent_again(
    body: dict[str, Any] | bytes, text: str, tokens: int, ids: list[int] | None = None, *, chat: bool
) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    read = read_body(raw, chat=chat)
    assert obstacle(read) == ""
    found = continued(read, text, tokens, ids)
    return None if found is None else json.loads(found.raw)


def test_a_text_goes_on_behind_the_prompt_and_a_chat_within_its_last_message() -> None:
    assert sent_again({"prompt": "a", "max_tokens": 9}, " b", 2, chat=False) == {"prompt": "a b", "max_tokens": 7}
    assert sent_again({"prompt": ["a"], "max_tokens": 9}, " b", 2, chat=False)["prompt"] == ["a b"]
    ids = {"prompt": [5, 6], "return_token_ids": True, "max_tokens": 9, "stream": True}
    assert sent_again(ids, "xy", 2, [7, 8], chat=False)["prompt"] == [5, 6, 7, 8]
    assert sent_again(ids | {"prompt": [[5]]}, "xy", 2, [7, 8], chat=False)["prompt"] == [[5, 7, 8]]
    chat = sent_again({"messages": MESSAGES, "max_completion_tokens": 9, "max_tokens": None}, "said", 2, chat=True)
    assert chat == {
        "messages": [*MESSAGES, {"role": "assistant", "content": "said"}],
        "max_completion_tokens": 7,
        "max_tokens": None,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    own = [*MESSAGES, {"role": "assistant", "content": "Once", "name": "x"}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    chat = sent_again({"messages": own, **flags}, " upon", 1, chat=True)
    assert chat == {"messages": [*MESSAGES, {"role": "assistant", "content": "Once upon", "name": "x"}], **flags}


def test_caps_are_what_is_left_of_them() -> None:
    assert sent_again({"prompt": "a"}, "b", 2, chat=False)["max_tokens"] == 14, "16 unless given"
    assert sent_again({"prompt": "a", "max_tokens": None}, "b", 2, chat=False)["max_tokens"] is None
    assert "max_tokens" not in sent_again({"messages": MESSAGES}, "b", 2, chat=True)
    assert sent_again({"messages": MESSAGES, "max_tokens": 2}, "b", 2, chat=True) is None
    assert sent_again(b'{"prompt":"a","max_tokens":9.0,"min_tokens":1}', "b", 2, chat=False)["max_tokens"] == 7
    both = sent_again({"messages": MESSAGES, "max_tokens": 9, "max_completion_tokens": 8}, "b", 2, chat=True)
    assert (both["max_tokens"], both["max_completion_tokens"]) == (7, 6)
    least = sent_again({"prompt": "a", "min_tokens": 3, "max_tokens": 9}, "b", 2, chat=False)
    assert (least["min_tokens"], least["max_tokens"]) == (1, 7)
    ignored = sent_again({"prompt": "a", "max_completion_tokens": 1}, "b", 2, chat=False)
    assert (ignored["max_completion_tokens"], ignored["max_tokens"]) == (1, 14)


def test_what_said_nothing_is_sent_as_it_was() -> None:
    assert sent_again({"messages": MESSAGES}, "", 2, chat=True) == {"messages": MESSAGES}


@pytest.mark.parametrize(
    ("members", "chat", "why"),
    [
        ({"n": 2}, True, "several answers"),
        ({"prompt": ["a", "b"]}, False, "several answers"),
        ({"best_of": 3}, False, "several answers"),
        ({"use_beam_search": True}, False, "use_beam_search"),
        ({"logprobs": 0}, False, "logprobs"),
        ({"logprobs": True}, True, "logprobs"),
        ({"prompt_logprobs": 1}, True, "prompt_logprobs"),
        ({"echo": True}, False, "echo"),
        ({"suffix": "end"}, False, "suffix"),
        ({"response_format": {"type": "json_object"}}, True, "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, True, "structured_outputs"),
        ({"guided_choice": ["a", "b"]}, False, "guided_choice"),
        ({"tool_choice": "required"}, True, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, True, "tool_choice"),
        ({"truncate_prompt_tokens": 9}, False, "truncate_prompt_tokens"),
        ({"kv_transfer_params": {"a": 1}}, True, "kv_transfer_params"),
        ({"max_tokens": "9"}, True, "max_tokens"),
        ({"min_tokens": -1}, False, "min_tokens"),
        ({"add_generation_prompt": False}, True, "add_generation_prompt"),
        ({"continue_final_message": True}, True, "continue_final_message"),
        ({"messages": []}, True, "messages"),
        ({"messages": "hi"}, True, "messages"),
        ({"prompt": [1, 2]}, False, "token ids without return_token_ids"),
        ({"prompt": [1, 2], "return_token_ids": True}, False, "token ids that are not streamed"),
        ({"return_token_ids": True}, False, "return_token_ids"),
        ({"return_token_ids": True}, True, "return_token_ids"),
        ({"return_prompt_text": True}, True, "return_prompt_text"),
        ({"prompt": {"a": 1}}, False, "prompt"),
        ({"prompt": None}, False, "prompt"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_exactly(members: dict[str, Any], chat: bool, why: str) -> None:
    whole: dict[str, Any] = ({"messages": MESSAGES} if chat else {"prompt": "a"}) | members
    assert obstacle(read_body(json.dumps(whole).encode(), chat=chat)) == why


@pytest.mark.parametrize(
    "raw", [b"", b"[1]", b"no json", b'{"prompt": "a", "temperature": NaN}', b'\xef\xbb\xbf{"prompt": "a"}']
)
def test_what_only_lenient_readers_take_is_not_sent_again(raw: bytes) -> None:
    assert obstacle(read_body(raw, chat=False)) == "the body is not strict JSON"


@pytest.mark.parametrize(
    "harmless",
    [{"logprobs": None}, {"echo": False}, {"n": 1}, {"best_of": 1}, {"tools": [{"a": 1}]}, {"tool_choice": "auto"},
     {"response_format": {"type": "text"}}, {"stop": ["x"]}, {"seed": 0}, {"logit_bias": {}}, {"guided_json": None}],
)  # fmt: skip
def test_what_does_not_hinder(harmless: dict[str, Any]) -> None:
    assert obstacle(read_body(json.dumps({"messages": MESSAGES, **harmless}).encode(), chat=True)) == ""


def test_ids_are_wanted_only_where_the_prompt_is_ids() -> None:
    asked = {"return_token_ids": True}
    assert wants_token_ids(read_body(json.dumps({"prompt": [1], **asked}).encode(), chat=False))
    assert not wants_token_ids(read_body(json.dumps({"prompt": "a", **asked}).encode(), chat=False))
    assert not wants_token_ids(read_body(b'{"prompt": [1]}', chat=False))


def test_a_begun_stop_text_is_generated_anew() -> None:
    stops = stops_of(read_body(b'{"prompt": "a", "stop": ["END", "\\n\\n", 7]}', chat=False))
    assert stops == ("END", "\n\n")
    assert without_begun_stop("abc EN", stops) == "abc "
    assert without_begun_stop("abc\n", stops) == "abc"
    assert without_begun_stop("abc", stops) == "abc"
    assert without_begun_stop("END", stops) == "END", "a whole one would have ended it"
    assert stops_of(read_body(b'{"prompt": "a", "stop": "x", "include_stop_str_in_output": true}', chat=False)) == ()
    assert stops_of(read_body(b'{"prompt": "a", "stop": null}', chat=False)) == ()
    assert without_begun_stop("abc", ()) == "abc"


@given(
    extra=st.dictionaries(
        st.sampled_from(["temperature", "top_p", "seed", "stop", "user", "odd", "model", "stream", "metadata"]),
        st.sampled_from(["1.50", "1e0", "-0.0", "null", '"\\u00e9\\ud83c\\udf0d"', '{"a" : [1 , 2.0]}', "12345678901234567890", "true"]),
    ),
    text=st.text(max_size=20),
    cap=st.none() | st.integers(1, 50),
    tokens=st.integers(0, 60),
    chat=st.booleans(),
)  # fmt: skip
def test_all_other_members_keep_their_bytes(
    extra: dict[str, str], text: str, cap: int | None, tokens: int, chat: bool
) -> None:
    text = text.encode("utf-8", "replace").decode()
    lead = f'"messages": {json.dumps(MESSAGES)}' if chat else '"prompt": "p\\u00e9"'
    members = [lead, *(f'"{name}" : {raw}' for name, raw in extra.items())]
    members += [] if cap is None else [f'"max_tokens": {cap}']
    body = read_body(("{" + ", ".join(members) + "}").encode(), chat=chat)
    assert obstacle(body) == ""
    found = continued(body, text, tokens)
    most = cap if cap is not None or chat else 16
    if most is not None and tokens >= most and (cap is not None):
        assert found is None
        return
    if found is None:
        assert cap is None and not chat and tokens >= 16
        return
    for name, raw in extra.items():
        assert f'"{name}":{raw}'.encode() in found.raw
    told = json.loads(found.raw)
    assert told.get("max_tokens", most) == (None if most is None else most - tokens)
    said = told["messages"][-1]["content"] if chat and text else told.get("prompt", "")
    assert said == (text if chat and text else "" if chat else "p\u00e9" + text)
    own = {"prompt", "messages", "max_tokens", "continue_final_message", "add_generation_prompt"}
    assert set(told) - own == set(extra)
    assert found.streams == body.streams and found.model == body.model
