"""Texts as records with their lines: JSON arrays in pieces, long lines, odd encodings, several compressed parts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast.datasets import json_records as json_logs
from endcast.datasets import text
from endcast.datasets.files import open_log
from endcast.datasets.read import read
from endcast.datasets.report import Tally
from endcast.errors import TraceError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    with open_log(path) as log:
        return [(record.line, record.value) for record in json_logs.json_records(log, Tally())]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.dictionaries(st.text(max_size=5), _VALUES, max_size=4), min_size=1, max_size=6),
    indent=st.integers(-1, 3),
    piece=st.integers(1, 40),
)
def test_an_array_in_pieces_is_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[dict[str, Any]], indent: int, piece: int
) -> None:
    monkeypatch.setattr(json_logs, "_PIECE", piece)
    body = msgspec.json.format(msgspec.json.encode(values), indent=indent)
    path = tmp_path / "log.json"
    path.write_bytes(b"\n" + body + b" \n")
    found = records(path)
    assert [value for _, value in found] == values
    lines = body.decode().split("\n")
    assert all(lines[line - 2].lstrip().startswith(("{", "[{")) for line, _ in found)


@pytest.mark.parametrize("body", [b'[{"a":1}', b'[{"a":1},', b'[{"a":1} {"b":2}]', b'[{"a":', b"[{]", b'[{"a":"x'])
def test_a_damaged_array_says_where(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(b"\n" + body)
    with pytest.raises(TraceError, match="line 2: "):
        records(path)


def test_elements_that_are_no_objects_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(b'[1,\n{"a": 1},\n"x", "\\ud800", {"b": 2}]')
    with open_log(path) as log:
        tally = Tally()
        assert [record.line for record in json_logs.json_records(log, tally)] == [2, 3]
    assert {reason: lines.first for reason, lines in tally.dropped.items()} == {
        "not a JSON object": (1, 3),
        "not valid JSON": (3,),
    }


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_RECORD_BYTES", 1 << 20)
    path = tmp_path / "log.csv"
    path.write_bytes(b"output_tokens,output\n1," + b"x" * (1 << 21) + b"\n")
    with pytest.raises(TraceError, match="line 2: is longer than 1 MiB"):
        read(path)
    path.write_bytes(b'[{"output_tokens": 1, "output": "' + b"x" * (1 << 22) + b'"}]')
    with pytest.raises(TraceError, match="line 1: a JSON value is damaged, cut off or too long"):
        read(path)


def test_an_open_quote_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_RECORD_BYTES", 1 << 10)
    path = tmp_path / "log.csv"
    path.write_bytes(b'output_tokens,output\n1,"open\n' + b"2,b\n" * 1000)
    with pytest.raises(TraceError, match=r"line \d+: is no CSV \(field larger than field limit"):
        read(path)


def test_old_line_ends_are_refused_and_new_ones_are_all_one(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for ends in (b"\n", b"\r\n"):
        path.write_bytes(ends.join([b"\xef\xbb\xbfoutput_tokens,model", b"3,a", b"4,b"]))
        assert read(path).trace.output_tokens.tolist() == [3, 4]
    path.write_bytes(b"output_tokens,model\r3,a\r4,b")
    with pytest.raises(TraceError, match="line 1: is no CSV"):
        read(path)


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"output_tokens,model\n3,caf\xe9\n4,b\n")
    reading = read(path)
    assert reading.trace.table.column("model").to_pylist() == ["caf�", "b"]
    assert reading.report.repaired["bytes that are not UTF-8 were replaced"].first == (2,)
    path.write_bytes(b'[{"output_tokens": 3, "model": "caf\xe9"}]')
    assert "bytes that are not UTF-8 were replaced" in read(path).report.notes


def test_utf16_and_a_column_named_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("output_tokens,model\n3,a\n", encoding="utf-16")
    with pytest.raises(TraceError, match="no log of a known format"):
        read(path)
    path.write_text("output_tokens,output_tokens\n3,4\n")
    with pytest.raises(TraceError, match="line 1: the column 'output_tokens' is there twice"):
        read(path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_parts_one_after_the_other_are_one_log(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(b"output_tokens\n" * 1) + pack(b"3\n" * 30_000) + pack(b"4\n"))
    trace = read(path).trace
    assert trace.output_tokens.tolist() == [3] * 30_000 + [4]


def test_progress_is_told_and_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"output_tokens,model\n" + (b"3," + b"x" * 100_000 + b"\n") * 40))
    told: list[tuple[int, int]] = []
    read(path, progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 3
    assert {total for _, total in told} == {path.stat().st_size}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == path.stat().st_size
