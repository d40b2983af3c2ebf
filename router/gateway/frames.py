"""What an event of an OpenAI stream says, and usage taken out of one whose client did not ask for it."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class Usage(msgspec.Struct, gc=False):
    """Token counts as the engine tells them; ``None`` for what it does not."""

    prompt_tokens: Any = None
    completion_tokens: Any = None


class Delta(msgspec.Struct, gc=False):
    """What a chat chunk adds."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class Choice(msgspec.Struct, gc=False):
    """One answer's part of a chunk."""

    index: Any = 0
    text: Any = None
    delta: Delta | None = None
    finish_reason: Any = None
    stop_reason: Any = None


class Frame(msgspec.Struct, gc=False):
    """A chunk. ``usage`` is kept raw as well as read, so that it can be found in the bytes."""

    choices: list[Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


class Whole(msgspec.Struct, gc=False):
    """An answer that is not streamed."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_FRAME = msgspec.json.Decoder(Frame)
_USAGE = msgspec.json.Decoder(Usage | None)
_WHOLE = msgspec.json.Decoder(Whole)
_NULL = b"null"


def read_frame(data: bytes) -> Frame | None:
    """The chunk in an event's data; ``None`` where it is none that is known (passed on all the same)."""
    try:
        return _FRAME.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_whole(data: bytes) -> Whole | None:
    """An answer's body; ``None`` where it is none that is known."""
    try:
        return _WHOLE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def usage_of(frame: Frame) -> Usage | None:
    """The counts in a chunk, if it has any."""
    raw = bytes(frame.usage)
    if raw == _NULL:
        return None
    try:
        return _USAGE.decode(raw)
    except msgspec.DecodeError:
        return None


def count(value: object) -> int | None:
    """A token count, if ``value`` is one: a whole number from 0 on."""
    return value if type(value) is int and value >= 0 else None


def text_of(choice: Choice) -> str:
    """The text that a chunk adds, reasoning included; empty for none."""
    delta = choice.delta
    if delta is None:
        return choice.text if isinstance(choice.text, str) else ""
    content = delta.content
    if content is None:
        content = delta.reasoning_content if delta.reasoning_content is not None else delta.reasoning
    return content if isinstance(content, str) else ""


def bears_token(choice: Choice) -> bool:
    """Whether a chunk without counts stands for a token: it has text or a tool call; role and end chunks have none."""
    return bool(text_of(choice)) or (choice.delta is not None and bool(choice.delta.tool_calls))


def without_usage(event: bytes, frame: Frame) -> bytes:
    """The event's bytes with the chunk's ``usage`` member cut out, all others as they are; itself where it has none."""
    raw = bytes(frame.usage)
    if raw == _NULL:
        return event
    member = b',"usage":' + raw + b"}"
    end = len(event) - 2
    if event.endswith(b"\n\n") and event[end - len(member) : end] == member:
        return event[: end - len(member)] + b"}\n\n"  # the last member, as engines write it
    start = event.find(b"{")
    if start < 0:
        return event
    span = _member(event, start, b'"usage"')
    return event if span is None else event[: span[0]] + event[span[1] :]


def _member(text: bytes, start: int, name: bytes) -> tuple[int, int] | None:
    """Where the object that opens at ``start`` has the member ``name``, one of its commas included."""
    depth, at, comma = 0, start, None
    while at < len(text):
        sign = text[at]
        if sign == 0x22:  # a string
            end = _string_end(text, at)
            if depth == 1 and text[at:end] == name and _next(text, end) == 0x3A:
                return _with_comma(text, at, end, comma)
            at = end
            continue
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if depth == 0:
                return None
        elif sign == 0x2C and depth == 1:
            comma = at
        at += 1
    return None


def _with_comma(text: bytes, at: int, name_end: int, comma: int | None) -> tuple[int, int]:
    """From the comma before the member, or to the one behind it, whichever there is."""
    end, depth = text.index(b":", name_end) + 1, 0
    while True:
        sign = text[end]
        if sign == 0x22:
            end = _string_end(text, end)
            continue
        if depth == 0 and sign in b",}":
            break
        depth += (sign in b"{[") - (sign in b"}]")
        end += 1
    if comma is not None:
        return comma, end
    return at, end + 1 if text[end] == 0x2C else end


def _string_end(text: bytes, at: int) -> int:
    """Behind the string that opens at ``at``."""
    at += 1
    while text[at] != 0x22:
        at += 2 if text[at] == 0x5C else 1
    return at + 1


def _next(text: bytes, at: int) -> int:
    """The first sign from ``at`` on that is no white space."""
    while text[at] in b" \t\r\n":
        at += 1
    return text[at]
