"""The forecast service's outcome log: JSON Lines of ``{"outcome_log": 1, "key", "at", "request", "outcome", …}``; a file of
it, or its whole folder.

What was forecast (``served``) is left out: it is no property of the request. A *pending* line, whose forecast another
process of the service knows, is followed by the whole one if it was known at all; it tells too little to learn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from endcast.datasets.clean import LogRows
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.mooncake import block_ids
from endcast.datasets.formats.tables import expanded, records_of, to_json
from endcast.datasets.report import Tally
from endcast.datasets.times import Unit, instant

#: The latest version of a line that is read.
VERSION = 1
_REQUEST = ("request_id", "prompt_tokens", "max_tokens", "context_limit", "model", "tenant", "session", "prompt")
_COLUMNS = (
    *_REQUEST,
    *("arrival", "finished", "output_tokens", "end", "output"),
    *("messages", "parameters", "attributes", "prefix_blocks"),
)


@dataclass(frozen=True)
class _Outcomes:
    name: str = "outcomes"
    summary: str = "outcome log of the forecast service (JSON Lines; a file or its folder)"

    def detect(self, sample: Sample) -> bool:
        return sample.has("outcome_log", "outcome")

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        records = records_of(log, tally, self.name)
        yield from expanded(log, records, lambda record: _rows_of(record.value, record.line, tally), _COLUMNS)


def _rows_of(record: Mapping[str, Any], line: int, tally: Tally) -> list[dict[str, Any]]:
    """One row, or none of what is no whole outcome."""
    tally.read(1)
    outcome, request, key = record.get("outcome"), record.get("request"), record.get("key")
    version = record.get("outcome_log")
    if type(version) is not int or not isinstance(outcome, dict):
        tally.drop("no line of an outcome log", [line])
    elif version > VERSION:
        tally.drop(f"a line of a later version than {VERSION}: update endcast", [line])
    elif record.get("pending"):
        tally.drop("pending: its forecast is another process's, whose line tells more", [line])
    else:
        return [_row(outcome, request if isinstance(request, dict) else {}, key)]
    return []


def _row(outcome: Mapping[str, Any], request: Mapping[str, Any], key: object) -> dict[str, Any]:
    row = {name: _plain(request.get(name)) for name in _REQUEST}
    if row["request_id"] is None:
        row["request_id"] = _plain(key)
    messages = request.get("messages")
    chat = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    return row | {
        "arrival": instant(request.get("arrival"), Unit.S),
        "finished": instant(outcome.get("finished"), Unit.S),
        "output_tokens": _plain(outcome.get("output_tokens")),
        "end": _plain(outcome.get("end")),
        "output": _plain(outcome.get("output")),
        "messages": msgspec.json.encode(messages).decode() if chat else None,
        "parameters": _object(request.get("parameters")),
        "attributes": _object(request.get("attributes")),
        "prefix_blocks": block_ids(request.get("prefix_blocks")),
    }


def _plain(value: object) -> object:
    """Texts and numbers only: what else stands there was not written by the service."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _object(value: object) -> str | None:
    return to_json(value) if isinstance(value, dict) else None


OUTCOMES = _Outcomes()
