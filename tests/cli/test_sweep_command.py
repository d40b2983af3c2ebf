"""``endcast sweep`` and ``--olp``: what a user types, what comes back, and what is refused before a log is read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from endcast.cli import main
from endcast.cli.olp_options import grid, olp_settings
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.write import write_trace
from endcast.errors import EndcastError, InputError, UnknownNameError
from endcast.router.olp.settings import OlpSettings

FLEET = ("--workers", 3, "--slots", 4, "--utilization", 1.1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    write_trace(path, synthesize(SynthSettings(requests=200, seed=7)).trace)
    return path


class Called:
    """Calls the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([*map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, out, err

    def json(self, *arguments: object) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Called:
    return Called(capsys)


# ---- NAME=VALUE


def test_values_are_read_as_what_their_defaults_are() -> None:
    assert olp_settings(None) == OlpSettings()
    given = ["w_tail=8", "reward=published", "shed=yes", "batch=16", "share_prices=no", "w_throughput = 0.5"]
    assert olp_settings(given) == OlpSettings(
        w_tail=8.0, reward="published", shed=True, batch=16, share_prices=False, w_throughput=0.5
    )


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (["w_tail"], InputError, "'w_tail' is no NAME=VALUE. Such as --olp w_tail=8"),
        (["w_tail="], InputError, "is no NAME=VALUE"),
        (["w_tial=8"], UnknownNameError, "unknown setting 'w_tial'. Did you mean w_tail? Known: reward, w_throughput"),
        (["zzz=8"], UnknownNameError, "unknown setting 'zzz'. Known: reward"),
        (["w_tail=8", "w_tail=9"], InputError, "w_tail is given twice"),
        (["w_tail=many"], InputError, "w_tail is a number, not 'many'"),
        (["w_tail=nan"], InputError, "w_tail: must be a finite number from 0"),
        (["w_tail=-1"], InputError, "w_tail: must be a finite number from 0"),
        (["batch=1.5"], InputError, "batch is a whole number, not '1.5'"),
        (["batch=0"], InputError, "batch: must be a whole number from 1"),
        (["shed=maybe"], InputError, "shed is yes or no, not 'maybe'"),
        (["reward=nice"], UnknownNameError, "unknown reward 'nice'. Known: urgency, published"),
        (["w_latency=0", "w_ttft=0", "w_tail=0"], InputError, "at least one weight must be above 0"),
        (["w_latency=0", "w_ttft=0", "w_tail=0", "w_throughput=1"], InputError, "with the reward 'urgency'"),
    ],
)
def test_what_cannot_be_is_refused(given: list[str], error: type[EndcastError], says: str) -> None:
    with pytest.raises(error) as raised:
        olp_settings(given)
    assert says in str(raised.value)


def test_a_grid_is_all_combinations_in_order() -> None:
    found = grid(["w_tail=0,4", "w_ttft=0,1,2"], OlpSettings())
    assert found == [{"w_tail": t, "w_ttft": f} for t in (0.0, 4.0) for f in (0.0, 1.0, 2.0)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["w_tail=0,x"], "w_tail is a number, not 'x'"),
        (["w_tail=1,1.0"], "w_tail has the value 1.0 twice"),
        (["w_tail=1", "w_tail=2"], "w_tail is given twice"),
        (["w_latency=0,1", "w_ttft=0", "w_tail=0,1"], "at least one weight"),
    ],
)
def test_each_point_of_a_grid_is_checked(given: list[str], says: str) -> None:
    with pytest.raises(EndcastError) as raised:
        grid(given, OlpSettings())
    assert says in str(raised.value)


# ---- the command


def test_json_has_every_point_and_what_is_beside(called: Called, log: Path) -> None:
    found = called.json(
        "sweep",
        log,
        *FLEET,
        "--vary",
        "w_tail=0,4",
        "--vary",
        "step_size=0,0.1",
        "--olp",
        "tail_scale_s=30",
        "--seeds",
        2,
    )
    assert [point["varied"] for point in found["points"]] == [
        {"w_tail": t, "step_size": s} for t in (0.0, 4.0) for s in (0.0, 0.1)
    ]
    assert {point["policy"] for point in found["points"]} == {"olp_br_h"}
    assert [other["policy"] for other in found["beside"]] == ["least_kv", "br_h"]
    assert (
        found["settings"]["olp"]["tail_scale_s"] == 30.0 and found["settings"]["olp"]["w_tail"] == OlpSettings().w_tail
    )
    trades = [(point["e2e_s"]["mean"], point["e2e_s"]["p99"]) for point in found["points"]]
    for own, point in zip(trades, found["points"], strict=True):
        beaten = any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in trades)
        assert point["efficient"] is not beaten
    assert any(point["efficient"] for point in found["points"])


def test_table_page_and_plot(called: Called, log: Path, tmp_path: Path) -> None:
    page, folder = tmp_path / "sweep.html", tmp_path / "plots"
    code, out, err = called(
        "sweep", log, *FLEET, "--vary", "w_tail=0,16", "--policy", "olp", "--beside", "", "--olp", "step_size=0",
        "--report", page, "--plots", folder,
    )  # fmt: skip
    assert code == 0, err
    assert "w_tail 0" in out and "w_tail 16" in out and "least_kv" not in out
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<svg" in text and 'src="http' not in text and 'href="http' not in text
    assert "w_tail 16" in text and "What do these weights trade?" in text
    command = text[text.index("<pre>") + 5 : text.index("</pre>")].replace("\\\n", " ")
    words = shlex.split(command)
    assert words[:3] == ["endcast", "sweep", "log.parquet"]
    assert words[words.index("--vary") + 1] == "w_tail=0,16" and words[words.index("--olp") + 1] == "step_size=0"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--vary", "w_tail=0", "--policy", "br_h"], "br_h has no rewards to sweep over. Those have: olp, olp_br_h"),
        (["--vary", "w_tail=0", "--policy", "nope"], "unknown policy 'nope'"),
        (["--vary", "w_tail=0", "--beside", "nope"], "unknown policy 'nope'"),
        (["--vary", "w_tail"], "'w_tail' is no NAME=VALUE"),
        (["--vary", "w_tail=0", "--forecast", "oracle,kaplan_meier"], "a sweep plays one source of forecasts"),
        (["--vary", "w_tail=0", "--olp", "w_tail=x"], "w_tail is a number"),
    ],
)
def test_errors_come_before_the_log_is_read(called: Called, tmp_path: Path, options: list[str], says: str) -> None:
    code, out, err = called("sweep", tmp_path / "no-such-log", *options)
    assert code == 2 and out == "" and err.startswith("error: ") and says in err
