"""Conversations: every answer is a request, and every estimate is called one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.estimate import estimate_prompt_tokens, estimate_tokens
from endcast.datasets.messages import text_of
from endcast.datasets.read import Reading, read


def read_records(path: Path, *records: dict[str, Any], array: bool = False) -> Reading:
    body = msgspec.json.encode(list(records)) if array else b"\n".join(msgspec.json.encode(r) for r in records)
    path.write_bytes(body)
    return read(path)


SHAREGPT = {
    "id": "c1",
    "conversations": [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "hello"},
        {"from": "gpt", "value": "hi there"},
        {"from": "human", "value": "再见"},
        {"from": "gpt", "value": "再见！祝你愉快。"},
    ],
}
LMSYS = {
    "conversation_id": "l1",
    "model": "vicuna-13b",
    "conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    "turn": 1,
    "language": "English",
    "redacted": False,
}
WILDCHAT = {
    "conversation_hash": "w1",
    "model": "gpt-4",
    "timestamp": "2023-04-09T00:02:53+00:00",
    "conversation": [
        {"role": "user", "content": "q", "timestamp": None},
        {"role": "assistant", "content": "a" * 45, "timestamp": "2023-04-09T00:01:00+00:00"},
        {"role": "user", "content": "q", "timestamp": None},
        {"role": "assistant", "content": "b"},
    ],
}


def test_each_answer_is_a_request_with_all_before_it_as_prompt(tmp_path: Path) -> None:
    table = read_records(tmp_path / "log", SHAREGPT, array=True).trace.table
    assert table.column("request_id").to_pylist() == ["c1#1", "c1#2"]
    assert table.column("session").to_pylist() == ["c1", "c1"]
    assert table.column("output").to_pylist() == ["hi there", "再见！祝你愉快。"]
    chats = [msgspec.json.decode(text) for text in table.column("messages").to_pylist()]
    assert [[m["role"] for m in chat] for chat in chats] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
    ]
    assert table.column("prompt_tokens").to_pylist() == [estimate_prompt_tokens(chat) for chat in chats]


def test_estimates_are_said_loudly(tmp_path: Path) -> None:
    notes = read_records(tmp_path / "log", LMSYS).report.notes
    assert any(note.startswith("ESTIMATED, not counted: prompt_tokens and output_tokens") for note in notes)
    assert "clock: the log tells no arrival times" in notes


def test_wildchat_finish_times_give_estimated_arrivals(tmp_path: Path) -> None:
    reading = read_records(tmp_path / "log", WILDCHAT)
    finished = reading.trace.table.column("finished_ns").to_pylist()
    assert finished == [1_680_998_460 * 10**9, 1_680_998_573 * 10**9]  # the last answer has the conversation's time
    lasted = (finished[0] - reading.trace.arrival_ns[0]) / 1e9
    assert lasted == pytest.approx(0.2 + reading.trace.prompt_tokens[0] / 10_000 + 0.03 * 10)
    assert any(note.startswith("ESTIMATED, not logged: arrivals") for note in reading.report.notes)


def test_times_of_the_questions_are_arrivals(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "q", "timestamp": "2023-04-09T00:00:50Z"},
        {"role": "assistant", "content": "a", "timestamp": "2023-04-09T00:01:00Z"},
    ]
    reading = read_records(tmp_path / "log", {"conversation_id": "x", "conversation": turns})
    assert reading.trace.finished_s.tolist() == [10.0]
    assert not any("arrivals" in note for note in reading.report.notes)


def test_odd_records_are_dropped_or_repaired_with_their_lines(tmp_path: Path) -> None:
    reading = read_records(
        tmp_path / "log",
        {"conversations": [{"from": "gpt", "value": "out of the blue"}, *SHAREGPT["conversations"][1:3]]},
        {"conversations": [{"from": "human", "value": "nobody answers"}]},
        LMSYS,
    )
    assert reading.report.dropped["no answer in the conversation"].first == (2,)
    reason = "an answer that nothing was asked for: taken as the beginning of the prompt"
    assert reading.report.repaired[reason].first == (1,)
    assert reading.trace.table.column("session").to_pylist() == ["line 1", "l1"]


def test_an_empty_answer_stays_at_zero_tokens(tmp_path: Path) -> None:
    silent = LMSYS | {"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}
    reading = read_records(tmp_path / "log", silent, LMSYS | {"conversation_id": "l2"})
    assert reading.trace.output_tokens.tolist() == [0, 1]
    assert reading.trace.end.tolist() == ["stop", "stop"]


def test_content_parts_are_text_too(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "look at "},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "it"},
    ]
    record = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}]}
    messages = read_records(tmp_path / "log", record).trace.table.column("messages")[0].as_py()
    assert msgspec.json.decode(messages) == [{"role": "user", "content": "look at it"}]
    assert text_of(None) == text_of(5) == text_of([5, {"text": 7}]) == ""


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("x" * 45, 10), ("我们可以用" * 13, 50), ("привет" * 10, 30), ("é" * 9, 2)]
)
def test_the_rule(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(st.text(max_size=50), st.text(max_size=50))
def test_estimates_grow_with_the_text(one: str, other: str) -> None:
    assert max(estimate_tokens(one), estimate_tokens(other)) <= estimate_tokens(one + other)
    assert estimate_tokens(one + other) <= estimate_tokens(one) + estimate_tokens(other)
    assert (estimate_tokens(one) == 0) == (one == "")


def test_conversations_come_as_parquet_too(tmp_path: Path) -> None:
    """As LMSYS-Chat-1M and WildChat are published: nested lists, times with any resolution."""
    moment = datetime(2023, 4, 9, 0, 1, tzinfo=UTC)
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("timestamp", pa.timestamp("ns", "UTC"))])
    turns = pa.array(
        [
            [
                {"role": "user", "content": "q", "timestamp": None},
                {"role": "assistant", "content": "a", "timestamp": moment},
            ],
            [{"role": "user", "content": "nobody answers", "timestamp": None}],
        ],
        pa.list_(turn),
    )
    moved = pa.compute.add(pa.array([moment] * 2, pa.timestamp("ns", "UTC")), pa.scalar(1, pa.duration("ns")))
    path = tmp_path / "log"
    pq.write_table(pa.table({"conversation_hash": ["w1", "w2"], "conversation": turns, "timestamp": moved}), path)
    reading = read(path)
    assert reading.report.format == "conversations"
    assert reading.trace.table.column("request_id").to_pylist() == ["w1#1"]
    assert reading.trace.table.column("finished_ns").to_pylist() == [1_680_998_460 * 10**9]
    assert (reading.report.numbering, reading.report.dropped["no answer in the conversation"].first) == ("row", (2,))
