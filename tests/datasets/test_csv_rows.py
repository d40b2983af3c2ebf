"""The fast way through a CSV file against Python's csv module, line by line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from endcast.datasets import text
from endcast.datasets.csv_rows import csv_batches, csv_header
from endcast.datasets.files import open_log
from endcast.datasets.report import Tally
from endcast.errors import TraceError

_FIELD = st.text(alphabet='ab1é中 .#\\\t\x0b"', max_size=4)
_LINE = st.lists(_FIELD, max_size=4).map(",".join)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_LINE, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 30), st.integers(1, 3)
)
@example(["", "1", "", "2"], "\n", True, 4, 1)
@example(['1,"', '",2'], "\n", True, 1, 2)
def test_rows_and_lines_are_those_of_the_csv_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: list[str], end: str, ended: bool, chunk: int, width: int
) -> None:
    monkeypatch.setattr(text, "CHUNK", chunk)
    header = ",".join("xyz"[:width])
    content = end.join([header, *body]) + end * ended
    path = tmp_path / "log"
    path.write_text(content, newline="", encoding="utf-8")
    reader = csv.reader(io.StringIO(content if content.endswith("\n") else content + "\n", newline=""))
    expected: list[tuple[int, list[str]]] = []
    dropped: list[tuple[int, list[str]]] = []
    line = 1
    for row in reader:
        if row and line > 1:
            (expected if len(row) == width else dropped).append((line, [f.replace("\r\n", "\n") for f in row]))
        line = reader.line_num + 1
    tally = Tally()
    with open_log(path) as log:
        assert csv_header(log) == tuple("xyz"[:width])
        found = []
        for batch in csv_batches(log, tally):
            columns = [column.to_pylist() for column in batch.columns]
            found += [(n, list(row)) for n, *row in zip(batch.lines.tolist(), *columns, strict=True)]
    assert [(n, [f.replace("\r\n", "\n") for f in row]) for n, row in found] == expected
    assert sum(lines.count for lines in tally.dropped.values()) == len(dropped)
    assert tally.rows_read == len(expected) + len(dropped)


def test_a_line_end_of_old_in_the_middle_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x,y\n1,2\n3\r4,5\n6,7\n")
    with open_log(path) as log, pytest.raises(TraceError, match="line 3: is no CSV"):
        list(csv_batches(log, Tally()))


def test_damaged_bytes_in_a_later_block_are_counted_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK", 8)
    path = tmp_path / "log"
    path.write_bytes(b"x,y\n1,2\n3,4\n5,\xff\n6,7\n")
    tally = Tally()
    with open_log(path) as log:
        rows = [v for batch in csv_batches(log, tally) for v in batch.columns[1].to_pylist()]
    assert rows == ["2", "4", "�", "7"]
    assert tally.repaired["bytes that are not UTF-8 were replaced"].first == (4,)
