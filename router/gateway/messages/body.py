"""What the router reads of a request's body, and the one edit that it makes to it.

A body is passed on as it came. Only where a client streams and left usage off, ``stream_options`` asks the engine for it:
into the bytes, everything else left as it is. What cannot be read (no JSON, or JSON that only the engine knows)
is passed on unread: the engine judges it. No field is refused here.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any, Final

import msgspec

from endcast.datasets.estimate import FRAME_TOKENS, estimate_tokens
from endcast.datasets.messages import text_of
from endcast.router.gateway.messages.lenient import UNREADABLE, legible
from endcast.types import MAX_TOKENS

#: Asks the engine for its token counts in every event (``PROTOCOL``: the second needs the first).
USAGE_OPTIONS: Final = b'{"include_usage":true,"continuous_usage_stats":true}'
#: What is no sampling parameter.
_NO_PARAMETERS = frozenset(
    ("model", "messages", "prompt", "user", "stream", "stream_options", "max_tokens", "metadata")
)


class _Fields(msgspec.Struct, gc=False):
    """The fields that routing needs. Any type: whatever a client put there reaches the engine."""

    model: Any = None
    stream: Any = None
    stream_options: Any = msgspec.UNSET
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    priority: Any = None
    user: Any = None
    prompt: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")


class Body(msgspec.Struct, frozen=True, gc=False):
    """A request's body as read. ``readable`` is false where it was not understood; all else is unknown then."""

    raw: bytes
    chat: bool
    readable: bool = False
    plain: bytes = b""  #: what was read: ``raw``, or the same as strict JSON where engines are more lenient
    model: str | None = None
    streams: bool = False
    choices: int = 1  #: answers asked for: n, times the prompts in a list of them; 1 where that is no sensible number
    max_tokens: int | None = None
    priority: float = 0.0
    user: str | None = None
    estimated_prompt: int = 1  #: tokens
    exact_prompt: bool = False  #: token ids were sent
    wants_usage: bool = False  #: the client asked for a usage event at the end
    wants_running_usage: bool = False  #: … and for usage in every event
    asks_engine: bool = True  #: ``stream_options`` may be set: the client's are absent, or understood


_FIELDS = msgspec.json.Decoder(_Fields)
_OPTIONS_KEY = re.compile(rb'"stream_options"\s*:\s*')
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_body(raw: bytes, *, chat: bool) -> Body:
    """What can be read of ``raw``; never fails."""
    try:
        return _read(raw, raw, chat)
    except UNREADABLE:
        pass  # no strict JSON; engines take a little more than that
    try:
        return _read(raw, legible(raw), chat)
    except UNREADABLE:
        return Body(raw, chat)


def _read(raw: bytes, plain: bytes, chat: bool) -> Body:
    fields = _FIELDS.decode(plain)
    exact, prompt, prompts = _prompt(fields)
    usage, running, clear = _usage_wanted(None if fields.stream_options is msgspec.UNSET else fields.stream_options)
    return Body(
        raw,
        chat,
        readable=True,
        plain=plain,
        model=fields.model if isinstance(fields.model, str) else None,
        streams=fields.stream is True,
        choices=max(1, min(whole_number(fields.n, 1) * prompts, 4096)),
        max_tokens=_cap(fields, chat),
        priority=_priority(fields.priority),
        user=fields.user if isinstance(fields.user, str) else None,
        estimated_prompt=max(1, min(prompt, MAX_TOKENS)),
        exact_prompt=exact,
        wants_usage=usage,
        wants_running_usage=running,
        asks_engine=clear and plain is raw,
    )


def asking_for_usage(body: Body) -> bytes:
    """The body with usage asked for in every event; as it came where that changes nothing or would hide a fault."""
    if not (body.streams and body.asks_engine) or (body.wants_usage and body.wants_running_usage):
        return body.raw
    if _FIELDS.decode(body.raw).stream_options is msgspec.UNSET:
        brace = body.raw.index(b"{") + 1
        return b"".join((body.raw[:brace], b'"stream_options":', USAGE_OPTIONS, b",", body.raw[brace:]))
    return _with_options(body.raw)


def _with_options(raw: bytes) -> bytes:
    """``raw`` with usage asked for in the options that it has; every other byte stays, unless a key is there twice."""
    members = _MEMBERS.decode(raw)
    old = members["stream_options"]
    told = msgspec.json.decode(old, type=dict[str, msgspec.Raw] | None) or {}
    new = msgspec.json.encode(told | _MEMBERS.decode(USAGE_OPTIONS))
    places = list(_OPTIONS_KEY.finditer(raw))
    if len(places) == 1 and raw.startswith(bytes(old), places[0].end()):
        return raw[: places[0].end()] + new + raw[places[0].end() + len(bytes(old)) :]
    return msgspec.json.encode(members | {"stream_options": msgspec.Raw(new)})


def parameters_of(body: Body) -> dict[str, Any]:
    """The sampling parameters, as plain values; empty where the body is not readable."""
    return {name: value for name, value in _members(body).items() if name not in _NO_PARAMETERS}


def prompt_of(body: Body) -> tuple[str | None, tuple[dict[str, Any], ...] | None]:
    """The prompt as text, or the chat's messages, for forecasts that read them; ``None`` for what there is not."""
    members = _members(body)
    prompt, messages = members.get("prompt"), members.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        messages = None
    return (prompt if isinstance(prompt, str) else None), (None if messages is None else tuple(messages))


def _members(body: Body) -> dict[str, Any]:
    """All members as plain values; none where they cannot be had: reading skips what it does not need, faults included."""
    if not body.readable:
        return {}
    found: dict[str, Any] = {}
    try:
        found = msgspec.json.decode(body.plain)
    except UNREADABLE:
        with suppress(*UNREADABLE):
            found = msgspec.json.decode(legible(body.raw))
    return found


def _usage_wanted(options: object) -> tuple[bool, bool, bool]:
    """Whether the client asked for usage, for running usage, and whether what it said is understood.

    Options without ``include_usage`` mean different things to different engines: then they are left alone.
    """
    if options is None:
        return False, False, True
    if not isinstance(options, dict):
        return False, False, False
    usage, running = options.get("include_usage"), options.get("continuous_usage_stats", False)
    if not isinstance(usage, bool) or not isinstance(running, bool | None):
        return True, True, False
    return usage, usage and bool(running), not (running and not usage)


def _cap(fields: _Fields, chat: bool) -> int | None:
    """The cap on output where it is a sensible one; ``/v1/completions`` does not read ``max_completion_tokens``."""
    told = fields.max_completion_tokens if chat and fields.max_completion_tokens is not None else fields.max_tokens
    cap = whole_number(told, 0)
    if told is None and not chat:
        return 16  # the default of /v1/completions
    return cap if 1 <= cap <= MAX_TOKENS else None


def _priority(value: object) -> float:
    """A number within what ``float`` holds; 0 for anything else."""
    if not isinstance(value, int | float) or not abs(value) < 1e300:
        return 0.0
    return float(value)


def whole_number(value: object, otherwise: int) -> int:
    """A positive whole number, however it is written (``3``, ``3.0``, ``3e0``)."""
    if type(value) is float and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value > 0 else otherwise


class _Message(msgspec.Struct, gc=False):
    content: Any = None


_MESSAGES = msgspec.json.Decoder(list[_Message])


def _prompt(fields: _Fields) -> tuple[bool, int, int]:
    """Whether the prompt's tokens are counted exactly, how many there are about, and how many prompts."""
    if memoryview(fields.messages).nbytes:
        try:
            messages = _MESSAGES.decode(fields.messages)
        except msgspec.DecodeError:
            return False, 1, 1
        return False, sum([FRAME_TOKENS + estimate_tokens(text_of(message.content)) for message in messages]), 1
    if not memoryview(fields.prompt).nbytes:
        return False, 1, 1
    prompt = msgspec.json.decode(fields.prompt)
    if isinstance(prompt, str):
        return False, estimate_tokens(prompt), 1
    if not isinstance(prompt, list) or not prompt:
        return False, 1, 1
    if type(prompt[0]) is int:
        return True, len(prompt), 1
    sizes = [
        estimate_tokens(one) if isinstance(one, str) else len(one) for one in prompt if isinstance(one, str | list)
    ]
    return not isinstance(prompt[0], str), max(sizes, default=1), max(len(sizes), 1)
