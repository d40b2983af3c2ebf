"""The generic format (CSV, JSON, Parquet, column maps), the canonical one's versions, and BurstGPT's columns."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from endcast.datasets.read import convert, read
from endcast.datasets.schema import SCHEMA, VERSION_KEY
from endcast.datasets.write import write_trace
from endcast.errors import TraceError


def test_a_column_map_reads_any_csv(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("when;in;out;who\n2023-11-16 18:15:46;10;20;alice\n")
    columns = {"arrival": "when", "prompt_tokens": "in", "output_tokens": "out"}
    reading = read(path, columns=columns)
    row = reading.trace.table.to_pylist()[0]
    assert (row["arrival_ns"], row["prompt_tokens"], row["output_tokens"]) == (1_700_158_546 * 10**9, 10, 20)
    assert reading.trace.attribute("who") == ["alice"]
    assert reading.trace.attribute("when") == [None]
    assert reading.report.format == "generic"


def test_a_map_takes_precedence_over_a_column_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("output_tokens,real\n1,20\n")
    assert read(path, columns={"output_tokens": "real"}).trace.output_tokens.tolist() == [20]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("arrival_s", "1.5", 1_500_000_000),
        ("arrival_ms", "1.5", 1_500_000),
        ("arrival_us", "1.5", 1_500),
        ("arrival_ns", "15", 15),
        ("arrival", "1700000000123", 1_700_000_000_123_000_000),
        ("arrival", "2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
    ],
)
def test_names_of_times_tell_their_unit(tmp_path: Path, column: str, value: str, expected: int) -> None:
    csv, jsonl = tmp_path / "csv", tmp_path / "jsonl"
    csv.write_text(f"{column},output_tokens\n{value},3\n")
    number = value if "-" in value else float(value)
    jsonl.write_bytes(msgspec.json.encode({column: number, "output_tokens": 3}))
    assert read(csv).trace.arrival_ns.tolist() == [expected]
    assert read(jsonl).trace.arrival_ns.tolist() == [expected]


def test_durations_become_finishes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("arrival_s,duration_ms,output_tokens\n1,500,3\n2,,3\n")
    table = read(path).trace.table
    assert table.column("finished_ns").to_pylist() == [1_500_000_000, None]


def test_json_values_and_json_texts_are_the_same(tmp_path: Path) -> None:
    values = {
        "output_tokens": 3,
        "messages": [{"role": "user", "content": "hi"}],
        "parameters": {"n": 1},
        "attributes": {"k": 1},
        "prefix_blocks": [1, 2],
        "other": True,
    }
    plain, texts = tmp_path / "plain", tmp_path / "texts"
    plain.write_bytes(msgspec.json.encode(values))
    texts.write_bytes(
        msgspec.json.encode(
            {k: msgspec.json.encode(v).decode() if isinstance(v, list | dict) else v for k, v in values.items()}
        )
    )
    assert read(plain).trace.digest == read(texts).trace.digest
    request = next(iter(read(plain).trace.requests()))
    assert request.messages == ({"role": "user", "content": "hi"},)
    assert request.prefix_blocks == (1, 2)
    assert request.attributes == {"k": 1, "other": True}
    assert request.prompt_tokens == 5  # estimated: the log does not tell


def test_wrong_json_columns_are_taken_as_not_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    wrong = {"messages": "[1]", "parameters": "[", "attributes": [], "prefix_blocks": [0.5]}
    path.write_bytes(msgspec.json.encode({"output_tokens": 3, **wrong}))
    reading = read(path)
    assert next(iter(reading.trace.requests())).messages is None
    assert {lines.first for lines in reading.report.repaired.values()} == {(1,)}
    assert len(reading.report.repaired) == 4


def test_parquet_columns_of_many_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "arrival": pa.array([datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "prompt_tokens": pa.array([7], pa.uint64()),
            "output_tokens": pa.array([3.0], pa.float64()),
            "max_tokens": pa.array([None], pa.int32()),
            "model": pa.array(["m"]).dictionary_encode(),
            "session": pa.array([17], pa.int16()),
            "output": pa.array(["abc"], pa.large_string()),
            "prefix_blocks": pa.array([[1, 2]], pa.large_list(pa.int32())),
            "when": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "parts": pa.array([{"a": [None, {"b": 5}]}]),
        }
    )
    path = tmp_path / "log"
    pq.write_table(table, path)
    row = read(path).trace.table.to_pylist()[0]
    assert row["arrival_ns"] == 1_700_000_000 * 10**9
    assert (row["prompt_tokens"], row["output_tokens"], row["max_tokens"]) == (7, 3, None)
    assert (row["model"], row["session"], row["output"], row["prefix_blocks"]) == ("m", "17", "abc", [1, 2])
    assert row["request_id"] == "1"
    attributes = msgspec.json.decode(row["attributes"])
    assert attributes == {"when": "2023-11-14 22:13:20.123456789", "parts": {"a": [None, {"b": 5}]}}


def test_outputs_without_counts_are_estimated(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(msgspec.json.encode({"prompt": "x" * 45, "output": "y" * 90}))
    reading = read(path)
    assert (reading.trace.prompt_tokens[0], reading.trace.output_tokens[0]) == (10, 20)
    assert any(note.startswith("ESTIMATED") for note in reading.report.notes)


def test_a_trace_of_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    row = {"request_id": "a", "output_tokens": 1, "end": "stop"}
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA.with_metadata({VERSION_KEY: b"99"})), path)
    with pytest.raises(TraceError, match=r"schema version 99, this endcast knows 1\. Update endcast"):
        read(path)
    assert len(read(path, format="generic").trace) == 1


def test_a_trace_that_lacks_a_column_or_a_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    pq.write_table(pa.table({"output_tokens": [1]}).replace_schema_metadata({VERSION_KEY: b"1"}), path)
    with pytest.raises(TraceError, match="lacks the columns request_id"):
        read(path)
    pq.write_table(pa.table({"output_tokens": [1]}), path)
    with pytest.raises(TraceError, match="no version of the canonical trace"):
        read(path, format="canonical")
    with pytest.raises(TraceError, match="no whole Parquet file"):
        path.write_bytes(path.read_bytes()[:-5])
        read(path)


def test_a_converted_trace_remembers_what_was_noted(tmp_path: Path) -> None:
    log, first, second = tmp_path / "log", tmp_path / "first", tmp_path / "second"
    log.write_bytes(msgspec.json.encode({"prompt": "x", "output": "y"}))
    convert(log, first)
    convert(first, second)
    assert any(note.startswith("ESTIMATED") for note in read(second).report.notes)


def test_equal_rows_of_a_canonical_trace_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text('{"timestamp": 5, "input_length": 1, "output_length": 1}\n' * 3)
    convert(log, out)
    assert len(read(out).trace) == 3
    write_trace(out, read(out).trace)
    assert len(read(out).trace) == 3


def test_burstgpt_second_release_tells_sessions_and_elapsed_times(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.5,,2,ChatGPT,36,29,65,API log\n"
    )
    trace = read(path).trace
    assert trace.arrival_ns.tolist() == [19_440_110_000_000_000, 19_440_161_500_000_000]
    assert trace.finished_s.tolist() == [43.0, 53.5]
    assert trace.table.column("session").to_pylist() == ["1722ac82", None]
    assert trace.attribute("log_type") == ["Conversation log", "API log"]
    assert trace.attribute("total_tokens") == [None, None]


def test_mooncake_blocks_that_are_no_ids_are_taken_as_not_told(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = ["[1, 2]", "[1.5]", '"x"', "null", "[]", "[99999999999999999999]"]
    path.write_text(
        "".join(
            f'{{"timestamp": {i}, "input_length": 1, "output_length": 1, "hash_ids": {r}}}\n'
            for i, r in enumerate(rows)
        )
    )
    reading = read(path)
    assert reading.trace.table.column("prefix_blocks").to_pylist() == [[1, 2], None, None, None, [], None]
    assert [lines.first for lines in reading.report.repaired.values()] == [(2, 3, 6)]
