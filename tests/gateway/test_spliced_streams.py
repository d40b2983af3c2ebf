"""Two streams told as one: markers kept, ids and counts of the whole, whatever the bytes are cut into."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.streams.events import data_of, with_data
from endcast.router.gateway.streams.frames import Choice
from endcast.router.gateway.streams.joined import joined
from endcast.router.gateway.streams.so_far import SoFar
from endcast.router.gateway.streams.splice import Before, Splice, before_of
from endcast.types import EndReason

WIRES = {"lf": ("data: ", "\n\n"), "crlf": ("data:", "\r\n\r\n"), "fields": ("event: message\nid: 7\ndata: ", "\n\n")}


def event(frame: dict[str, Any] | str, wire: str = "lf") -> bytes:
    text = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    return f"{WIRES[wire][0]}{text}{WIRES[wire][1]}".encode()


def frames(
    name: str,
    words: list[str],
    *,
    prompt: int,
    end: dict[str, Any],
    chat: bool = True,
    before: int = 0,
    role: bool = True,
) -> list[dict[str, Any]]:
    """A stream as vLLM sends it, with usage in every event; tokens are words."""

    def chunk(choice: dict[str, Any], tokens: int) -> dict[str, Any]:
        told: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None} | choice
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        return {"id": name, "object": "chat.completion.chunk" if chat else "text_completion", "created": len(name),
                "model": "m", "choices": [told], "usage": usage}  # fmt: skip

    found = [chunk({"delta": {"role": "assistant", "content": ""}}, before)] if chat and role else []
    for i, word in enumerate(words, start=before + 1):
        found.append(chunk({"delta": {"content": word}} if chat else {"text": word}, i))
    tokens = before + len(words)
    empty: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    found.append(chunk(empty | end, tokens))
    details = {"prompt_tokens_details": {"cached_tokens": 4 if name == "first" else 9}}
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens, **details}
    return [*found, {"id": name, "object": "x", "created": len(name), "model": "m", "choices": [], "usage": usage}]


MARKER = {"finish_reason": "stop", "stop_reason": "recomputed"}
END = {"finish_reason": "length", "stop_reason": None}
HEAD, TAIL = ["\u4f60", " \U0001f30d", '"id":"x"', "\n"], [" \\ends", " caf\u00e9"]


def streams(wire: str, chat: bool) -> tuple[bytes, bytes, bytes]:
    """What the first engine says, what the second does, and what one alone would have said."""
    first = frames("first", HEAD, prompt=7, end=MARKER, chat=chat)
    second = frames("second-one", TAIL, prompt=13, end=END, chat=chat)
    alone = frames("first", HEAD + TAIL, prompt=7, end=END, chat=chat)
    first_b, second_b, alone_b = (
        b"".join([*(event(frame, wire) for frame in told), event("[DONE]", wire)]) for told in (first, second, alone)
    )
    return first_b, second_b, alone_b


def usage_cut(stream: bytes, wire: str, *, keep_total: bool) -> bytes:
    """``stream`` without what a client does not get that asked for no usage, or for the total only."""
    kept = []
    for one in stream.decode().split(WIRES[wire][1])[:-1]:
        text = one.removeprefix(WIRES[wire][0])
        if text != "[DONE]":
            frame = json.loads(text)
            if not frame["choices"] and not keep_total:
                continue
            if frame["choices"]:
                del frame["usage"]
            text = frame
        kept.append(event(text, wire))
    return b"".join(kept)


class Books:
    """Stands for dispatcher and core: keeps what it is told."""

    reads = False

    def __init__(self) -> None:
        self.core, self.tokens, self.prompt = self, 0, 0

    def on_prompt(self, ticket: object, tokens: int) -> None:
        self.prompt = tokens

    def on_tokens(self, ticket: object, generated: int, now_s: float, answer: int, events: int) -> bool:
        assert generated > self.tokens
        self.tokens = generated
        return True

    def on_answer_end(self, ticket: object, answer: int) -> None:
        pass

    def stepped(self) -> None:
        pass


class Told:
    """A client's one stream from two engines', without HTTP."""

    def __init__(self, options: Any, *, chat: bool = True, hindrance: str = "") -> None:
        self.books = Books()
        books: Any = self.books
        body = read_body(json.dumps({"stream": True, "stream_options": options}).encode(), chat=chat)
        self.so_far = SoFar(lambda: hindrance, wants_ids=False)
        strips = options != {"include_usage": True, "continuous_usage_stats": True}
        self.account = Account(
            books, books, body,
            strips=strips, keeps_text=True, clock=lambda: 0.0, so_far=self.so_far,
        )  # fmt: skip

    def feed(self, pieces: list[bytes]) -> bytes:
        return b"".join(map(self.account.feed, pieces))

    def before(self) -> Before:
        tokens = max(self.account.tokens[0], self.so_far.told_tokens)
        told = before_of(data_of(self.so_far.kept[0]), self.account.prompt_tokens, tokens, self.so_far.usage)
        self.so_far.take_kept()
        return told


def cuts(data: bytes) -> Iterator[list[bytes]]:
    yield from ([data[:cut], data[cut:]] for cut in range(len(data) + 1))
    yield [data[i : i + 1] for i in range(len(data))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "chat", "wire"),
    [
        (None, True, "lf"),
        (None, False, "fields"),
        ({"include_usage": True}, True, "crlf"),
        ({"include_usage": True}, False, "lf"),
        ({"include_usage": True, "continuous_usage_stats": True}, True, "fields"),
        ({"include_usage": True, "continuous_usage_stats": True}, False, "crlf"),
    ],
)
def test_one_stream_cut_at_every_byte(options: Any, chat: bool, wire: str) -> None:
    first, second, alone = streams(wire, chat)
    wanted = alone if options and len(options) > 1 else usage_cut(alone, wire, keep_total=bool(options))

    head: bytes | None = None
    for pieces in cuts(first):
        told = Told(options, chat=chat)
        sent = told.feed(pieces)
        head = sent if head is None else head
        assert sent == head and wanted.startswith(sent) and b"recomputed" not in sent
        assert told.account.given_back and not told.account.complete
        assert told.so_far.text == "".join(HEAD) and (told.books.prompt, told.books.tokens) == (7, 4)
    for pieces in cuts(second):
        told = Told(options, chat=chat)
        sent = told.feed([first])
        splice = Splice(told.before())
        told.account.tokens[0] = 4
        sent += told.feed([splice.feed(piece) for piece in pieces]) + told.account.feed(splice.take_rest())
        sent += told.account.rest()
        assert sent == wanted
        assert told.account.ends == {0: EndReason.LENGTH} and told.account.done
        assert (told.account.prompt_tokens, told.account.total_tokens, told.account.tokens) == (7, 6, {0: 6})
        assert "".join(told.account.texts[0]) == "".join(HEAD + TAIL)


def test_what_cannot_go_on_after_all_passes_as_it_came() -> None:
    first, _, _ = streams("crlf", chat=True)

    told = Told(None)
    plain = Told(None, hindrance="n")
    sent = told.feed([first])
    sent += told.account.feed(told.account.pass_on()) + told.account.rest()
    assert sent == plain.feed([first]) + plain.account.rest() and b"recomputed" in sent
    for one in (told, plain):
        assert one.account.ends == {0: EndReason.UNFINISHED} and one.account.complete
    assert plain.so_far.obstacle == "n"


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        ({"reasoning_content": "hm"}, "reasoning"),
        ({"reasoning": "hm"}, "reasoning"),
        ({"content": "<think>hm"}, "reasoning"),
        ({"tool_calls": [{"index": 0}]}, "tool calls"),
    ],
)
@pytest.mark.parametrize("at", ["before", "in the marker"])
def test_what_was_said_may_hinder(delta: dict[str, Any], why: str, at: str) -> None:
    told_frames = frames("first", ["a"], prompt=7, end=MARKER)
    if at == "before":
        told_frames[1]["choices"][0]["delta"] = delta
    elif why == "tool calls":
        told_frames[2]["choices"][0]["delta"] = delta
    else:
        return

    told = Told(None)
    sent = told.feed([event(frame) for frame in told_frames])
    assert b"recomputed" in sent and not told.account.given_back and told.so_far.obstacle == why


def test_text_in_the_marker_is_generated_anew() -> None:
    """Engines let go there of what they held back for a stop text to show: the next engine must see that begin."""
    told_frames = frames("first", ["a"], prompt=7, end=MARKER)
    told_frames[2]["choices"][0]["delta"] = {"content": " EN"}

    told = Told(None)
    assert b" EN" not in told.feed([event(frame) for frame in told_frames])
    assert told.so_far.text == "a"
    assert b" EN" in told.account.feed(told.account.pass_on())


def test_counts_only_at_the_end() -> None:
    """An engine that is not asked for usage: chunks are tokens until the total is told."""
    first = frames("first", ["a", "b"], prompt=7, end=MARKER)
    second = frames("second", ["c"], prompt=9, end=END)
    for frame in [*first[:-1], *second[:-1]]:
        del frame["usage"]
    first[-1]["usage"]["completion_tokens"] = 5

    told = Told({"include_usage": True, "continuous_usage_stats": True})
    told.feed([event(frame) for frame in first])
    assert told.account.tokens == {0: 2} and told.so_far.told_tokens == 5
    splice = Splice(told.before())
    told.account.tokens[0] = 5
    sent = told.feed([splice.feed(event(frame)) for frame in second])
    usage = json.loads(sent.split(b"\n\n")[-2].removeprefix(b"data: "))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 6, 10), "9 less 5"
    assert told.account.tokens == {0: 6}


def test_frames_that_are_odd_pass() -> None:
    splice = Splice(before_of(b'{"id":"a","created":1}', 3, 2))
    odd = [
        b": comment\n\n",
        b"data: [DONE]\n\n",
        b"data: no json\n\n",
        b'data: {"error":{"message":"x"}}\n\n',
        b"event: x\n\n",
    ]
    assert [splice.feed(one) for one in odd] == odd
    assert splice.feed(b'data: {"id":"b","choices":["prompt_token_ids"],"usage":7}\n\n') == (
        b'data: {"id":"a","choices":["prompt_token_ids"],"usage":7}\n\n'
    )
    assert (
        splice.feed(b'data: {"id":"b"') == b""
        and splice.take_rest() == b'data: {"id":"b"'
        and splice.take_rest() == b""
    )


def test_what_the_second_engine_says_of_its_prompt_is_not_told() -> None:
    splice = Splice(before_of(b"{}", 3, 2))
    sent = splice.feed(b'data: {"choices":[{"index":0,"text":"a","prompt_token_ids":[1,2]}]}\n\n')
    assert sent == b'data: {"choices":[{"index":0,"text":"a","prompt_token_ids":null}]}\n\n'


def test_data_in_several_lines_becomes_one() -> None:
    assert with_data(b"id: 1\ndata: a\ndata: b\nevent: x\n\n", b"{}") == b"id: 1\ndata: {}\nevent: x\n\n"
    assert with_data(b"\xef\xbb\xbfdata\r\n\r\n", b"{}") == b"\xef\xbb\xbfdata:{}\r\n\r\n"
    assert with_data(b"data: a\r\r", b"{}") == b"data: {}\r\r"


def test_answers_are_joined() -> None:
    first = b'{"id":"a","choices":[{"text":"x"}],"usage":{"prompt_tokens":3}}'
    last = (
        b'{"id":"b","choices":[{"text":"y","finish_reason":"stop","odd":1.50}],'
        b'"usage":{"prompt_tokens":4,"completion_tokens":1,"total_tokens":5}}'
    )
    assert joined(last, before_of(first, 3, 1), "x") == (
        b'{"id":"a","choices":[{"text":"xy","finish_reason":"stop","odd":1.50}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
    )


@pytest.mark.parametrize("texts", [["a", "b"], ["a", ""]])
def test_token_ids_go_on_only_from_whole_characters(texts: list[str]) -> None:
    so_far = SoFar(lambda: "", wants_ids=True)
    for i, text in enumerate(texts):
        so_far.hear(Choice(text=text), text, json.dumps({"choices": [{"text": text, "token_ids": [i, 9]}]}).encode())
    marker = Choice(finish_reason="stop", stop_reason="recomputed")
    assert so_far.token_ids == [0, 9, 1, 9] and so_far.keeps(marker) is all(texts)
    assert so_far.obstacle == ("" if all(texts) else "token ids that end within a character")
    so_far = SoFar(lambda: "", wants_ids=True)
    so_far.hear(Choice(text="a"), "a", b'{"choices":[{"text":"a"}]}')
    assert not so_far.keeps(marker) and so_far.obstacle == "token ids that were not told"
