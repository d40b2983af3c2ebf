"""OpenAI-style requests with their responses, JSON Lines: ``{"request": {…}, "response": {…}, "timestamp": …}``.

Also read: the lines of a batch's result (``custom_id``, ``response.body``), a response that is a list of streamed
chunks, bodies as JSON texts, and responses alone. Usage gives the token counts; where it is missing they are
estimated, and the report says so. A response with n choices becomes n rows; usage counts their tokens together, so
the sum is dealt out in proportion to their texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from endcast.datasets.clean import LogRows, note_zones
from endcast.datasets.completions import Choice, choices_of, joined_chunks, shared_out
from endcast.datasets.estimate import estimate_prompt_tokens, estimate_tokens, note_estimates
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample
from endcast.datasets.formats.tables import expanded, records_of, to_json
from endcast.datasets.messages import text_of
from endcast.datasets.report import Tally
from endcast.datasets.times import Unit, instant
from endcast.types import EndReason

_REQUEST, _RESPONSE = ("request", "request_body", "body"), ("response", "response_body")
_ARRIVAL = ("arrival", "timestamp", "time", "start_time", "created_at")
_FINISHED = ("finished", "end_time", "completed_at")
_DURATION = {"duration_s": Unit.S, "latency_s": Unit.S, "duration_ms": Unit.MS, "latency_ms": Unit.MS}
_IDS = ("request_id", "custom_id", "id")
_SESSION = ("session", "session_id", "conversation_id")
_CAP = ("max_completion_tokens", "max_tokens", "max_output_tokens")
#: What is no sampling parameter in a request's body, nor in a record that is request and response in one.
_NO_PARAMETERS = frozenset(
    (
        *("messages", "prompt", "model", "user", "tenant", "metadata", "stream_options", "request", "response"),
        *("object", "created", "choices", "usage", "error", "system_fingerprint"),
        *(*_ARRIVAL, *_FINISHED, *_DURATION, *_IDS, *_SESSION, *_CAP),
    )
)
_COLUMNS = (
    *("request_id", "arrival", "finished", "prompt_tokens", "output_tokens", "end", "max_tokens", "context_limit"),
    *("model", "tenant", "session", "prompt", "messages", "output", "parameters", "attributes"),
)


@dataclass(frozen=True)
class _OpenAi:
    name: str = "openai"
    summary: str = "OpenAI-style requests with responses (JSON Lines)"

    def detect(self, sample: Sample) -> bool:
        if not sample.records or any("output_tokens" in r for r in sample.records):
            return False
        return all(_bodies(record) is not None for record in sample.records)

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        records = records_of(log, tally, self.name)
        yield from expanded(log, records, lambda record: _rows_of(record.value, record.line, tally), _COLUMNS)


def _bodies(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool] | None:
    """Request body, response body, and whether the call failed; ``None`` if the record is no such pair."""
    if "choices" in record:
        return dict(record), dict(record), bool(record.get("error"))
    if not any(name in record for name in _RESPONSE) and not ("error" in record and _first(record, _REQUEST)):
        return None
    request = _object(_first(record, _REQUEST))
    request = _object(request.get("body")) or request
    answer = _decoded(_first(record, _RESPONSE))
    response = joined_chunks(answer) if isinstance(answer, list) else _object(answer)
    status = response.get("status_code", record.get("status_code"))
    response = _object(response.get("body")) or response
    if not request and not ({"choices", "error", "usage"} & response.keys()) and "error" not in record:
        return None
    failed = bool(record.get("error") or response.get("error") or (type(status) is int and status >= 400))
    return request, response, failed


def _first(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _decoded(value: object) -> object:
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value


def _object(value: object) -> dict[str, Any]:
    value = _decoded(value)
    return value if isinstance(value, dict) else {}


def _rows_of(record: Mapping[str, Any], line: int, tally: Tally) -> list[dict[str, Any]]:
    """A row for each choice; one that ends in an error where the call failed before it had any."""
    bodies = _bodies(record)
    if bodies is None:
        tally.read(1)
        tally.drop("no request with its response", [line])
        return []
    request, response, failed = bodies
    choices = choices_of(response)
    tally.read(max(len(choices), 1))
    shared = _prompt(request) | _shared(record, request, response, tally)
    usage = _object(response.get("usage"))
    shared["prompt_tokens"] = _prompt_tokens(usage, shared, tally)
    if not choices:
        spent = _first(usage, ("completion_tokens", "output_tokens"))
        return [shared | {"output_tokens": spent or 0, "end": EndReason.ERROR.value}]
    counts = _output_tokens(usage, choices, line, tally)
    return [
        shared | {"request_id": _numbered(shared["request_id"], choice, len(choices))} | _answer(choice, count, failed)
        for choice, count in zip(choices, counts, strict=True)
    ]


def _answer(choice: Choice, count: object, failed: bool) -> dict[str, Any]:
    """A generation that stopped without a reason was cut off by whatever ended the log."""
    cut = EndReason.ERROR if failed else EndReason.UNFINISHED
    return {"output": choice.text, "output_tokens": count, "end": choice.finish_reason or cut.value}


def _numbered(request_id: str | None, choice: Choice, choices: int) -> str | None:
    return f"{request_id}#{choice.place}" if request_id is not None and choices > 1 else request_id


def _output_tokens(usage: Mapping[str, Any], choices: Sequence[Choice], line: int, tally: Tally) -> list[object]:
    total = _first(usage, ("completion_tokens", "output_tokens"))
    if total is None:
        note_estimates(["some output_tokens"], tally)
        return [estimate_tokens(choice.text) for choice in choices]
    if len(choices) == 1 or type(total) is not int or total < 0:
        return [total] * len(choices)
    tally.repair("several choices: their tokens, counted together, are dealt out by their texts", [line])
    return list(shared_out(total, choices))


def _prompt_tokens(usage: Mapping[str, Any], row: Mapping[str, Any], tally: Tally) -> object:
    counted: object = _first(usage, ("prompt_tokens", "input_tokens"))
    if counted is not None or (row["messages"] is None and row["prompt"] is None):
        return counted
    note_estimates(["some prompt_tokens"], tally)
    if row["messages"] is not None:
        return estimate_prompt_tokens(msgspec.json.decode(row["messages"]))
    return estimate_tokens(row["prompt"])


def _prompt(request: Mapping[str, Any]) -> dict[str, Any]:
    messages, prompt = request.get("messages"), request.get("prompt")
    chat = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    return {
        "messages": msgspec.json.encode(messages).decode() if chat else None,
        "prompt": text_of(prompt) or None,
    }


def _shared(
    record: Mapping[str, Any], request: Mapping[str, Any], response: Mapping[str, Any], tally: Tally
) -> dict[str, Any]:
    """What all choices of one response have in common."""
    arrival, finished = _times(record, response, tally)
    request_id = _first(record, _IDS) or response.get("id")
    session = _first(record, _SESSION) or _first(_object(request.get("metadata")), _SESSION)
    parameters = {name: value for name, value in request.items() if name not in _NO_PARAMETERS}
    return {
        "request_id": str(request_id) if isinstance(request_id, str | int) else None,
        "arrival": arrival,
        "finished": finished,
        "model": _first(request, ("model",)) or response.get("model"),
        "tenant": _first(record, ("tenant", "user")) or request.get("user"),
        "session": session,
        "max_tokens": _first(request, _CAP),
        "context_limit": _first(record, ("context_limit", "max_model_len")),
        "parameters": to_json(parameters),
        "attributes": to_json(_object(record.get("attributes"))),
    }


def _times(record: Mapping[str, Any], response: Mapping[str, Any], tally: Tally) -> tuple[object, object]:
    """Arrival and finish in nanoseconds; what cannot be read is handed on, to be counted."""
    told = _first(record, _ARRIVAL)
    if told is not None:
        note_zones([told], tally)
    elif response.get("created") is not None:
        tally.note("clock: arrivals are the responses' created times, in whole seconds")
        told = response["created"]
    arrival, finished = instant(told), instant(_first(record, _FINISHED))
    for name, unit in _DURATION.items():
        lasted = instant(record.get(name), unit)
        if finished is None and arrival is not None and lasted is not None:
            finished = arrival + lasted
    return told if arrival is None else arrival, finished


OPENAI = _OpenAi()
