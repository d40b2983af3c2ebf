"""Conversations as ShareGPT, LMSYS-Chat-1M and WildChat keep them: JSON or JSON Lines, one conversation an object.

Each answer of the assistant is one request: the messages before it are the prompt, the conversation is the session.
There are no token counts in such logs: they are estimated from the characters (``endcast.datasets.estimate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from endcast.datasets.clean import LogRows
from endcast.datasets.estimate import FRAME_TOKENS, estimate_tokens, note_estimates
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.tables import expanded, records_of, to_json
from endcast.datasets.messages import text_of
from endcast.datasets.report import Tally
from endcast.datasets.times import instant
from endcast.datasets.trace import NS_PER_S, supposed_service_s

_LISTS = ("conversation", "conversations", "messages", "items")
_IDS = ("conversation_id", "conversation_hash", "id")
#: What logs call the speakers → the role in a chat request.
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
_ATTRIBUTES = ("language", "redacted", "toxic", "source")
_COLUMNS = (
    "request_id",
    "session",
    "model",
    "arrival",
    "finished",
    "messages",
    "output",
    "prompt_tokens",
    "output_tokens",
    "attributes",
)
_COUNTS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class _Conversations:
    name: str = "conversations"
    summary: str = "ShareGPT, LMSYS-Chat-1M or WildChat conversations (JSON, JSON Lines, Parquet)"

    def detect(self, sample: Sample) -> bool:
        taken = ("output_tokens", "output", "response", "request", "choices")
        return bool(sample.records) and all(
            _turns(record) is not None and not any(name in record for name in taken) for record in sample.records
        )

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        note_estimates(_COUNTS, tally)
        records = records_of(log, tally, self.name)
        yield from expanded(log, records, lambda record: _requests(record.value, record.line, tally), _COLUMNS)


def _turns(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The list of messages in a record, or ``None`` if it has none that looks like one."""
    for name in _LISTS:
        turns = record.get(name)
        if isinstance(turns, list) and turns and all(isinstance(t, dict) and _role(t) is not None for t in turns):
            return turns
    return None


def _role(turn: Mapping[str, Any]) -> str | None:
    """The role of whoever speaks; a speaker nobody knows counts as the user. ``None`` if no speaker is named."""
    speaker = turn.get("role", turn.get("from"))
    return _ROLES.get(speaker.lower(), "user") if isinstance(speaker, str) else None


def _requests(record: Mapping[str, Any], line: int, tally: Tally) -> list[dict[str, Any]]:
    """One request for each answer; a record without turns, or without an answer, is dropped and counted."""
    turns = _turns(record)
    if turns is None:
        tally.read(1)
        tally.drop("no conversation in the record", [line])
        return []
    requests: list[dict[str, Any]] = []
    own = next((str(record[name]) for name in _IDS if isinstance(record.get(name), str | int)), None)
    shared = _shared(record, own or f"line {line}")
    messages: list[dict[str, str]] = []
    prompt_tokens, asked_at = 0, None
    for turn in turns:
        role, text = _role(turn), text_of(turn.get("content", turn.get("value", turn.get("text"))))
        tokens = estimate_tokens(text)
        if role != "assistant":
            asked_at = instant(turn.get("timestamp"))
        elif messages:
            request = {"messages": msgspec.json.encode(messages).decode(), "prompt_tokens": prompt_tokens}
            request |= {"request_id": own and f"{own}#{len(requests) + 1}", "output": text, "output_tokens": tokens}
            requests.append(shared | request | {"arrival": asked_at, "finished": instant(turn.get("timestamp"))})
        else:
            tally.repair("an answer that nothing was asked for: taken as the beginning of the prompt", [line])
        messages.append({"role": role or "user", "content": text})
        prompt_tokens += FRAME_TOKENS + tokens
    _fill_times(requests, record, tally)
    tally.read(max(len(requests), 1))
    if not requests:
        tally.drop("no answer in the conversation", [line])
    return requests


def _shared(record: Mapping[str, Any], session: str) -> dict[str, Any]:
    known = {name: record.get(name) for name in _ATTRIBUTES if isinstance(record.get(name), str | bool | int)}
    return {"session": session, "model": record.get("model"), "attributes": to_json(known)}


def _fill_times(requests: Sequence[dict[str, Any]], record: Mapping[str, Any], tally: Tally) -> None:
    """A conversation's own time is that of its last answer; an arrival that is not told is reckoned from the finish."""
    if requests and requests[-1]["finished"] is None:
        requests[-1]["finished"] = instant(record.get("timestamp"))
    for request in requests:
        if request["arrival"] is None and request["finished"] is not None:
            lasted = supposed_service_s(request["prompt_tokens"], request["output_tokens"])
            request["arrival"] = request["finished"] - round(lasted * NS_PER_S)
            tally.note("ESTIMATED, not logged: arrivals, by subtracting a supposed service time from the finish")


CONVERSATIONS = _Conversations()
