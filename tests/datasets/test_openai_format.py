"""OpenAI-style logs: usage, finish reasons, failures, streams, several choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.completions import Choice, answer_text, joined_chunks, shared_out
from endcast.datasets.read import Reading, read

REQUEST = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 50,
    "temperature": 0.3,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "stop": ["\n"],
    "user": "u1",
}


def response(text: str = "hello", reason: str | None = "stop", tokens: int | None = 5) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"id": "r", "created": 1700000000, "choices": [choice], **usage}


def read_records(path: Path, *records: dict[str, Any]) -> Reading:
    path.write_bytes(b"\n".join(msgspec.json.encode(record) for record in records))
    return read(path, format="openai")


def row(path: Path, *records: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = read_records(path, *records).trace.table.to_pylist()[0]
    return found


def test_a_request_with_its_response(tmp_path: Path) -> None:
    record = {"timestamp": "2023-11-14T22:13:20.5Z", "session_id": "s", "request": REQUEST, "response": response()}
    found = row(tmp_path / "log", record | {"latency_ms": 1500, "max_model_len": 4096})
    assert found["request_id"] == "r"
    assert found["arrival_ns"] == 1_700_000_000_500_000_000
    assert found["finished_ns"] == 1_700_000_002_000_000_000
    assert (found["prompt_tokens"], found["output_tokens"], found["end"]) == (9, 5, "stop")
    assert (found["max_tokens"], found["context_limit"]) == (50, 4096)
    assert (found["model"], found["tenant"], found["session"]) == ("m", "u1", "s")
    assert msgspec.json.decode(found["messages"]) == REQUEST["messages"]
    assert msgspec.json.decode(found["parameters"]) == {k: REQUEST[k] for k in ("temperature", "tools", "stop")}


@pytest.mark.parametrize(
    ("reason", "end"),
    [("stop", "stop"), ("tool_calls", "stop"), ("length", "length"), ("content_filter", "error"), (None, "unfinished")],
)
def test_finish_reasons(tmp_path: Path, reason: str | None, end: str) -> None:
    assert row(tmp_path / "log", {"request": REQUEST, "response": response(reason=reason)})["end"] == end


@pytest.mark.parametrize(
    "failure",
    [
        {"request": REQUEST, "error": {"message": "overloaded"}},
        {"request": REQUEST, "response": {"error": {"message": "overloaded"}}},
        {"request": REQUEST, "response": {"status_code": 503, "body": {}}},
        {"request": REQUEST, "response": None, "status_code": 500, "error": None},
    ],
)
def test_failures_have_no_tokens_and_end_in_an_error(tmp_path: Path, failure: dict[str, Any]) -> None:
    reading = read_records(tmp_path / "log", failure, {"request": REQUEST, "response": response()})
    assert reading.trace.output_tokens.tolist() == [0, 5]
    assert reading.trace.end.tolist() == ["error", "stop"]
    assert reading.report.repaired["zero output tokens: a failure, kept and censored at 0"].first == (1,)


def test_missing_usage_is_estimated_and_said(tmp_path: Path) -> None:
    reading = read_records(tmp_path / "log", {"request": REQUEST, "response": response("x" * 45, tokens=None)})
    assert reading.trace.output_tokens.tolist() == [10]
    assert reading.trace.prompt_tokens.tolist() == [5]
    assert sum(note.startswith("ESTIMATED, not counted: some") for note in reading.report.notes) == 2


def test_several_choices_share_the_usage(tmp_path: Path) -> None:
    body = response(tokens=12)
    body["choices"] = [
        {"index": 1, "message": {"content": "x" * 90}, "finish_reason": "length"},
        {"index": 0, "message": {"content": "x" * 18}, "finish_reason": "stop"},
    ]
    reading = read_records(tmp_path / "log", {"request": REQUEST | {"n": 2}, "response": body})
    assert reading.trace.table.column("request_id").to_pylist() == ["r#0", "r#1"]
    assert reading.trace.output_tokens.tolist() == [2, 10]
    assert reading.trace.end.tolist() == ["stop", "length"]
    assert any("several choices" in reason for reason in reading.report.repaired)


def test_streamed_chunks_add_up(tmp_path: Path) -> None:
    chunks: list[object] = [
        {"id": "r", "created": 1700000000, "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"id": "r", "choices": [{"index": 0, "delta": {"content": "hel"}}]},
        {"id": "r", "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]},
        {"id": "r", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        None,
    ]
    found = row(tmp_path / "log", {"request": REQUEST, "response": chunks})
    assert (found["output"], found["output_tokens"], found["end"], found["request_id"]) == ("hello", 2, "stop", "r")
    cut = row(tmp_path / "log", {"request": REQUEST, "response": chunks[:2]})
    assert (cut["output"], cut["end"]) == ("hel", "unfinished")
    failed = row(tmp_path / "log", {"request": REQUEST, "response": [*chunks[:2], {"error": {"message": "x"}}]})
    assert (failed["output"], failed["end"]) == ("hel", "error")


def test_batch_results_bodies_as_text_and_responses_alone(tmp_path: Path) -> None:
    batch = {"custom_id": "k", "response": {"status_code": 200, "body": response()}, "error": None}
    assert row(tmp_path / "log", batch)["request_id"] == "k"
    as_text = {"request": msgspec.json.encode(REQUEST).decode(), "response": msgspec.json.encode(response()).decode()}
    assert row(tmp_path / "log", as_text)["max_tokens"] == 50
    alone = row(tmp_path / "log", response())
    assert (alone["arrival_ns"], alone["output_tokens"]) == (1_700_000_000 * 10**9, 5)


def test_created_is_the_arrival_where_nothing_better_is_told(tmp_path: Path) -> None:
    notes = read_records(tmp_path / "log", {"request": REQUEST, "response": response()}).report.notes
    assert "clock: arrivals are the responses' created times, in whole seconds" in notes


def test_all_that_was_generated_is_the_output() -> None:
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    message = {"reasoning_content": "hmm", "content": "yes", "tool_calls": calls}
    assert answer_text(message) == '<think>\nhmm\n</think>\nyes\n{"name":"f","arguments":"{}"}'
    pieces = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "h"}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "mm", "content": "y"}}]},
        {"choices": [{"index": 0, "delta": {"content": "es"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}}]},
    ]
    assert answer_text(joined_chunks(pieces)["choices"][0]["message"]) == answer_text(message)


@given(st.integers(0, 10_000), st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_shares_add_up(total: int, texts: list[str]) -> None:
    parts = shared_out(total, [Choice(i, text, "stop") for i, text in enumerate(texts)])
    assert sum(parts) == total
    assert min(parts) >= 0
