"""One suite for every registered trace format: give it a golden log here, and it goes through all of it."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from endcast.datasets.files import open_log
from endcast.datasets.formats import FORMATS
from endcast.datasets.formats.base import take_sample
from endcast.datasets.read import convert, read, read_batches
from endcast.datasets.schema import SCHEMA
from endcast.datasets.write import write_trace
from endcast.errors import TraceError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def _canonical() -> bytes:
    rows = [
        {
            "request_id": "a",
            "arrival_ns": 5,
            "prompt_tokens": 3,
            "output_tokens": 7,
            "end": "stop",
            "prefix_blocks": [1],
        },
        {"request_id": "b", "arrival_ns": 9, "output_tokens": 4, "end": "length", "max_tokens": 4, "model": "m"},
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink)
    return sink.getvalue()


def _lines(*records: object) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


#: Format → a log of it, and (prompt, output, end) of each row as they must come out.
GOLDEN: dict[str, tuple[bytes, list[tuple[int | None, int, str]]]] = {
    "canonical": (_canonical(), [(3, 7, "stop"), (None, 4, "length")]),
    "generic": (
        b"request_id,arrival_s,prompt_tokens,output_tokens,end\nx,0.5,10,20,eos\ny,1.5,11,21,max_tokens\n",
        [(10, 20, "stop"), (11, 21, "length")],
    ),
    "azure": (
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
            b"2023-11-16 18:15:50.9951690,396,109\r\n"
        ),
        [(374, 44, "stop"), (396, 109, "stop")],
    ),
    "mooncake": (
        _lines(
            {"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]},
            {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 2]},
        ),
        [(600, 50, "stop"), (700, 5, "stop")],
    ),
    "burstgpt": (
        (
            b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            b"5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
        ),
        [(472, 18, "stop"), (1087, 0, "error")],
    ),
    "conversations": (
        msgspec.json.encode(
            [
                {
                    "id": "c1",
                    "conversations": [
                        {"from": "human", "value": "x" * 9},
                        {"from": "gpt", "value": "y" * 18},
                        {"from": "human", "value": "z" * 9},
                        {"from": "gpt", "value": "w" * 45},
                    ],
                }
            ]
        ),
        [(6, 4, "stop"), (20, 10, "stop")],
    ),
    "openai": (
        _lines(
            {
                "timestamp": 1700000000,
                "request": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
                "response": {
                    "id": "r1",
                    "choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "length"}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 5},
                },
            },
            {
                "timestamp": 1700000001,
                "request": {"model": "m", "prompt": "hi"},
                "response": {
                    "id": "r2",
                    "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 2, "completion_tokens": 3},
                },
            },
        ),
        [(9, 5, "length"), (2, 3, "stop")],
    ),
    "outcomes": (
        _lines(
            {
                "outcome_log": 1,
                "key": "r:a",
                "at": 1700000009.5,
                "outcome": {"output_tokens": 7, "end": "stop", "finished": 1700000009.25},
                "request": {"request_id": "a", "arrival": 1700000000.5, "prompt_tokens": 30, "prefix_blocks": [1, 2]},
                "served": {"bundle": "sha256:x", "entered": 0},
            },
            {
                "outcome_log": 1,
                "key": "f:f-1",
                "at": 1700000010.5,
                "outcome": {"output_tokens": 4, "end": "length", "finished": 1700000010.25},
                "request": {"arrival": 1700000001.5, "max_tokens": 4, "parameters": {"n": 1}},
            },
        ),
        [(30, 7, "stop"), (None, 4, "length")],
    ),
}


@pytest.fixture(params=list(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    found = str(request.param)
    assert found in GOLDEN, f"the format {found} has no golden log in this file"
    return found


@pytest.fixture
def log(name: str, tmp_path: Path) -> Path:
    path = tmp_path / "log.bin"  # a name that tells nothing
    path.write_bytes(GOLDEN[name][0])
    return path


def test_golden_log_is_read_as_it_must_be(name: str, log: Path) -> None:
    reading = read(log, format=name)
    rows = reading.trace.table.select(["prompt_tokens", "output_tokens", "end"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == GOLDEN[name][1]
    assert reading.report.format == name
    assert reading.report.rows_read == reading.report.rows_kept == len(rows)
    assert not reading.report.dropped


def test_format_declares_itself(name: str) -> None:
    format = FORMATS.get(name)
    assert format.name == name
    assert format.summary


def test_detection_picks_exactly_this_format(name: str, log: Path) -> None:
    with open_log(log) as opened:
        sample = take_sample(opened)
    assert [other for other in FORMATS if FORMATS.get(other).detect(sample)] == [name]
    assert read(log).report.format == name


def test_reading_twice_gives_the_same(log: Path) -> None:
    assert read(log).report == read(log).report
    assert read(log).trace.digest == read(log).trace.digest


def test_converting_writes_what_reading_gives_and_reads_back_the_same(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    report = convert(log, out)
    first = read(log)
    assert report == first.report
    again = read(out)
    assert again.report.format == "canonical"
    assert again.trace.table.equals(first.trace.table)
    assert again.trace.digest == first.trace.digest
    assert set(first.report.notes) <= set(again.report.notes)
    twice = tmp_path / "twice.parquet"
    write_trace(twice, again.trace)
    assert read(twice).trace.digest == first.trace.digest


def test_batches_hold_the_same_rows(log: Path) -> None:
    with read_batches(log) as batches:
        table = pa.Table.from_batches(list(batches))
        report = batches.report
    assert table.equals(read(log).trace.table)  # the golden logs are in order
    assert report.rows_kept == table.num_rows


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_equals_plain(name: str, log: Path, tmp_path: Path, packer: str) -> None:
    packed = tmp_path / "packed.bin"
    packed.write_bytes(PACKERS[packer](log.read_bytes()))
    assert read(packed).report.format == name
    assert read(packed).trace.digest == read(log).trace.digest
    assert read(packed).report.sha256 != read(log).report.sha256


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("forced", [True, False])
def test_cut_off_compressed_log_is_refused_and_nothing_written(
    name: str, log: Path, tmp_path: Path, packer: str, forced: bool
) -> None:
    packed = PACKERS[packer](log.read_bytes())
    cut = tmp_path / "cut.bin"
    for size in (len(packed) // 2, len(packed) - 1):
        cut.write_bytes(packed[:size])
        with pytest.raises(TraceError, match=r"cut off|damaged"):
            convert(cut, tmp_path / "out.parquet", format=name if forced else None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.bin", "log.bin"]


def test_flipped_bytes_never_raise_anything_but_a_trace_error(name: str, log: Path) -> None:
    whole = log.read_bytes()
    for place in range(0, len(whole), max(len(whole) // 41, 1)):
        log.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            read(log, format=name)
        except TraceError as error:
            assert str(log) in str(error)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=b"[")
@example(data=b"[{}")
@example(data=b"{}\n")
@example(data=b'"\n')
@example(data=b"\x1f\x8b")
@example(data=b"\x28\xb5\x2f\xfd")
@example(data=b"PAR1PAR1")
@example(data=b"[" * 5000)
@example(data=b"[" + b"9" * 5000 + b"]")
@example(data=b"\xff\xfe{\x00}\x00")
def test_arbitrary_bytes_raise_only_trace_errors(name: str, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "noise.bin"
    path.write_bytes(data)
    for format in (name, None):
        with pytest.raises(TraceError):
            read(path, format=format)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("format", ["mooncake", "generic", "conversations", "openai", "outcomes"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_json_logs_with_any_values_never_raise_anything_but_a_trace_error(
    format: str, tmp_path: Path, data: st.DataObject
) -> None:
    """Records of the right keys with wrong values: they are dropped or repaired, and counted."""
    golden = msgspec.json.decode(GOLDEN[format][0].splitlines()[0]) if format != "generic" else _GENERIC_RECORD
    record = golden[0] if isinstance(golden, list) else golden
    spoilt = data.draw(st.fixed_dictionaries({key: st.just(value) | _JSON for key, value in record.items()}))
    path = tmp_path / "spoilt.jsonl"
    path.write_bytes(_lines(spoilt, record))
    try:
        reading = read(path, format=format)
    except TraceError:
        return
    assert reading.report.rows_read == reading.report.rows_kept + reading.report.rows_dropped
    assert len(reading.trace) == reading.report.rows_kept
    assert len(list(reading.trace.requests())) == len(reading.trace)


_GENERIC_RECORD = {
    "request_id": "a",
    "arrival": 1.5,
    "prompt_tokens": 3,
    "output_tokens": 4,
    "end": "stop",
    "max_tokens": 9,
    "context_limit": 100,
    "model": "m",
    "tenant": "t",
    "session": "s",
    "prefix_blocks": [1, 2],
    "prompt": "p",
    "messages": [{"role": "user", "content": "c"}],
    "output": "o",
    "parameters": {"n": 1},
    "attributes": {"k": 1},
    "finished": 2.5,
    "extra": "e",
}
