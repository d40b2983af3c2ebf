"""What a request's only answer has said, kept so that it can go on elsewhere if the engine gives it back.

vLLM-Ascend's decode workers do that when they run out of KV memory: the answer ends with ``stop_reason`` "recomputed", for a
proxy to have prompt and output computed anew and the rest generated. That event, the *marker*, and what comes behind it
are kept here: the client gets them only if the answer cannot go on.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec

from endcast.router.gateway.messages.lenient import UNREADABLE
from endcast.router.gateway.streams.events import data_of
from endcast.router.gateway.streams.frames import Choice, Frame, count, read_frame, usage_of

#: An engine's marker that a generation goes on elsewhere: no end, so its length is censored there.
RECOMPUTED = "recomputed"
#: Tags of models that think within their text: chat templates take such parts out of earlier messages.
_THINKING = ("<think>", "</think>")


class SoFar:
    """The text so far, and the marker with what is behind it once it has come."""

    def __init__(self, hindrance: Callable[[], str], *, wants_ids: bool) -> None:
        """``hindrance``: why the request could not go on whatever it said, if so; asked when that is to be known.
        ``wants_ids``: token ids are wanted, which the stream tells."""
        self._hindrance, self.wants_ids = hindrance, wants_ids
        self.token_ids: list[int] = []
        self.obstacle = ""  #: why it cannot go on after what was said
        self.kept: list[bytes] = []  #: the marker and the events behind it
        self.told_tokens = 0  #: of the answer, by usage behind the marker
        self.usage = b"null"  #: … as it was told
        self._mute = False  # the last token ids were no text yet
        self._said = io.StringIO(newline="")
        self.say = self._said.write  #: the answer's own text goes on

    @property
    def text(self) -> str:
        """What was said."""
        return self._said.getvalue()

    @property
    def awaits(self) -> bool:
        """Whether the marker has come: the answer is to go on elsewhere."""
        return bool(self.kept)

    def hear(self, choice: Choice, text: str, data: bytes) -> None:
        """A chunk, or a whole answer, says ``text``; ``data`` is its JSON."""
        told = choice.delta if choice.delta is not None else choice.message
        if told is not None and (told.tool_calls or told.reasoning or told.reasoning_content):
            self.obstacle = "tool calls" if told.tool_calls else "reasoning"
        if text:
            self.say(text)
        if self.wants_ids:
            self._hear_ids(data)
            self._mute = not text

    def keeps(self, choice: Choice) -> bool:
        """Whether the chunk of ``choice`` is a marker after which the answer can go on; else the client must get it."""
        if not is_marker(choice):
            return False
        self.obstacle = self.obstacle or self._hindrance()
        if choice.delta is not None and choice.delta.tool_calls:
            self.obstacle = "tool calls"
        elif any(tag in self.text for tag in _THINKING):
            self.obstacle = "reasoning"
        elif self._mute:  # told of a prompt that ends so, vLLM repeats parts of it
            self.obstacle = "token ids that end within a character"
        return not self.obstacle

    def keep(self, event: bytes) -> None:
        """The marker, or an event behind it."""
        frame = read_frame(data_of(event)) if self.kept else None
        self.kept.append(event)
        if frame is not None and not frame.choices:
            self._hear_usage(frame)

    def take_kept(self) -> bytes:
        """The marker and what is behind it; it is to go on no more, or has."""
        kept, self.kept = b"".join(self.kept), []
        self.told_tokens, self.usage = 0, b"null"
        return kept

    def _hear_usage(self, frame: Frame) -> None:
        usage = usage_of(frame)
        if usage is not None:
            self.usage = bytes(frame.usage)
            self.told_tokens = count(usage.completion_tokens) or 0

    def _hear_ids(self, data: bytes) -> None:
        ids = _ids_in(data)
        if ids is None:
            self.obstacle = "token ids that were not told"
        else:
            self.token_ids += ids


def is_marker(choice: Choice) -> bool:
    """Whether a choice says that its answer is to go on elsewhere."""
    return choice.finish_reason is not None and choice.stop_reason == RECOMPUTED


class _Told(msgspec.Struct, gc=False):
    token_ids: Any = None


class _Ids(msgspec.Struct, gc=False):
    choices: list[_Told] = []


_IDS = msgspec.json.Decoder(_Ids)


def _ids_in(data: bytes) -> list[int] | None:
    """The token ids of the first choice; ``None`` where they are not told."""
    try:
        told = _IDS.decode(data).choices[0].token_ids
    except (*UNREADABLE, IndexError):
        return None
    return told if isinstance(told, list) and all(type(one) is int for one in told) else None
