"""``endcast calibrate``, as a user calls it, and what a simulation makes of its file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from endcast.cli import main
from endcast.cli.calibration_steps import read_step_time, read_steps
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.write import write_trace
from endcast.errors import InputError
from endcast.router.scale import StepTime


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, out, err


def recorded(**more: Any) -> pa.Table:
    rng = np.random.default_rng(0)
    batch = rng.integers(1, 65, 400)
    kv_tokens = batch * rng.integers(200, 2500, 400)
    step_s = (0.02 + 5e-5 * batch + 3e-7 * kv_tokens) * np.exp(rng.normal(0.0, 0.01, 400))
    return pa.table({"step_s": step_s, "batch": batch, "kv_tokens": kv_tokens, **more})


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_it_fits_writes_and_plots(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps, table = tmp_path / f"steps.{kind}", recorded()
    if kind == "parquet":
        pq.write_table(table, steps)
    elif kind == "jsonl":
        steps.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pyarrow.csv.write_csv(table, tmp_path / "steps.csv")
        if kind == "csv.gz":
            steps.write_bytes(gzip.compress((tmp_path / "steps.csv").read_bytes()))
    out, plot = tmp_path / "step_time.json", tmp_path / "fit.png"
    code, told, err = call(capsys, "calibrate", steps, "--out", out, "--plot", plot)
    assert code == 0 and err == ""
    assert "whatever the load" in told and "400 steps; R²" in told and "--step-time" in told
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert read_step_time(out).fixed_s == pytest.approx(0.02, rel=0.05)
    code, as_json, _ = call(capsys, "calibrate", steps, "--json")
    found = json.loads(as_json)
    assert found == json.loads(out.read_text())
    assert set(found) == {"step_time", "interval_95", "fit", "source"}
    assert found["interval_95"]["kv_s"][0] <= found["step_time"]["kv_s"] <= found["interval_95"]["kv_s"][1]


def test_rows_of_a_step_are_its_workers(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("it,worker,ms,n,tokens\n7,0,20,3,90\n7,1,25,2,120\n8,0,30,4,80\n8,1,,4,99\n9,0,-1,1,1\n")
    columns = {"step": "it", "step_ms": "ms", "batch": "n", "kv_tokens": "tokens"}
    found = read_steps(path, columns)
    assert found.step_s.tolist() == pytest.approx([0.025, 0.03])
    assert (found.batch.tolist(), found.kv_tokens.tolist(), found.dropped) == ([3.0, 4.0], [120.0, 80.0], 2)


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("steps.txt", "", [], "is none of .csv, .jsonl and .parquet"),
        ("steps.csv", "", [], "cannot be read"),
        (
            "steps.csv",
            "a,b\n1,2\n",
            [],
            "has no column step_s. It has a, b. Say which is meant with --columns step_s=COLUMN",
        ),
        ("steps.csv", "step_s,batch,kv_tokens\n1,x,2\n", [], "column batch of"),
        ("steps.csv", "step_s,batch,kv_tokens\n1,1,2\n", [], "steps: 1 are too few to fit"),
        ("steps.csv", "step_s,batch,kv_tokens\n1,1,2\n", ["--columns", "load=x"], "load is no column of steps"),
        ("steps.parquet", "no", [], "cannot be read"),
    ],
)
def test_errors_say_what_is_wrong(
    name: str, text: str, options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    code, out, err = call(capsys, "calibrate", path, *options)
    assert code != 0 and out == "" and says in err.replace("\n", " ")


def test_a_simulation_plays_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, steps = tmp_path / "log.parquet", tmp_path / "step_time.json"
    write_trace(log, synthesize(SynthSettings(requests=60, seed=3)).trace)
    steps.write_text('{"step_time": {"fixed_s": 0.5, "batch_s": 0.25, "kv_s": 0.0}}')
    options = ("simulate", log, "--workers", 2, "--slots", 3, "--policies", "br_0", "--step-time", steps, "--json")
    code, out, err = call(capsys, *options)
    found = json.loads(out)
    assert code == 0, err
    assert found["settings"]["step_time"] == {"fixed_s": 0.5, "batch_s": 0.25, "kv_s": 0.0}
    assert found["settings"]["step_time_file"] == "step_time.json"
    assert found["policies"][0]["efficiency"] == 1.0  # load costs nothing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is no step time"),
        ('{"step_time": {"fixed_s": 1}}', "is no step time"),
        ('{"step_time": {"fixed_s": -1, "batch_s": 0, "kv_s": 0}}', "fixed_s: must be a finite number"),
    ],
)
def test_other_files_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_step_time(path)
    path.write_text('{"step_time": {"fixed_s": 1, "batch_s": 0, "kv_s": 0}, "more": 1}')
    assert read_step_time(path) == StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0)
