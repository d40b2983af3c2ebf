"""``endcast simulate``, as a user calls it: JSON and table pinned, errors, arrivals, bundles that saw the answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import endcast
from endcast import load_forecaster
from endcast.cli import main
from endcast.cli.simulation_forecasts import CrossFit, choices
from endcast.datasets.read import read
from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.datasets.write import write_trace
from endcast.reporting import simulation_report
from endcast.router.forecasts import Landmarked, Oracle, Precomputed, kaplan_meier_of_log
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.soften import Softened
from endcast.router.workload import Workload
from endcast.training.alignment import written as written_by
from endcast.training.replay import events
from endcast.training.train import Trained

FLEET = ("--workers", 3, "--slots", 4, "--utilization", 1.1)
TIMES = {"mean", "p50", "p99", "max"}
SHAPE: dict[str, set[str] | None] = {
    "throughput": None,
    "efficiency": None,
    "imbalance": None,
    "kv_per_slot": None,
    "overtakings_max": None,
    "backlog": None,
    "e2e_s": TIMES,
    "wait_s": TIMES,
    "ttft_s": TIMES,
    "tpot_s": TIMES,
    "preemptions": None,
    "preempted_share": None,
    "requeued": None,
    "prefill_s": TIMES,
    "recomputed_tokens": None,
    "rejected": None,
    "prefix_hit_share": None,
    "decision_ms": {"p50", "p99"},
}
SETTINGS = {
    "workers", "slots", "kv_capacity", "speed", "prefill_rate", "prefill_workers", "lose", "report_every", "report_delay",
    "report_own", "tokens_per_step", "parameters", "olp", "step_time_file", "admission", "victim", "recompute_rate", "utilization", "horizon", "discount", "candidates", "max_overtakes", "step_time",
    "seed", "seeds", "kv_per_slot_tokens", "offered_rate", "requests", "left_out", "endcast", "log", "log_digest",
    "log_format", "log_requests", "log_columns", "first_requests", "arrivals",
    "arrivals_prompts", "soften", "policies", "forecasts", "bundles", "today",
    "warnings",
}  # fmt: skip


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
        code, out, err = self(*arguments, *FLEET, "--json")
        assert code == 0, err
        return json.loads(out)

    def error(self, *arguments: object) -> tuple[int, str]:
        """Exit code and the one line on stderr."""
        code, out, err = self(*arguments)
        assert code != 0 and out == "" and err.count("\n") == 1 and err.startswith("error: "), err
        return code, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    write_trace(path, synthesize(SynthSettings(requests=300, seed=7)).trace)
    return path


@pytest.fixture(scope="module")
def timeless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection sorted by length, each prompt with three answers, without arrival times."""
    path = tmp_path_factory.mktemp("logs") / "answers.parquet"
    table = pa.table(
        {
            "prompt": [f"prompt {i // 3}" for i in range(240)],
            "prompt_tokens": [10 + i % 40 for i in range(240)],
            "output_tokens": [1 + i for i in range(240)],
        }
    )
    pq.write_table(table, path)
    return path


def test_json_has_the_shape_of_the_design(run: Run, log: Path) -> None:
    found = run.json(log, "--policies", "least_kv,br_0,br_h", "--forecast", "none,oracle,kaplan_meier", "--seeds", 2)
    assert set(found) == {"settings", "seeds", "policies"} and found["seeds"] == 2
    named = [(one["policy"], one["forecast"]) for one in found["policies"]]
    assert named == [
        ("least_kv", None), ("br_0", None), ("br_h", None), ("br_h", "oracle"), ("br_h", "kaplan_meier"),
    ]  # fmt: skip
    for one in found["policies"]:
        assert set(one) == {"policy", "forecast", *SHAPE, "spread"} and set(one["spread"]) == set(SHAPE)
        for figures in (one, one["spread"]):
            for name, keys in SHAPE.items():
                values = [figures[name]] if keys is None else figures[name].values()
                assert keys is None or set(figures[name]) == keys
                assert all(type(value) is float for value in values), (name, values)
        assert one["spread"]["wait_s"]["mean"] > 0.0


def test_settings_say_how_to_repeat_the_run(run: Run, log: Path) -> None:
    settings = run.json(log, "--policies", "br_h", "--seed", 3, "--requests", 200)["settings"]
    assert set(settings) == SETTINGS
    assert (settings["log"], settings["log_digest"]) == ("log.parquet", read(log).trace.digest)
    assert (settings["endcast"], settings["seed"], settings["first_requests"]) == (endcast.__version__, 3, 200)
    assert (settings["policies"], settings["forecasts"]) == (["br_h"], ["oracle", "kaplan_meier"])
    assert (settings["max_overtakes"], settings["arrivals"], settings["today"]) == (48, "log", "br_h")
    assert settings["requests"] + settings["left_out"]["no_output"] == 200


def test_it_says_what_the_library_says(run: Run, log: Path) -> None:
    trace = read(log).trace
    report = simulate(
        Workload.from_trace(trace),
        SimulationSettings(workers=3, slots=4, utilization=1.1, seeds=2),
        policies=["round_robin", "br_h"],
        forecasts=[Oracle(trace.output_tokens), kaplan_meier_of_log(trace)],
    ).to_json()["policies"]
    found = run.json(log, "--policies", "round_robin,br_h", "--seeds", 2)["policies"]
    for one, other in zip(found, report, strict=True):
        for figures in (one, other, one["spread"], other["spread"]):
            del figures["decision_ms"]  # time, measured
    assert found == report


def test_all_policies_are_played_by_default(run: Run, log: Path, timeless: Path) -> None:
    with_prefixes = run.json(log, "--requests", 40)["settings"]["policies"]
    without = run.json(timeless, "--arrivals", "poisson", "--requests", 40)["settings"]["policies"]
    assert with_prefixes == [name for name in POLICIES if name != "br_h_published"]
    assert without == [name for name in with_prefixes if name != "prefix_affinity"]


def test_the_table_fits_120_columns(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from endcast.cli import simulate as command

    console = Console(width=120, file=io.StringIO())
    monkeypatch.setattr(command, "console", console)
    assert run(log, *FLEET, "--seeds", 2, "--forecast", "oracle,kaplan_meier,crossfit:kaplan_meier")[0] == 0
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    lines = text.partition("\n\n*")[0].rstrip().splitlines()
    rule = next(i for i, line in enumerate(lines) if "──" in line)
    names = [line.split("  ")[0].strip() for line in lines[rule + 1 :]]
    forecasts = ["oracle", "kaplan_meier", "crossfit:kaplan_meier"]
    expected = [
        f"{name}, {forecast}" if forecast else name
        for name in POLICIES
        if name != "br_h_published"
        for forecast in (forecasts if POLICIES.get(name)(PolicySettings()).needs_forecast else [""])
    ]
    assert names == expected
    assert max(map(len, text.splitlines())) <= 120
    assert lines[0].startswith("log.parquet, simulated: 297 requests, 3 × 4 slots, utilization 1.1, means of 2 runs ±")
    assert all("±" in line for line in lines[rule + 1 :])
    starred = [line for line in lines[rule + 1 :] if "*" in line]
    assert starred and not any("oracle" in line for line in starred)
    assert "of decode time is lost waiting for the heaviest worker" in " ".join(text.split())


def test_one_run_has_no_spread_in_the_table(run: Run, log: Path) -> None:
    code, out, _ = run(log, *FLEET, "--policies", "br_0")
    assert code == 0 and "±" not in out and ", 1 run\n" in out.replace(" \n", "\n").replace("  ", "")


def test_the_same_command_gives_the_same_figures_and_page(
    run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from markupsafe import Markup

    monkeypatch.setattr(simulation_report, "_inline", lambda name, simulated: Markup("<svg></svg>"))
    found = []
    for name in ("one", "two"):
        path = tmp_path / name / "report.html"
        json_ = run.json(log, "--policies", "random,br_h", "--report", path)
        for one in json_["policies"]:
            del one["decision_ms"], one["spread"]["decision_ms"]
        found.append((json_, path.read_bytes()))
    assert found[0] == found[1]


def test_a_report_is_announced(run: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from markupsafe import Markup

    monkeypatch.setattr(simulation_report, "_inline", lambda name, simulated: Markup("<svg></svg>"))
    code, out, _ = run(log, *FLEET, "--policies", "least_kv,br_0", "--report", tmp_path / "r.html", "--today", "br_0")
    assert code == 0 and f"wrote {tmp_path / 'r.html'}" in out
    text = (tmp_path / "r.html").read_text()
    assert "<code>br_0</code> is taken for what the fleet runs today" in " ".join(text.split())


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--policies", "br_9"], 2, "unknown policy 'br_9'. Known: round_robin, "),
        (["--policies", "br_0,br_0"], 2, "--policies: br_0 is given twice"),
        (["--policies", ""], 2, "unknown policy ''. Known: "),
        (["--forecast", "truth"], 2, "unknown forecast 'truth'. Known: none, oracle, kaplan_meier, crossfit:MODEL with one of"),
        (["--forecast", "crossfit:gpt"], 2, "unknown model 'gpt'. Known: kaplan_meier, "),
        (["--forecast", "oracle,oracle"], 2, "--forecast: oracle is given twice"),
        (["--forecast", "none,none"], 2, "--forecast: none is given twice"),
        (["--kv-capacity", "1"], 1, "requests is larger than a worker of 1 KV tokens. The smallest needs "),
        (["--admission", "hope"], 2, "unknown admission rule 'hope'. Known: optimistic, headroom, reserve_cap, forecast"),
        (["--admission", "optimistic:lots"], 2, "admission: optimistic takes a number behind the colon, not 'lots'"),
        (["--admission", "optimistic:1"], 2, "admission: optimistic takes a share from 0 to below 1, not 1"),
        (["--admission", "forecast:1"], 2, "admission: forecast takes a quantile between 0 and 1, not 1"),
        (["--admission", "reserve_cap:1.5"], 2, "admission: reserve_cap takes a whole number of output tokens, not 1.5"),
        (["--victim", "oldest"], 2, "unknown victim 'oldest'. Known: newest, smallest_kv"),
        (["--recompute-rate", "0"], 2, "recompute_rate: must be a finite number above 0"),
        (["--admission", "reserve_cap"], 2, "--admission: has no effect without --kv-capacity"),
        (["--victim", "newest"], 2, "--victim: has no effect without --kv-capacity"),
        (["--recompute-rate", "5"], 2, "--recompute-rate: has no effect without --kv-capacity"),
        (["--today", "br_h", "--policies", "br_0"], 2, "--today: br_h is not among the policies to simulate. Simulated: br_0"),
        (["--requests", "0"], 2, "--requests: must be at least 1"),
        (["--workers", "0"], 2, "workers: must be a whole number from 1"),
        (["--utilization", "0"], 2, "utilization: must be a finite number above 0"),
        (["--utilization", "nan"], 2, "utilization: must be a finite number above 0"),
        (["--discount", "1.5"], 2, "discount: must lie in (0, 1]"),
        (["--horizon", "-1"], 2, "horizon: must be a whole number from 0"),
        (["--arrivals", "poison"], 2, "--arrivals: must be poisson or the file of a log, and poison is neither"),
    ],
)  # fmt: skip
def test_errors_are_one_line(run: Run, log: Path, arguments: list[str], code: int, message: str) -> None:
    found, line = run.error(log, *arguments)
    assert (found, message in line) == (code, True), line


@pytest.mark.parametrize("arguments", [["--policies", "br_9"], ["--forecast", "truth"], ["--workers", "0"]])
def test_names_and_numbers_are_checked_before_the_log_is_read(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    assert "no-such-log" not in run.error(tmp_path / "no-such-log", *arguments)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kv-capacity", 1), "each of the 240 requests is larger than a worker of 1 KV tokens"),
        (
            ("--kv-capacity", 900, "--admission", "reserve_cap"),
            "reserve_cap needs each request's own cap, and 240 of 240 requests have none. Say how many output tokens",
        ),
    ],
)
def test_a_memory_that_cannot_be_is_refused_before_anything_is_trained(
    run: Run, timeless: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], message: str
) -> None:
    monkeypatch.setattr(CrossFit, "make", lambda *args: pytest.fail("trained"))
    code, line = run.error(timeless, "--arrivals", "poisson", *options, "--forecast", "crossfit:kaplan_meier")
    assert code == 1 and message in line


def test_caps_that_a_log_has_are_reserved(run: Run, log: Path) -> None:
    found = run.json(log, "--kv-capacity", 40_000, "--admission", "reserve_cap", "--policies", "br_0")
    assert found["policies"][0]["preemptions"] == 0


def test_bounded_memory_is_told(run: Run, log: Path) -> None:
    options = (
        "--kv-capacity",
        9000,
        "--admission",
        "optimistic:0",
        "--victim",
        "smallest_kv",
        "--recompute-rate",
        5000,
    )
    code, out, _ = run(log, *FLEET, *options, "--policies", "least_kv,br_0")
    text = " ".join(out.split())
    assert code == 0
    assert "KV memory of 9,000 tokens a worker, admission optimistic:0, victim smallest_kv." in text
    assert "least_kv: " in text and "of the requests" in text
    code, out, _ = run(log, *FLEET, *options, "--policies", "least_kv", "--json")
    told = json.loads(out)
    assert told["settings"]["recompute_rate"] == 5000.0
    assert told["policies"][0]["preemptions"] > 0
    code, out, _ = run(
        log, *FLEET, "--kv-capacity", 9000, "--admission", "forecast:0.9", "--policies", "least_kv", "--json"
    )
    assert [entry["forecast"] for entry in json.loads(out)["policies"]] == ["oracle", "kaplan_meier"]


def test_a_report_cannot_be_a_folder(run: Run, log: Path, tmp_path: Path) -> None:
    code, line = run.error(log, "--report", tmp_path)
    assert code == 2 and "is a folder" in line


def test_a_log_without_arrivals_says_what_to_do(run: Run, timeless: Path, log: Path) -> None:
    code, line = run.error(timeless)
    assert code == 1 and f"{timeless} tells no arrival time for 240 of its 240 requests" in line
    assert "--arrivals poisson" in line and "--arrivals LOG" in line
    assert "tells no arrival time" in run.error(log, "--arrivals", timeless)[1]


# ---- arrivals


def test_arrivals_at_random_and_borrowed(run: Run, timeless: Path, log: Path) -> None:
    random = run.json(timeless, "--policies", "br_0", "--arrivals", "poisson")
    again = run.json(timeless, "--policies", "br_0", "--arrivals", "poisson")
    other = run.json(timeless, "--policies", "br_0", "--arrivals", "poisson", "--seed", 1)
    borrowed = run.json(timeless, "--policies", "br_0", "--arrivals", log)
    assert random["settings"]["arrivals"] == "poisson" and borrowed["settings"]["arrivals"] == "log.parquet"
    throughput = [found["policies"][0]["throughput"] for found in (random, again, other, borrowed)]
    assert throughput[0] == throughput[1] and len(set(throughput)) == 3
    own = run.json(log, "--policies", "br_0")["policies"][0]["throughput"]
    assert run.json(log, "--policies", "br_0", "--arrivals", "poisson")["policies"][0]["throughput"] != own


def test_a_collection_without_arrivals_is_shuffled(timeless: Path) -> None:
    from endcast.cli.simulation_log import load

    def played_with(seed: int) -> Trace:
        return load(timeless, None, None, arrivals="poisson", arrivals_prompts=False, requests=100, seed=seed).trace

    played = played_with(0)
    assert len(played) == 100
    lengths = played.output_tokens
    assert abs(np.corrcoef(lengths, np.arange(100))[0, 1]) < 0.3  # the file is sorted by length
    assert not np.array_equal(lengths, played_with(1).output_tokens)


def test_another_log_lends_its_prompt_sizes(run: Run, log: Path, timeless: Path) -> None:
    """Arrivals and prompts of one log, outputs of another: sizes go with their arrivals, repeated as these are."""
    from endcast.cli.simulation_log import load

    lender, count = read(log).trace, 240
    played = load(timeless, None, None, arrivals=str(log), arrivals_prompts=True, requests=None, seed=0)
    assert played.workload.prompt.tolist() == lender.prompt_tokens[:count].tolist()
    np.testing.assert_allclose(np.diff(played.workload.arrival_s), np.diff(lender.arrival_s[:count]), atol=1e-6)
    assert sorted(played.workload.output.tolist()) == sorted(read(timeless).trace.output_tokens.tolist())
    assert set(played.trace.prompt_tokens.tolist()) == set(range(10, 50)), "forecasts see the log's own prompts"
    found = run.json(timeless, "--policies", "br_0", "--arrivals", log, "--arrivals-prompts")
    own = run.json(timeless, "--policies", "br_0", "--arrivals", log)
    assert found["settings"]["arrivals_prompts"] is True and own["settings"]["arrivals_prompts"] is False
    assert found["settings"]["kv_per_slot_tokens"] > 2 * own["settings"]["kv_per_slot_tokens"]


def test_prompt_sizes_that_nobody_lends(run: Run, log: Path, timeless: Path, tmp_path: Path) -> None:
    assert "--arrivals LOG must name" in run.error(timeless, "--arrivals", "poisson", "--arrivals-prompts")[1]
    table = pa.table({"arrival_ns": [0, 1, 2], "prompt_tokens": [None, 5, 6], "output_tokens": [1, 2, 3]})
    pq.write_table(table, tmp_path / "sizeless.parquet")
    code, told = run.error(log, "--arrivals", tmp_path / "sizeless.parquet", "--arrivals-prompts")
    assert code == 1 and "no prompt size for 1 of its 3 requests" in told


# ---- softening


def test_softened_forecasts_are_played_and_named(run: Run, log: Path, tmp_path: Path) -> None:
    """As ``Softened`` plays them; what cannot be softened is left alone."""
    names = ("--policies", "br_h", "--forecast", "none,kaplan_meier,oracle")
    plain, soft = run.json(log, *names), run.json(log, *names, "--soften", 0.6)
    assert (plain["settings"]["soften"], soft["settings"]["soften"]) == (0.0, 0.6)
    of = [{one["forecast"]: one["efficiency"] for one in found["policies"]} for found in (plain, soft)]
    assert list(of[1]) == [None, "kaplan_meier", "oracle"]
    assert of[0][None] == of[1][None] and of[0]["kaplan_meier"] == of[1]["kaplan_meier"]
    trace = read(log).trace
    source = Softened(Oracle(trace.output_tokens), kaplan_meier_of_log(trace), 0.6)
    fleet = SimulationSettings(workers=3, slots=4, utilization=1.1)
    report = simulate(Workload.from_trace(trace), fleet, policies=["br_h"], forecasts=[source])
    assert of[1]["oracle"] == report.result("br_h", "oracle").mean["efficiency"] != of[0]["oracle"]
    code, out, _ = run(log, *FLEET, *names, "--soften", 0.6, "--report", tmp_path / "r.html")
    assert code == 0 and "softened, 0.6 Kaplan-Meier and 0.4 the forecast: oracle" in out
    page = (tmp_path / "r.html").read_text()
    assert "Softened, 0.6 Kaplan-Meier and 0.4 the forecast: oracle." in page and "--soften 0.6" in page


@pytest.mark.parametrize("weight", [-0.1, 1.5, "nan"])
def test_softening_by_more_than_all(run: Run, log: Path, weight: float | str) -> None:
    code, told = run.error(log, "--soften", weight)
    assert code == 2 and "--soften" in told and "between 0 and 1" in told


def test_estimated_token_counts_are_said_to_be_so(run: Run, tmp_path: Path) -> None:
    table = pa.table({"prompt": ["How many?", "Why?"] * 20, "output": ["Two.", "Because it is so, and has been."] * 20})
    pq.write_table(table, tmp_path / "texts.parquet")
    code, out, _ = run(tmp_path / "texts.parquet", *FLEET, "--arrivals", "poisson", "--policies", "br_0")
    assert code == 0 and "ESTIMATED, not counted: output_tokens and prompt_tokens" in out


# ---- learned forecasts


def test_cross_fitted_forecasts(run: Run, log: Path) -> None:
    found = run.json(log, "--policies", "br_h", "--forecast", "crossfit:kaplan_meier")
    assert [one["forecast"] for one in found["policies"]] == ["crossfit:kaplan_meier"]
    code, _, err = run(log, *FLEET, "--policies", "br_h", "--forecast", "crossfit:kaplan_meier")
    assert code == 0 and "crossfit:kaplan_meier: training on the other half for the first half" in err


def test_cross_fitting_parts_answers_without_arrivals_by_prompt(
    timeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import endcast.training.crossfit as module

    seen: list[Trace] = []
    real = module.crossfit

    def spy(trace: Trace, *args: Any, **more: Any) -> Any:
        seen.append(trace)
        return real(trace, *args, **more)

    monkeypatch.setattr(module, "crossfit", spy)
    trace = read(timeless).trace
    source = choices("crossfit:kaplan_meier", 0)[0].make(trace, lambda text: None)
    assert isinstance(source, Precomputed) and len(source.batch) == len(trace)
    arrivals: dict[str, set[int]] = {}
    prompts = trace.table.column("prompt").to_pylist()
    for prompt, arrival in zip(prompts, seen[0].arrival_ns.tolist(), strict=True):
        arrivals.setdefault(prompt, set()).add(arrival)
    assert all(len(times) == 1 for times in arrivals.values()) and len(set().union(*arrivals.values())) == 80


@pytest.fixture
def bundle(bundle_of: Callable[[str], Trained]) -> Trained:
    return bundle_of("kaplan_meier")


def test_a_bundle_that_saw_the_answers_is_not_believed(
    run: Run, bundle: Trained, small_log: SynthLog, tmp_path: Path
) -> None:
    path = tmp_path / "seen.parquet"
    write_trace(path, small_log.trace)
    code, out, err = run(path, *FLEET, "--policies", "br_0,br_h", "--forecast", f"{bundle.path}")
    assert code == 0
    assert err.count("WARNING") == 2, "before the work and after the table"
    assert "saw the answers" in err and "--forecast crossfit:kaplan_meier" in err
    row = next(line for line in out.splitlines() if "(saw the answers)" in line)
    assert "*" not in row
    found = run.json(path, "--policies", "br_h", "--forecast", bundle.path)
    assert found["policies"][0]["forecast"] == bundle.id
    assert "saw the answers" in found["settings"]["warnings"][0]
    assert found["settings"]["bundles"] == {bundle.id: "kaplan_meier"}


def test_a_bundle_of_another_log_is_believed(run: Run, bundle: Trained, log: Path) -> None:
    code, out, err = run(log, *FLEET, "--policies", "br_0,br_h", "--forecast", bundle.path)
    assert code == 0 and "WARNING" not in err
    assert f"br_h, bundle {bundle.id[7:15]}" in out and "saw the answers" not in out


def test_a_bundle_that_reads_outputs_is_asked_along_them(run: Run, reading: Trained, log: Path, tmp_path: Path) -> None:
    """What it says at admission and 64 tokens later is what its stream says then; without texts it is asked once."""
    written = synthesize(SynthSettings(requests=150, seed=8, text=True)).trace
    source = choices(str(reading.path), 0)[0].make(written, lambda text: None)
    assert isinstance(source, Landmarked) and source.refresh_every == source.every
    np.testing.assert_array_equal(source.count, np.maximum(-(-written.output_tokens // source.every), 1))
    row = int(np.argmax(written.output_tokens))
    length, text = int(written.output_tokens[row]), str(written.table.column("output")[row])
    forecaster = load_forecaster(reading.path)
    for event in events(written):
        if event.row == row:
            break
        if event.completion is not None:
            forecaster.observe([event.completion])
    stream, so_far = forecaster.open(event.request), 0
    for tokens in (0, source.every, 2 * source.every):
        upto = written_by(len(text), tokens, length)
        stream.append(text[so_far:upto], tokens)
        told, so_far = source.curves(np.array([row]), np.array([tokens])), upto
        assert told.survival_at(50)[0] == pytest.approx(stream.forecast().survival(50), abs=1e-6)
    write_trace(tmp_path / "texts.parquet", written)
    found = run.json(tmp_path / "texts.parquet", "--policies", "br_h", "--forecast", reading.path)
    assert found["policies"][0]["forecast"] == reading.id
    assert isinstance(choices(str(reading.path), 0)[0].make(read(log).trace, lambda text: None), Precomputed)


def test_a_folder_that_is_no_bundle(run: Run, log: Path, tmp_path: Path) -> None:
    assert "manifest.json" in run.error(log, "--forecast", tmp_path)[1]
