"""What an event of an OpenAI stream says, and usage taken out of one whose client did not ask for it."""

from __future__ import annotations

from typing import Any

import msgspec

from endcast.router.gateway.messages.lenient import UNREADABLE, legible
from endcast.router.gateway.streams.events import masked
from endcast.types import MAX_TOKENS

#: The data of the event that ends a stream.
DONE = b"[DONE]"


class Usage(msgspec.Struct, gc=False):
    """Token counts as the engine tells them; ``None`` for what it does not."""

    prompt_tokens: Any = None
    completion_tokens: Any = None


class Delta(msgspec.Struct, gc=False):
    """What a chat chunk adds."""

    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class Choice(msgspec.Struct, gc=False):
    """One answer's part of a chunk."""

    index: Any = 0
    text: Any = None
    delta: Delta | None = None
    message: Delta | None = None  #: the whole answer, where it is not streamed
    finish_reason: Any = None
    stop_reason: Any = None


class Frame(msgspec.Struct, gc=False):
    """A chunk. ``usage`` is kept raw as well as read, so that it can be found in the bytes."""

    choices: list[Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None
    object: Any = None
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def is_error(self) -> bool:
        """Whether the engine tells of an error: as a member, or as the whole chunk as older ones do."""
        return self.error is not None or self.object == "error"


class _Loose(msgspec.Struct, gc=False):
    """A chunk some of whose choices are of no known shape."""

    choices: list[Any] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None
    object: Any = None


_FRAME = msgspec.json.Decoder(Frame)
_LOOSE = msgspec.json.Decoder(_Loose)
_USAGE = msgspec.json.Decoder(Usage | None)
_NULL = b"null"
_FINGERPRINT = b'"system_fingerprint"'


def read_frame(data: bytes) -> Frame | None:
    """The chunk in an event's data, or the answer in a body; ``None`` where it is none that is known (passed on all the same)."""
    try:
        return _FRAME.decode(data)
    except UNREADABLE:
        return _read_odd(data)


def _read_odd(data: bytes) -> Frame | None:
    """What lenient readers take, and choices of unknown shape: those say nothing but their index and their end."""
    try:
        found = _LOOSE.decode(legible(data))
    except UNREADABLE:
        return None
    choices = None if found.choices is None else [_choice(one) for one in found.choices]
    return Frame(choices, found.usage, found.error, found.object)


def _choice(told: Any) -> Choice:
    try:
        return msgspec.convert(told, Choice)
    except msgspec.ValidationError:
        if not isinstance(told, dict):
            return Choice()
        return Choice(told.get("index"), finish_reason=told.get("finish_reason"), stop_reason=told.get("stop_reason"))


def usage_of(frame: Frame) -> Usage | None:
    """The counts in a chunk, if it has any."""
    raw = bytes(frame.usage)
    if raw == _NULL:
        return None
    try:
        return _USAGE.decode(raw)
    except UNREADABLE:
        return Usage() if raw.startswith(b"{") else None  # counts beyond any range: usage all the same


def count(value: object) -> int | None:
    """A token count, if ``value`` is one: a whole number from 0 to ``MAX_TOKENS``, however written (``5``, ``5.0``)."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def text_of(choice: Choice) -> str:
    """The text that a chunk adds, or a whole answer has, reasoning included; empty for none."""
    delta = choice.delta if choice.delta is not None else choice.message
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
        event = event[: end - len(member)] + b"}\n\n"  # the last member, as engines write it
    while b'"usage"' in event:  # elsewhere, or a second time
        text = masked(event)
        start = text.find(b"{")
        span = None if start < 0 else _member(text, start, b'"usage"')
        if span is None:
            break
        event = event[: span[0]] + event[span[1] :]
    return event


def stamped(event: bytes, fingerprint: bytes) -> bytes:
    """The event that ends an answer, with the ``system_fingerprint`` (JSON) that the usage event behind it told.

    Engines tell it in whichever of the two is the last; who did not ask for usage looks for it in this one.
    """
    chunk = event.rstrip(b"\r\n")
    if fingerprint == _NULL or _FINGERPRINT in event or not chunk.endswith(b"}"):
        return event
    return b"".join((chunk[:-1], b",", _FINGERPRINT, b":", fingerprint, b"}", event[len(chunk) :]))


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
