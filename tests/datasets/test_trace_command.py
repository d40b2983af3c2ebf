"""``endcast trace``, as a user calls it: exit codes, JSON, and nothing written where it failed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from endcast.cli import main
from endcast.cli.logs import parse_columns
from endcast.datasets.read import read
from endcast.errors import InputError

LOG = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68059,374,44\nsoon,1,1\n2023-11-16 18:15:50,396,109\n"
)


class Run:
    """Calls the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(["trace", *map(str, arguments)])
        out, err = self._capsys.readouterr()
        code = exit_.value.code
        assert isinstance(code, int)
        return code, out, err

    def json(self, *arguments: object) -> Any:
        code, out, _ = self(*arguments, "--json")
        assert code == 0
        return json.loads(out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def test_convert_says_what_it_dropped_and_why(run: Run, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    code, text, _ = run("convert", log, "--out", out)
    assert code == 0
    assert "azure, 3 requests read, 2 kept, 1 dropped" in text
    assert "dropped 1 (line 3): the arrival is not a time that can be read" in text
    assert len(read(out).trace) == 2


def test_convert_as_json(run: Run, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    found = run.json("convert", log, "--out", out, "--format", "azure")
    assert (found["out"], found["format"], found["rows_read"], found["rows_kept"]) == (str(out), "azure", 3, 2)
    assert found["dropped"] == {"the arrival is not a time that can be read": {"count": 1, "first": [3]}}
    assert len(found["sha256"]) == 64


def test_convert_with_a_column_map(run: Run, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "t.parquet"
    log.write_text("in,out\n5,6\n")
    found = run.json("convert", log, "--out", out, "--columns", "prompt_tokens=in,output_tokens=out")
    assert found["format"] == "generic"
    assert read(out).trace.prompt_tokens.tolist() == [5]


def test_describe_as_table_and_as_json(run: Run, log: Path) -> None:
    code, text, _ = run("describe", log)
    assert code == 0
    assert "output tokens in all" in text
    assert "153" in text
    assert "every answer counts as ended by itself" in text
    found = run.json("describe", log)
    assert found["requests"] == 2
    assert found["read"]["rows_read"] == 3
    assert found["ends"]["stop"] == 2


def test_synth_is_seeded_and_can_have_texts(run: Run, tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{i}.parquet" for i in range(3))
    first = run.json("synth", "--requests", 60, "--seed", 4, "--out", one)
    again = run.json("synth", "--requests", 60, "--seed", 4, "--out", two)
    assert first["digest"] == again["digest"] == read(one).trace.digest
    assert sum(first["ends"].values()) == first["requests"] == 60
    code, text, _ = run("synth", "--requests", 60, "--seed", 4, "--text", "--out", three)
    assert (code, f"wrote {three}: 60 requests" in text) == (0, True)
    assert read(three).trace.table.column("output").null_count == 0


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "is empty"),
        (b"a,b\n1,2\n", [], "is no log of a known format; it has a, b"),
        (gzip.compress(LOG.encode())[:-9], [], "is cut off"),
        (LOG.encode(), ["--format", "mooncake"], "is no JSON"),
        (b"\x00\x01\x02", [], "is no log of a known format"),
        (LOG.splitlines()[0].encode(), [], "holds no usable request"),
    ],
)
def test_bad_logs_exit_with_one_line_and_write_nothing(
    run: Run, tmp_path: Path, content: bytes, arguments: list[str], message: str
) -> None:
    log, out = tmp_path / "log", tmp_path / "t.parquet"
    log.write_bytes(content)
    for command in (["convert", log, "--out", out], ["describe", log]):
        code, text, err = run(*command, *arguments)
        assert (code, text) == (1, "")
        assert message in err
        assert "Traceback" not in err
        assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    "arguments",
    [["--format", "nope"], ["--columns", "prompt_tokens"], ["--columns", "nope=a"], ["--columns", "end=a,end=b"]],
)
def test_misuse_exits_with_2(run: Run, log: Path, tmp_path: Path, arguments: list[str]) -> None:
    code, _, err = run("convert", log, "--out", tmp_path / "t.parquet", *arguments)
    assert code == 2
    assert err.startswith("error: ")


def test_synth_refuses_impossible_numbers(run: Run, tmp_path: Path) -> None:
    code, _, err = run("synth", "--requests", 0, "--out", tmp_path / "t.parquet")
    assert code == 2
    assert "requests: must lie between 1 and" in err


def test_column_maps() -> None:
    assert parse_columns(None) == {}
    assert parse_columns(["a=b,c = d", "e=f g"]) == {"a": "b", "c": "d", "e": "f g"}
    for wrong in ("a", "=b", "a=", "a=b,,c=d"):
        with pytest.raises(InputError, match="is not of the form"):
            parse_columns([wrong])
