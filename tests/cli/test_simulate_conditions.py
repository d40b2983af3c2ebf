"""The options of ``endcast simulate`` beside the reference cluster, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from endcast.cli import main
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.write import write_trace


class Run:
    """Calls the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(["simulate", *map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, out, err

    def json(self, *arguments: object) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    write_trace(path, synthesize(SynthSettings(requests=120, seed=5)).trace)
    return path


def test_workers_may_differ(run: Run, log: Path) -> None:
    told = run.json(
        log, "--slots", "4,4,2", "--kv-capacity", "30000,20000,20000", "--speed", "1,1,0.5", "--policies", "br_0"
    )
    settings = told["settings"]
    assert (settings["workers"], settings["slots"], settings["speed"]) == (3, [4, 4, 2], [1.0, 1.0, 0.5])
    assert settings["kv_capacity"] == [30000, 20000, 20000] and settings["max_overtakes"] == 4 * 10


def test_all_of_it_at_once_is_said_and_repeatable(run: Run, log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = (
        "--slots", "4,4,2", "--speed", "1,1,0.5", "--prefill-rate", 5000, "--prefill-workers", 2, "--lose", "0@5-9,2@12",
        "--report-every", 1, "--report-delay", 0.25, "--no-report-own", "--tokens-per-step", 1.5, "--policies", "least_kv,br_0",
        "--set", "max_overtakes=50",
    )  # fmt: skip
    code, out, err = run(log, *options, "--report", page)
    assert code == 0, err
    text = " ".join(out.split())
    assert "3 workers with 4, 4, 2 slots" in text
    assert "Workers lost (0@5-9, 2@12): requests that went back into the queue: least_kv" in text
    html = " ".join(page.read_text().split())
    for said in (
        "read by 2 prefill workers at 5,000 tokens a second each", "speeds of 1.0, 1.0, 0.5", "lost as scheduled: 0@5-9, 2@12",
        "1.5 tokens in the mean", "reported every 1 s, 0.25 s late, and do not count", "--no-report-own", "--lose 0@5-9,2@12",
        "--set max_overtakes=50", "--tokens-per-step 1.5", "--slots 4,4,2", "--prefill-workers 2",
    ):  # fmt: skip
        assert said in html, said
    told = run.json(log, *options)
    assert told["policies"][0]["requeued"] > 0 and told["policies"][0]["prefill_s"]["mean"] > 0
    assert told["settings"]["lose"] == ["0@5-9", "2@12"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--slots", "4,x"], "'x' is no whole number"),
        (["--slots", "4,4", "--workers", "3"], "--slots: lists 2 workers, and --workers 3"),
        (["--slots", "4,4", "--speed", "1,1,1"], "--speed: lists 3 workers, and --slots 2"),
        (["--speed", "1,-1"], "speed: must be finite numbers above 0"),
        (["--prefill-workers", "2"], "--prefill-workers: has no effect without --prefill-rate"),
        (["--lose", "9@1"], "lose: there is no worker 9"),
        (["--lose", "soon"], "lose: 'soon' is not WORKER@SECONDS"),
        (["--tokens-per-step", "20"], "tokens_per_step: must be at least 1 and below 9"),
        (["--report-every", "-1"], "report_every: must be a finite number"),
        (["--set", "urgence=1"], "unknown parameter 'urgence'. Known: horizon, discount"),
        (["--jobs", "0"], "--jobs: must be a whole number from 1"),
        (["--step-time", "nowhere.json"], "--step-time: nowhere.json cannot be read"),
        (["--tune", "--report", "r.html"], "--report: is not made by --tune"),
    ],
)
def test_wrong_options_are_told_before_the_log_is_read(run: Run, tmp_path: Path, options: list[str], says: str) -> None:
    code, out, err = run(tmp_path / "no-such-log", *options)
    assert code == 2 and out == "" and says in " ".join(err.split()) and "no-such-log" not in err


def test_a_run_goes_on_where_it_was(run: Run, log: Path, tmp_path: Path) -> None:
    options = (log, "--workers", 2, "--slots", 4, "--policies", "random,br_0", "--seeds", 2)
    plain = run.json(*options)
    first = run.json(
        log, "--workers", 2, "--slots", 4, "--policies", "random", "--seeds", 1, "--resume", tmp_path / "runs"
    )
    assert first["seeds"] == 1 and len(list((tmp_path / "runs").iterdir())) == 1
    code, _, err = run(*options, "--resume", tmp_path / "runs", "--jobs", 2)
    assert code == 0 and "1 of 4 runs were finished in" in " ".join(err.split())
    resumed = run.json(*options, "--resume", tmp_path / "runs")
    for told in (plain, resumed):
        for one in told["policies"]:
            del one["decision_ms"], one["spread"]["decision_ms"]
    assert resumed == plain
    (tmp_path / "file").write_text("")
    assert run(*options, "--resume", tmp_path / "file")[0] == 2


def test_tuning_prints_options_that_choose_what_it_found(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from endcast.router import tuning

    monkeypatch.setattr(tuning, "GRID", {"horizon": (5, 20), "candidates": (64,), "soften": (0.0, 0.5)})
    fleet = (log, "--workers", 3, "--slots", 4, "--utilization", 1.1, "--forecast", "oracle,kaplan_meier", "--tune")
    found = run.json(*fleet, "--candidates", 1)
    assert found["log_requests"] == 120
    for one in found["tuned"]:
        assert one["policy"] == "br_h" and len(one["trials"]) >= 3
        assert ("soften" in one["chosen"]) == (one["forecast"] == "oracle")
        assert one["options"].startswith("--horizon ") and "--candidates" in one["options"]
        assert {"before", "after", "noise"} == set(one["first"]) == set(one["rest"])
    code, out, _ = run(*fleet)
    assert code == 0 and "survived" in out and "--horizon" in out
    assert run(*fleet, "--policies", "least_kv")[0] == 2
