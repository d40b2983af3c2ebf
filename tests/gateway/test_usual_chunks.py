"""The chunk that nearly every token comes in: read and cut in one go, exactly as the reader that knows all chunks does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.router.gateway.streams.events import data_of
from endcast.router.gateway.streams.frames import count, read_frame, text_of, usage_of, without_usage
from endcast.router.gateway.streams.usual import usual_chunk

USAGE = '"usage":{"prompt_tokens":3,"completion_tokens":5}'
CHAT = '{"index":0,"delta":{"content":"a"},"finish_reason":null}'


def event(*, choices: str = CHAT, behind: str = "," + USAGE, head: str = "", end: str = "\n\n") -> bytes:
    """A chunk of a chat, with members changed."""
    return f'data: {{{head}"object":"chat.completion.chunk","choices":[{choices}]{behind}}}{end}'.encode()


def test_what_a_usual_chunk_says() -> None:
    read = usual_chunk(event())
    assert read is not None
    chunk, without = read
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (3, 5)
    assert (chunk.choices[0].index, text_of(chunk.choices[0])) == (0, "a")
    assert without == event(behind="")


@pytest.mark.parametrize(
    "other",
    [
        event(behind=""),
        event(behind=',"usage":null'),
        event(behind=f',{USAGE},"x":1'),
        event(behind=f',"x":{{"y":1,{USAGE}}}'),
        event(behind=',"usage":{"prompt_tokens":3,"completion_tokens":5,"details":{"cached":1}}'),
        event(behind=',"usage":{"prompt_tokens":3,"completion_tokens":-5}'),
        event(behind=',"usage":{"prompt_tokens":3,"completion_tokens":1e400}'),
        event(behind=f',{USAGE},{USAGE}'),
        event(head=USAGE + ","),
        event(head='"error":{"message":"x"},'),
        event(choices=""),
        event(choices=CHAT + "," + CHAT),
        event(choices=CHAT.replace("null", '"stop"')),
        event(choices=CHAT.replace('"index":0', '"index":null')),
        event(choices=CHAT.replace('"a"', '"usage"')),
        event(end="\r\n\r\n"),
        event(end="\n\ndata: [DONE]\n\n"),
        event().replace(b",", b",\ndata:", 1),
        event().replace(b",", b"\r,", 1),
        b"id: 1\n" + event(),
        event().removeprefix(b"data: "),
        event()[:-1],
        event().replace(b"chat.completion.chunk", b"error"),
        b"",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_reader_of_all_chunks(other: bytes) -> None:
    assert usual_chunk(other) is None


_VALUES = st.recursive(
    st.none() | st.integers(-2, 9) | st.sampled_from(["", "usage", '","usage":{', "}", "\r\n", "你"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["usage", "x", '"']), inner, max_size=2)
    ),
    max_leaves=5,
)
_CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None, "0"]),
        "delta": st.fixed_dictionaries({}, optional={"content": _VALUES, "usage": _VALUES}),
        "finish_reason": st.sampled_from([None, None, "stop"]),
    },
)
_CHUNKS = st.fixed_dictionaries(
    {"object": st.sampled_from(["chat.completion.chunk", "text_completion", "error"])},
    optional={
        "x": _VALUES,
        "choices": st.lists(_CHOICES, max_size=2),
        "error": _VALUES,
        "usage": st.fixed_dictionaries({"prompt_tokens": st.just(3), "completion_tokens": st.integers(-1, 9)})
        | _VALUES,
    },
)


@given(_CHUNKS, st.randoms(), st.booleans(), st.booleans())
def test_whatever_is_read_as_usual_is_what_the_reader_of_all_chunks_reads(
    chunk: dict[str, Any], order: Any, shuffled: bool, tight: bool
) -> None:
    members = list(chunk.items())
    if shuffled:
        order.shuffle(members)
    told = json.dumps(dict(members), ensure_ascii=False, separators=(",", ":") if tight else None)
    sent = f"data: {told}\n\n".encode()
    read = usual_chunk(sent)
    if read is None:
        return
    usual, without = read
    frame = read_frame(data_of(sent))
    assert frame is not None and frame.choices is not None and not frame.is_error
    usage = usage_of(frame)
    assert usage is not None
    assert [usual.usage.prompt_tokens, usual.usage.completion_tokens] == [
        count(usage.prompt_tokens),
        count(usage.completion_tokens),
    ]
    assert [(c.index, c.finish_reason, text_of(c)) for c in frame.choices] == [
        (c.index, None, text_of(c)) for c in usual.choices
    ]
    assert without == without_usage(sent, frame)
