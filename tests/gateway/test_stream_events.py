"""Server-sent events and frames: whole again however they were cut, and usage cut out of them byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.gateway.streams.events import EventSplitter, data_of
from endcast.router.gateway.streams.frames import read_frame, usage_of, without_usage

STREAM = (
    'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    ": a comment\n\n"
    'data: {"id":"1","choices":[{"index":0,"delta":{"content":"你好 🌍 \\n\\n"}}]}\r\n\r\n'
    'data:{"id":"1","choices":[]}\n\n'
    "event: x\rdata: one\rdata: two\r\r"
    "data: [DONE]\n\n"
).encode()
DATA = [
    b'{"id":"1","choices":[{"index":0,"delta":{"role":"assistant"}}]}',
    b"",
    '{"id":"1","choices":[{"index":0,"delta":{"content":"你好 🌍 \\n\\n"}}]}'.encode(),
    b'{"id":"1","choices":[]}',
    b"one\ntwo",
    b"[DONE]",
]


def fed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest


def data_without_blanks(events: list[bytes]) -> list[bytes]:
    """Data of the events; a cut between CR and LF can leave the LF at the beginning of the next event."""
    return [data_of(event) for event in events]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, len(STREAM)])
def test_a_stream_in_pieces_of_any_size_is_the_same_events(size: int) -> None:
    events, rest = fed([STREAM[i : i + size] for i in range(0, len(STREAM), size)])
    assert b"".join(events) + rest == STREAM and rest == b""
    assert data_without_blanks(events) == DATA


def test_cut_at_every_byte_it_is_the_same_events() -> None:
    for cut in range(len(STREAM) + 1):
        events, rest = fed([STREAM[:cut], STREAM[cut:]])
        assert b"".join(events) == STREAM and rest == b""
        assert data_without_blanks(events) == DATA, cut


@given(st.lists(st.binary(max_size=6)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_no_byte_is_changed_whatever_comes(pieces: list[bytes], end: bytes) -> None:
    pieces = [piece.replace(b"\n", end) for piece in pieces]
    events, rest = fed(pieces)
    assert b"".join(events) + rest == b"".join(pieces)


@given(st.text(alphabet="a}\n", max_size=20), st.data())
def test_events_do_not_depend_on_where_lf_streams_are_cut(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    assert fed([whole]) == fed([whole[:cut], whole[cut:]])


def test_what_is_not_complete_is_kept_back() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.rest == b"data: 1\n"
    assert splitter.feed(b"\ndata: 2") == [b"data: 1\n\n"]
    assert splitter.rest == b"data: 2"


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "details": {"a": [1, "}"]}}
CHUNK = {"id": "x", "choices": [{"index": 0, "delta": {"content": 'say ","usage":{"no":1}'}}]}


@pytest.mark.parametrize("spaced", [False, True], ids=["compact", "spaced"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"], ids=["lf", "crlf"])
def test_usage_is_cut_out_and_the_rest_stays(place: str, spaced: bool, end: str) -> None:
    items: list[tuple[str, object]] = list(CHUNK.items())
    items.insert({"first": 0, "middle": 1, "last": 2}[place], ("usage", USAGE))
    separators = (", ", ": ") if spaced else (",", ":")
    event = f"data: {json.dumps(dict(items), separators=separators)}{end}".encode()
    frame = read_frame(data_of(event))
    assert frame is not None
    usage = usage_of(frame)
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (7, 3)
    left = without_usage(event, frame)
    assert json.loads(data_of(left)) == CHUNK
    if not spaced:
        assert left == f"data: {json.dumps(CHUNK, separators=separators)}{end}".encode()


@pytest.mark.parametrize(
    "data",
    ['{"choices":[{"delta":{"usage":{"a":1}}}]}', '{"choices":[],"usage":null}', '{"choices":[{"text":"a"}]}'],
)
def test_what_has_no_usage_is_left_alone(data: str) -> None:
    event = f"data: {data}\n\n".encode()
    frame = read_frame(data_of(event))
    assert frame is not None and without_usage(event, frame) == event


@pytest.mark.parametrize("data", [b"[DONE]", b"", b"hello", b"[1]", b'{"choices": 3}', b"\xff", b"[" * 100_000])
def test_what_is_no_chunk_is_none(data: bytes) -> None:
    assert read_frame(data) is None


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.text(max_size=8) | st.integers() | st.lists(st.text()), max_size=4
    )
)
def test_usage_is_cut_out_of_any_chunk(members: dict[str, object]) -> None:
    members.pop("choices", None)
    chunk = {key: value for key, value in members.items() if key not in ("usage", "error")}
    whole = {**chunk, "choices": [], "usage": USAGE}
    event = b"data: " + json.dumps(whole).encode() + b"\n\n"
    frame = read_frame(data_of(event))
    assert frame is not None
    assert json.loads(data_of(without_usage(event, frame))) == {**chunk, "choices": []}
