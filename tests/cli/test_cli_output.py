"""What commands print with."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from endcast.cli import output
from endcast.cli.output import emit_json, progress, table, to_json
from endcast.testing import ManualClock


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def test_json_holds_no_number_that_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": math.nan, "b": [math.inf, -math.inf], "c": np.float64("nan"), "d": np.array([1.5, math.nan])})
    told = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    assert told == {"a": None, "b": [None, None], "c": None, "d": [1.5, None]}


def test_json_takes_numpy_numbers() -> None:
    assert json.loads(to_json({"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)})) == {
        "n": 3,
        "x": 0.5,
        "b": True,
    }


def test_json_refuses_what_it_does_not_know() -> None:
    with pytest.raises(NotImplementedError, match="cannot write a object as JSON"):
        to_json({"x": object()})


def test_tables_print_cells_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(table("Title", ("name", "value"), [("[red]x[/red]", 1.5), ("y", None)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "[red]x[/red]" in text and "1.5" in text and "–" in text and "Title" in text


def test_quick_work_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", total=3) as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_sparse_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    lines = output._Lines("Reading", None, clock=clock)
    for done in range(1, 121):
        clock.advance(1.0)
        lines.update(done, 120)
    lines.finish()
    out, err = capsys.readouterr()
    printed = err.splitlines()
    assert out == "" and 4 <= len(printed) <= 10
    assert printed[0] == "Reading: 4 % after 5 s" and printed[-1] == "Reading: 100 % after 120 s, done"


def test_work_of_unknown_size_counts(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    lines = output._Lines("Reading", None, clock=clock)
    clock.advance(6.0)
    lines.advance(12_345)
    assert capsys.readouterr().err == "Reading: 12,345 after 6 s\n"


def test_a_terminal_gets_a_bar_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(output, "err_console", terminal)
    with progress("Reading", total=2) as bar:
        bar.advance()
        bar.update(2, 2)
    assert isinstance(terminal.file, io.StringIO) and "Reading" in terminal.file.getvalue()
    assert capsys.readouterr().out == ""
