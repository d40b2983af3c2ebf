"""Accuracy over time: its pooled figures are those of ``evaluate``, drift is seen where it begins, and by how much."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from endcast import InputError
from endcast.cli import main
from endcast.datasets.synth import SynthLog, SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.datasets.write import write_trace
from endcast.errors import TrainingError
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.training import metrics
from endcast.training.evaluate import evaluate
from endcast.training.population import Pairs, draw_pairs
from endcast.training.rolling import Rolling, fates, rolling
from endcast.training.rolling_report import TITLES, unit_of, verdict, window_rows, write_plots, write_report
from endcast.training.train import Settings, Trained, train

Rows = Callable[[Sequence[Mapping[str, object]]], Trace]
HORIZONS = (16, 80)


@pytest.fixture(scope="module")
def quick(bundle_of: Callable[[str], Trained]) -> Trained:
    return bundle_of("kaplan_meier_by_size")


@pytest.fixture(scope="module")
def bundle(quick: Trained) -> Bundle:
    return read_bundle(quick.path)


@pytest.fixture(scope="module")
def measured(bundle: Bundle, small_log: SynthLog) -> Rolling:
    return rolling(bundle, small_log.trace, horizons=HORIZONS, windows=4)


@pytest.fixture(scope="module")
def drifting(trace_of: Rows) -> Trace:
    """Without texts; from 60 % of the requests on, a window into the test part, lengths are 0.65 of what they were."""
    rows = synthesize(SynthSettings(requests=3_000, seed=8, hours=48.0)).trace.table.to_pylist()
    for row in rows[len(rows) * 6 // 10 :]:
        row["output_tokens"] = math.ceil(0.65 * row["output_tokens"])
        row["end"] = "stop" if row["end"] == "length" else row["end"]
    return trace_of(rows)


@pytest.fixture(scope="module")
def drifted(
    drifting: Trace, quick_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Rolling:
    settings = quick_settings("kaplan_meier_by_size", split="last:0.5")
    trained = train(drifting, settings, tmp_path_factory.mktemp("drifting") / "bundle")
    return rolling(read_bundle(trained.path), drifting, horizons=[64], windows=5)


@pytest.mark.parametrize("recalibrate", [True, False])
def test_pooled_figures_are_those_of_evaluate(
    measured: Rolling, bundle: Bundle, small_log: SynthLog, recalibrate: bool
) -> None:
    whole = evaluate(bundle, small_log.trace, horizons=HORIZONS, recalibrate=recalibrate)
    assert measured.pooled.requests == whole.n_requests and measured.pooled.draws == whole.n_draws
    assert measured.cut == sum(
        count for reason, count in whole.excluded.items() if reason not in ("no output", "error")
    )
    for name, figures in whole.horizons.items():
        found = measured.pooled.horizons[name]
        side = found.online if recalibrate else found.frozen
        assert found.base_rate == pytest.approx(figures.base_rate)
        assert (side.brier_skill, side.auc, side.ece) == pytest.approx((figures.brier_skill, figures.auc, figures.ece))
        assert side.ratio == pytest.approx(found.base_rate / side.mean_forecast)


@pytest.mark.slow
def test_outputs_are_read_as_they_are_written(boosted: Trained, small_log: SynthLog) -> None:
    reads = read_bundle(boosted.path)
    found = rolling(reads, small_log.trace, horizons=[64], windows=2).pooled.horizons["64"]
    whole = evaluate(reads, small_log.trace, horizons=[64]).horizons["64"]
    assert (found.online.brier_skill, found.online.ece) == pytest.approx((whole.brier_skill, whole.ece))


def test_windows_follow_each_other_and_leave_none_out(measured: Rolling) -> None:
    assert sum(window.requests for window in measured.windows) == measured.pooled.requests
    assert sum(window.draws for window in measured.windows) == measured.pooled.draws
    for before, after in zip(measured.windows, measured.windows[1:], strict=False):
        assert before.from_s <= before.until_s <= after.from_s
    outcomes = [window.drift.outcomes for window in measured.windows]
    assert sum(outcomes) == measured.pooled.drift.outcomes == measured.pooled.requests + measured.cut
    assert max(outcomes) - min(outcomes) <= 1
    weights = [window.draws / measured.pooled.draws for window in measured.windows]
    rates = [window.horizons["80"].base_rate for window in measured.windows]
    assert np.dot(weights, rates) == pytest.approx(measured.pooled.horizons["80"].base_rate)


def test_drift_is_seen_where_it_begins_and_recalibration_makes_it_good(drifted: Rolling) -> None:
    before, changed, settled = drifted.windows[0].drift, drifted.windows[1].drift, drifted.windows[-1]
    assert not before.model_alarm and not before.alarm
    assert changed.model_alarm and changed.alarm  # recalibration needs some hundreds of outcomes
    assert settled.drift.model_alarm and not settled.drift.alarm
    figures = settled.horizons["64"]
    assert figures.frozen.ratio > 1.3 and abs(figures.online.ratio - 1.0) < (figures.frozen.ratio - 1.0) / 3.0
    assert figures.online.ece < 0.7 * figures.frozen.ece
    assert figures.online.brier_skill > figures.frozen.brier_skill


def test_one_fate_a_request_and_stretch_of_it() -> None:
    elapsed = np.arange(40)
    pairs = Pairs(np.repeat([0, 3], 40), np.tile(elapsed, 2), np.tile(40 - elapsed, 2))
    rng = np.random.default_rng(0)
    drawn = np.array([fates(np.full(80, 0.3), pairs, 10, rng) for _ in range(3_000)], dtype=float)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.3, atol=0.05)
    together = np.corrcoef(drawn[:, :40].T)
    assert together[5, 6] > 0.85 and together[5, 10] == pytest.approx(0.5, abs=0.08)  # they share half of all offsets
    assert abs(together[5, 15]) < 0.08 and abs(np.corrcoef(drawn[:, 5], drawn[:, 45])[0, 1]) < 0.08


def test_what_a_calibrated_forecaster_shows_agrees_with_lengths_drawn_from_its_curves() -> None:
    rng, horizon, errors, by_fates = np.random.default_rng(1), 32, [], []
    hazard = rng.uniform(0.004, 0.03, size=300)
    for _ in range(25):
        lengths = rng.geometric(hazard)
        pairs = draw_pairs(lengths, "decode_steps", rng)
        p = 1.0 - (1.0 - hazard[pairs.request]) ** horizon
        errors.append(metrics.ece(p, (pairs.remaining <= horizon).astype(float)))
        by_fates.append(metrics.ece(p, fates(p, pairs, horizon, rng).astype(float)))
    assert np.mean(by_fates) == pytest.approx(np.mean(errors), rel=0.15)


@pytest.mark.slow
def test_it_is_the_same_every_time(bundle: Bundle, small_log: SynthLog, measured: Rolling) -> None:
    again = rolling(bundle, small_log.trace, horizons=HORIZONS, windows=4)
    assert again.pooled.horizons == measured.pooled.horizons and window_rows(again) == window_rows(measured)


def test_a_log_without_arrivals_is_refused(bundle: Bundle, trace_of: Rows) -> None:
    trace = trace_of([{"request_id": str(i), "output_tokens": 5, "end": "stop"} for i in range(50)])
    with pytest.raises(TrainingError, match=r"no arrival times.*without --rolling"):
        rolling(bundle, trace, horizons=HORIZONS)


@pytest.mark.parametrize("windows", [0, 19, 10_000])
def test_windows_must_hold_something(bundle: Bundle, small_log: SynthLog, windows: int) -> None:
    with pytest.raises(InputError, match=r"windows: must be from 1 to 1\d: 3\d\d requests"):
        rolling(bundle, small_log.trace, horizons=HORIZONS, windows=windows)


@pytest.mark.parametrize("horizons", [[], [16, 0]])
def test_a_horizon_must_be_a_number_of_tokens(bundle: Bundle, small_log: SynthLog, horizons: list[int]) -> None:
    with pytest.raises(InputError, match="horizons"):
        rolling(bundle, small_log.trace, horizons=horizons)


def test_an_overlap_is_refused(bundle: Bundle, small_log: SynthLog) -> None:
    part = small_log.trace.take(np.arange(200))
    with pytest.raises(TrainingError, match="training requests are in the part to measure"):
        rolling(bundle, part, horizons=[64])
    assert rolling(bundle, part, horizons=[64], windows=2, allow_overlap=True).pooled.requests > 100


# For people


def test_the_table_has_a_row_a_window_and_one_for_all(drifted: Rolling) -> None:
    rows = window_rows(drifted)
    assert (rows[0][-1], rows[4][-1], rows[-1][0]) == ("–", "model", "all")
    assert {len(row) for row in rows} == {len(TITLES)} and unit_of(drifted)[0] == "h"
    assert "H = 64" in verdict(drifted) and "of 5 windows" in verdict(drifted)


def test_the_report_is_one_page_with_its_plot(drifted: Rolling, tmp_path: Path) -> None:
    write_report(drifted, "drifting.parquet", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1 and "drifting.parquet" in page and "recalibration makes it good" in page
    assert "drift alarm, model" in page
    assert not re.search(r'(src|href)="(https?:|//)|url\((?!#|data:)', page)  # nothing is fetched
    (plot,) = write_plots(drifted, tmp_path / "plots")
    assert plot.name == "over_time.png" and plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 5_000


@pytest.fixture(scope="module")
def log(small_log: SynthLog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "small.parquet"
    write_trace(path, small_log.trace)
    return path


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["evaluate", *arguments])
    return (int(exit_.value.code or 0), *capsys.readouterr())


def test_the_command_tells_machines_all_horizons(
    quick: Trained, log: Path, measured: Rolling, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--rolling", "--windows", "4", "--horizons", "16,80", "--json")
    code, out, _ = command(capsys, str(quick.path), str(log), *options)
    told = json.loads(out)
    assert code == 0 and len(told["windows"]) == 4
    for window in [*told["windows"], told["pooled"]]:
        assert set(window["horizons"]) == {"16", "80"} and isinstance(window["drift"]["alarm"], bool)
        assert set(window["drift"]["served"]) == set(window["drift"]["frozen"]) >= {"H = 16", "H = 80", "all tokens"}
    assert told["pooled"]["horizons"]["80"]["online"]["ece"] == measured.pooled.horizons["80"].online.ece


def test_the_command_tells_people(
    quick: Trained, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--report", str(tmp_path / "r.html"), "--plots", str(tmp_path))
    code, out, _ = command(capsys, str(quick.path), str(log), "--rolling", "--windows", "3", *files)
    assert code == 0 and "H = 64" in out and out.count(" d │") == 3 and "perfectly calibrated" in out
    assert (tmp_path / "r.html").exists() and (tmp_path / "over_time.png").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--windows", "3"], "--windows: needs --rolling"),
        (["--rolling", "--frozen"], "--frozen: cannot be given with --rolling"),
        (["--rolling", "--unobserved"], "--unobserved: cannot be given with --rolling"),
        (["--rolling", "--windows", "999"], "windows: must be from 1 to"),
    ],
)
def test_options_that_exclude_each_other(
    quick: Trained, log: Path, capsys: pytest.CaptureFixture[str], options: list[str], named: str
) -> None:
    code, out, err = command(capsys, str(quick.path), str(log), *options)
    assert code != 0 and out == "" and named in " ".join(err.split())
