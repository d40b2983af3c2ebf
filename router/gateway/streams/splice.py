"""The stream of an answer that goes on elsewhere, told as one with what came before.

A client's libraries put a stream together by its ``id`` and take the last counts for the whole. So each event of the later
part gets ``id``, ``created`` and ``model`` of the first one, and counts of the whole: prompt tokens are those of the client's
prompt, not of what was computed anew. The event that only opens an answer is left out. Other members keep their bytes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from endcast.router.gateway.messages.lenient import UNREADABLE
from endcast.router.gateway.streams.events import EventSplitter, data_of, with_data
from endcast.router.gateway.streams.frames import Choice, count, read_frame, text_of

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_NULL = msgspec.Raw(b"null")
#: What a stream has one of.
_IDENTITY = ("id", "created", "model")
#: What an engine tells of the prompt with its first token: not the client's here.
_PROMPT_IDS = "prompt_token_ids"


class Before(msgspec.Struct, frozen=True):
    """What came before: members that stay, the client's prompt in tokens if known, output tokens, details of the prompt."""

    identity: dict[str, msgspec.Raw]
    prompt_tokens: int | None
    tokens: int
    details: bytes = b"null"  #: ``prompt_tokens_details`` as the first engine told

    def after(self, tokens: int) -> Before:
        """The same, so many tokens further."""
        return msgspec.structs.replace(self, tokens=self.tokens + tokens)


def before_of(data: bytes, prompt_tokens: int | None, tokens: int, usage: bytes = b"null") -> Before:
    """By the JSON of an event or answer of the earlier part, and the usage that it told at its end."""
    members = _members(data)
    details = bytes(_members(usage).get("prompt_tokens_details", _NULL))
    return Before({name: members[name] for name in _IDENTITY if name in members}, prompt_tokens, tokens, details)


class Splice:
    """Feed it the later part; it gives back events as the client's one stream has them."""

    def __init__(self, before: Before) -> None:
        self._before = before
        self._splitter = EventSplitter()

    def feed(self, data: bytes) -> bytes:
        """The events that ``data`` completes."""
        return b"".join(map(self._told_as_one, self._splitter.feed(data)))

    def take_rest(self) -> bytes:
        """What has come of an event that is not complete, once."""
        rest, self._splitter = self._splitter.rest, EventSplitter()
        return rest

    def _told_as_one(self, event: bytes) -> bytes:
        data = data_of(event)
        members = _members(data)
        if "choices" not in members:
            return event
        frame = read_frame(data)
        choices = None if frame is None else frame.choices
        if choices and _only_opens(choices[0]):
            return b""
        as_one(members, self._before)
        return with_data(event, msgspec.json.encode(members))


def as_one(members: dict[str, msgspec.Raw], before: Before) -> None:
    """Change an event's, or an answer's, members so that they tell of the whole."""
    members |= {name: raw for name, raw in before.identity.items() if name in members}
    if members.get("usage", _NULL) != _NULL:
        members["usage"] = msgspec.Raw(usage_of_whole(bytes(members["usage"]), before))
    told = bytes(members["choices"])
    if _PROMPT_IDS.encode() in told:
        with suppress(*UNREADABLE):  # choices of no known shape stay as they are
            choices = [
                choice | ({_PROMPT_IDS: _NULL} if _PROMPT_IDS in choice else {}) for choice in _CHOICES.decode(told)
            ]
            members["choices"] = msgspec.Raw(msgspec.json.encode(choices))


def usage_of_whole(usage: bytes, before: Before) -> bytes:
    """The counts of the later part as those of the whole."""
    members = _members(usage)
    if not members:
        return usage
    told = {name: count(_plain(members[name])) for name in members}
    prompt, tokens = told.get("prompt_tokens"), told.get("completion_tokens")
    if before.prompt_tokens is not None:
        prompt = before.prompt_tokens
    elif prompt is not None:
        prompt = max(prompt - before.tokens, 1)
    tokens = None if tokens is None else before.tokens + tokens
    counts: dict[str, int | None] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if prompt is not None and tokens is not None:
        counts["total_tokens"] = prompt + tokens
    new = {name: msgspec.Raw(str(value).encode()) for name, value in counts.items() if value is not None}
    members |= {name: raw for name, raw in new.items() if name in members}
    if "prompt_tokens_details" in members and before.details != b"null":
        members["prompt_tokens_details"] = msgspec.Raw(before.details)
    return msgspec.json.encode(members)


def _only_opens(choice: Choice) -> bool:
    """Whether a chunk only says whose the answer is."""
    delta = choice.delta
    if delta is None or delta.role is None or choice.finish_reason is not None:
        return False
    return not text_of(choice) and not delta.tool_calls


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _MEMBERS.decode(data)
    except UNREADABLE:
        return {}


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None
