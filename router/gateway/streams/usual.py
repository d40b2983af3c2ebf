"""The usual chunk of a stream (one line, one answer that goes on, usage as its last member), read and cut in one go.

Nearly every token comes in one; what is anything else is read by ``frames``, which knows all of it. Few calls are made
here: between tokens other processes run, so that each costs several times what it does in a loop.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from endcast.router.gateway.messages.lenient import UNREADABLE
from endcast.router.gateway.streams.frames import Choice, Delta
from endcast.types import MAX_TOKENS

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _Said(Delta, gc=False):
    """Text or thoughts, and no tool call."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: None = None


class _GoingOn(Choice, gc=False):
    """An answer that has not ended."""

    index: int = 0
    text: str | None = None
    delta: _Said | None = None
    message: None = None
    finish_reason: None = None


class _Counts(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count


class UsualChunk(msgspec.Struct, gc=False):
    """What such a chunk says; no error."""

    choices: tuple[_GoingOn]
    usage: _Counts
    object: Literal["chat.completion.chunk", "text_completion"]
    error: None = None


_DECODE = msgspec.json.Decoder(UsualChunk).decode
_USAGE, _BEHIND = b',"usage":{', b"}\n\n"


def usual_chunk(event: bytes) -> tuple[UsualChunk, bytes] | None:
    """The event, if it is a usual chunk, and its bytes without the usage.

    The cut is exact: from the first ``"usage"`` on there is one object without others inside, and the chunk's own end.
    """
    at = event.find(b'"usage"') - 1
    end = len(event) - 4
    if event.find(b"}", at) != end or not event.startswith(_USAGE, at) or event.find(b"{", at + 10) != -1:
        return None
    if (
        event.find(b"\n") != end + 2
        or not event.startswith(b"data: {")
        or not event.endswith(_BEHIND)
        or b"\r" in event
    ):
        return None
    try:
        return _DECODE(event[6:]), event[:at] + _BEHIND
    except UNREADABLE:
        return None
