"""The values that everything in endcast speaks of: a request, where it stands, how it ended.

All are frozen and keyword-only. What is not given is *unknown* (``None``), never zero. Bounds are checked when a
value is made; ``InputError`` names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from endcast.errors import InputError

#: No request, cap or output is longer than this; a larger number in a log is a fault of the log.
MAX_TOKENS = 100_000_000
#: No clock goes further: some 30,000 years.
MAX_SECONDS = 1e12


class EndReason(StrEnum):
    """Why a generation ended. Only ``STOP`` is an event; all others censor its natural length."""

    STOP = "stop"  #: by itself: EOS, a stop string, a tool call
    LENGTH = "length"  #: cut by ``max_tokens`` or the context limit
    ABORT = "abort"  #: the client left
    ERROR = "error"  #: engine error or timeout
    UNFINISHED = "unfinished"  #: still running when the log ended


def shown(value: object) -> str:
    """``value`` as a message shows it: short, whatever its size."""
    return f"{value!r:.60}" if not isinstance(value, int) or abs(value) < 10**60 else "a number of over 60 digits"


def check_count(field: str, value: int | None, *, least: int = 0) -> None:
    """Raise ``InputError`` unless ``value`` is unknown or a whole number in [least, MAX_TOKENS]."""
    if value is None or (type(value) is int and least <= value <= MAX_TOKENS):
        return
    if type(value) is not int:
        raise InputError(field, f"must be a whole number, not {shown(value)}")
    raise InputError(field, f"must lie between {least} and {MAX_TOKENS}, not {shown(value)}")


def check_seconds(field: str, value: float | None) -> None:
    """Raise ``InputError`` unless ``value`` is unknown or a finite number of seconds within ±1e12."""
    if value is None:
        return
    if type(value) not in (int, float) or not abs(value) <= MAX_SECONDS:  # a NaN is not ≤ either
        raise InputError(field, f"must be a finite number of seconds within ±1e12, not {shown(value)}")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request before its first output token.

    ``arrival_s`` is seconds on any one clock, ``prefix_blocks`` ids of its leading prefix-cache blocks in order,
    ``parameters`` the OpenAI-style sampling parameters, ``attributes`` anything else that a model may learn from.
    """

    request_id: str
    arrival_s: float | None = None
    prompt_tokens: int | None = None
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    max_tokens: int | None = None
    context_limit: int | None = None
    prefix_blocks: tuple[int, ...] = ()
    parameters: Mapping[str, Any] = {}
    attributes: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        check_seconds("arrival_s", self.arrival_s)
        check_count("prompt_tokens", self.prompt_tokens)
        check_count("max_tokens", self.max_tokens, least=1)
        check_count("context_limit", self.context_limit, least=1)

    @property
    def cap(self) -> int | None:
        """Most output tokens the engine can give it, the smallest of all caps that apply; ``None`` if unknown."""
        if self.context_limit is None or self.prompt_tokens is None:
            return self.max_tokens
        room = max(self.context_limit - self.prompt_tokens, 1)
        return room if self.max_tokens is None else min(self.max_tokens, room)


class Landmark(msgspec.Struct, frozen=True, kw_only=True):
    """A request and where its generation stands: tokens so far and, where at hand, the whole text so far."""

    request: Request
    generated_tokens: int = 0
    output: str | None = None

    def __post_init__(self) -> None:
        check_count("generated_tokens", self.generated_tokens)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """How a request turned out: its output tokens as the engine's usage counts them, and why it ended."""

    request: Request
    output_tokens: int
    end: EndReason = EndReason.STOP
    finished_s: float | None = None

    def __post_init__(self) -> None:
        if self.output_tokens is None:
            raise InputError("output_tokens", "must be given")
        check_count("output_tokens", self.output_tokens)
        check_seconds("finished_s", self.finished_s)
        if type(self.end) is not EndReason:
            try:
                msgspec.structs.force_setattr(self, "end", EndReason(self.end))
            except ValueError:
                known = ", ".join(EndReason)
                raise InputError("end", f"must be one of {known}, not {self.end!r:.60}") from None
