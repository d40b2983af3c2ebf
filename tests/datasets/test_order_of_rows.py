"""Order, duplicates and the distribution sort on disk, against the obvious way in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast.datasets import sort
from endcast.datasets.order import fingerprints
from endcast.datasets.read import convert, read
from endcast.datasets.schema import SCHEMA
from endcast.datasets.write import write_trace
from endcast.errors import TraceError


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=40), st.integers(1, 400))
def test_sorting_on_disk_equals_sorting_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int]], bucket: int
) -> None:
    monkeypatch.setattr(sort, "BUCKET_BYTES", bucket)
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text("arrival_us,output_tokens\n" + "".join(f"{a},{o}\n" for a, o in rows))
    report = convert(log, out)
    reading = read(log)
    assert report == reading.report
    assert pq.read_table(out).cast(SCHEMA).equals(reading.trace.table)
    expected = sorted(dict.fromkeys(rows), key=lambda row: row[0])  # equal rows of a fine clock are one
    if any(arrival for arrival, _ in expected):
        found = zip(reading.trace.arrival_ns // 1000, reading.trace.output_tokens, strict=True)
        assert [tuple(map(int, row)) for row in found] == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "out"]


def test_many_buckets_are_dealt_and_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "BUCKET_BYTES", 1 << 11)
    rng = np.random.default_rng(0)
    arrivals = rng.permutation(6_000)
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text("request_id,arrival_us,output_tokens\n" + "".join(f"r{a},{a},{a % 7 + 1}\n" for a in arrivals))
    convert(log, out)
    trace = read(out).trace
    assert (trace.arrival_ns == np.arange(6_000) * 1000).all()
    assert (trace.output_tokens == np.arange(6_000) % 7 + 1).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "out"]


_ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(), st.none() | st.text(max_size=3), st.none() | st.lists(st.integers(0, 3), max_size=3)
    ),
    min_size=2,
    max_size=12,
)


@given(_ROWS, st.integers(1, 11))
def test_fingerprints_are_equal_just_where_rows_are(
    rows: list[tuple[int | None, str | None, list[int] | None]], cut: int
) -> None:
    rows = [(None if a is None else a % (1 << 62), b, c) for a, b, c in rows]

    def hashes(part: list[tuple[int | None, str | None, list[int] | None]]) -> list[int]:
        kinds = (pa.int64(), pa.string(), pa.list_(pa.int64()))
        columns = zip(*part, strict=True)
        arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)]
        return [int(value) for value in fingerprints(arrays)]

    whole = hashes(rows)
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert (whole[i] == whole[j]) == (one == other)
    cut = min(cut, len(rows) - 1)
    assert hashes(rows[:cut]) + hashes(rows[cut:]) == whole


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text("output_tokens\n3\n")
    trace = read(log).trace
    write_trace(out, trace)
    before = out.read_bytes()

    def broken() -> object:
        yield from trace.table.to_batches()
        raise RuntimeError("the log breaks off")

    with pytest.raises(RuntimeError, match="breaks off"):
        write_trace(out, broken())  # type: ignore[arg-type]
    assert out.read_bytes() == before
    with pytest.raises(TraceError, match="no request to write"):
        write_trace(out, iter(()))
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "out"]
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "no" / "folder", trace)


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text("arrival_s,output_tokens\n1,5\n1700000000,5\n")
    with pytest.raises(TraceError, match="mixes times"):
        convert(log, out)
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_a_log_may_be_converted_onto_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("output_tokens\n3\n")
    convert(log, log)
    assert read(log).report.format == "canonical"
