"""The text that an answer is to: the prompt, or the last thing the user said in a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from endcast.datasets.messages import text_of
from endcast.types import Request

#: Of a longer text this many characters are kept of its beginning and as many of its end: what is wanted is said there.
KEPT = 4000
#: Content of more parts than twice this loses its middle parts.
MOST_PARTS = 512


def bounded(text: str) -> str:
    """At most ``2 * KEPT + 1`` characters: the beginning and the end of a longer text, on lines of their own."""
    return text if len(text) <= 2 * KEPT else f"{text[:KEPT]}\n{text[-KEPT:]}"


def said_last(request: Request) -> str | None:
    """The whole prompt, or of messages the last one of the user (of whoever spoke last, if no user did); ``None`` where
    there is neither prompt nor message. Messages of no known shape hold no text."""
    if request.messages is None:
        return request.prompt
    return message_text(_last_of_user(request.messages)) if request.messages else None


def prompt_text(request: Request) -> str | None:
    """``said_last``, bounded."""
    text = said_last(request)
    return None if text is None else bounded(text)


def message_text(message: object) -> str:
    """The text in one message: a text, or the text parts joined without anything between them."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list | tuple) and len(content) > 2 * MOST_PARTS:
        content = [*content[:MOST_PARTS], *content[-MOST_PARTS:]]
    return text_of(content)


def role_of(message: object) -> str | None:
    """``system``, ``user``, ``assistant`` … or ``None`` where a message says nothing of the kind."""
    role = message.get("role") if isinstance(message, Mapping) else None
    return role if isinstance(role, str) else None


def _last_of_user(messages: tuple[Mapping[str, Any], ...]) -> Mapping[str, Any]:
    said = (message for message in reversed(messages) if role_of(message) == "user")
    return next(said, messages[-1])
