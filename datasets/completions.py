"""Bodies of OpenAI-style chat and text completions: what was answered, choice by choice, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from endcast.datasets.estimate import estimate_tokens
from endcast.datasets.messages import text_of


class Choice(NamedTuple):
    """One generation of a response. ``finish_reason`` is ``None`` where the response ended without one."""

    place: int
    text: str
    finish_reason: str | None


def choices_of(response: Mapping[str, Any]) -> list[Choice]:
    """The generations in a whole response, in the order of their indices."""
    found = response.get("choices")
    listed = [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []
    choices = [_choice(choice, place) for place, choice in enumerate(listed)]
    return sorted(choices, key=lambda choice: choice.place)


def _choice(choice: Mapping[str, Any], place: int) -> Choice:
    index, reason, message = choice.get("index"), choice.get("finish_reason"), choice.get("message")
    text = answer_text(message) if isinstance(message, dict) else text_of(choice.get("text"))
    told = reason if isinstance(reason, str) and reason else None
    return Choice(index if type(index) is int else place, text, told)


def answer_text(message: Mapping[str, Any]) -> str:
    """All that a message of the assistant generated: its reasoning between ``<think>`` tags, its content, and the
    functions it calls as JSON, a line each."""
    reasoning = text_of(message.get("reasoning_content") or message.get("reasoning"))
    parts = [f"<think>\n{reasoning}\n</think>\n"] if reasoning else []
    parts.append(text_of(message.get("content")))
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    lines = [msgspec.json.encode(function).decode() for function in functions if function is not None]
    text = "".join(parts)
    return "\n".join([text, *lines] if text else lines)


def joined_chunks(chunks: Iterable[object]) -> dict[str, Any]:
    """The whole response that the chunks of a stream add up to; an error among them stays an error."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            continue
        for name in ("id", "created", "model", "usage", "error"):
            if chunk.get(name) is not None:
                whole.setdefault(name, chunk[name]) if name != "usage" else whole.update(usage=chunk[name])
        listed = chunk.get("choices")
        for choice in listed if isinstance(listed, list) else ():
            if isinstance(choice, dict):
                _extend(choices, choice)
    return whole | {"choices": list(choices.values())}


def _extend(choices: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add one choice of one chunk to what its index has so far."""
    index = piece.get("index")
    index = index if type(index) is int else 0
    whole = choices.setdefault(index, {"index": index, "finish_reason": None, "message": {}})
    whole["finish_reason"] = piece.get("finish_reason") or whole["finish_reason"]
    delta = piece.get("delta")
    delta = delta if isinstance(delta, dict) else {"content": piece.get("text")}
    message = whole["message"]
    for name in ("content", "reasoning_content", "reasoning"):
        message[name] = message.get(name, "") + text_of(delta.get(name))
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _extend_call(message.setdefault("tool_calls", []), call)


def _extend_call(calls: list[dict[str, Any]], piece: object) -> None:
    function = piece.get("function") if isinstance(piece, dict) else None
    if not isinstance(piece, dict) or not isinstance(function, dict):
        return
    index = piece.get("index")
    place = index if type(index) is int and 0 <= index <= len(calls) else len(calls)
    if place == len(calls):
        calls.append({"function": {"name": "", "arguments": ""}})
    for name, text in calls[place]["function"].items():
        calls[place]["function"][name] = text + text_of(function.get(name))


def shared_out(total: int, choices: Sequence[Choice]) -> list[int]:
    """``total`` output tokens dealt to the choices in proportion to their texts; the parts add up to ``total``."""
    weights = [estimate_tokens(choice.text) for choice in choices]
    if not sum(weights):
        weights = [1] * len(choices)
    upto = 0
    bounds = [0] + [total * (upto := upto + weight) // sum(weights) for weight in weights]
    return [after - before for before, after in pairwise(bounds)]
