"""The few values that table, page and demo share."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from endcast.cli.simulation_table import result_table
from endcast.errors import UnknownNameError
from endcast.reporting.simulation_summary import (
    Kind,
    Simulated,
    by_efficiency,
    forecast_label,
    forecast_results,
    kind_of,
    label_of,
    today_of,
    value_captured,
)
from endcast.router.figures import DecisionTime, Distribution, Figures
from endcast.router.results import PolicyResult, SimulationReport


def made_up(policy: str, forecast: str | None, *efficiency: float) -> PolicyResult:
    """With one run for each efficiency given."""
    runs = []
    for i, value in enumerate(efficiency):
        times = Distribution(mean=1234.5 + i, p50=1200.0, p99=2345.6 + 17 * i, max=3456.7)
        runs.append(
            Figures(
                throughput=16_000 * value,
                efficiency=value,
                imbalance=0.1,
                kv_per_slot=1.0,
                backlog=10_234.0,
                overtakings_max=4_096.0,
                e2e_s=times,
                wait_s=times,
                ttft_s=times,
                tpot_s=times,
                preemptions=0.0,
                rejected=0.0,
                decision_ms=DecisionTime(p50=0.1, p99=0.1),
            )
        )
    return PolicyResult(policy, forecast, tuple(runs))


def simulated(*results: PolicyResult, today: str = "least_kv", saw_answers: tuple[str, ...] = ()) -> Simulated:
    report = SimulationReport({}, len(results[0].runs), results)
    return Simulated(report, {}, today, frozenset(saw_answers), (), ())


BUNDLE = "sha256:0123456789abcdef"
ALL = (
    made_up("least_kv", None, 0.80),
    made_up("br_0", None, 0.90),
    made_up("br_h", None, 0.88),
    made_up("br_h", "kaplan_meier", 0.92),
    made_up("br_h", BUNDLE, 0.97),
    made_up("br_h", "oracle", 0.98),
)


def test_value_captured_is_a_share_of_what_true_lengths_gain() -> None:
    report = simulated(*ALL).report
    captured = {label_of(r): value_captured(report, r) for r in report.results}
    assert captured["br_h, kaplan_meier"] == pytest.approx(0.25)
    assert captured["br_h, none"] == pytest.approx(-0.25)
    assert captured["br_h, bundle 01234567"] == pytest.approx(0.875)
    assert captured["br_0"] is captured["br_h, oracle"] is captured["least_kv"] is None


def test_value_captured_is_not_told_within_noise_or_without_both_ends() -> None:
    noisy = simulated(
        made_up("br_0", None, 0.90, 0.94),
        made_up("br_h", "kaplan_meier", 0.92, 0.92),
        made_up("br_h", "oracle", 0.93, 0.93),
    )
    assert value_captured(noisy.report, noisy.report.results[1]) is None
    without_oracle = simulated(*ALL[:-1])
    assert all(value_captured(without_oracle.report, r) is None for r in without_oracle.report.results)
    worse = simulated(ALL[1], ALL[3], made_up("br_h", "oracle", 0.89))
    assert value_captured(worse.report, worse.report.results[1]) is None


def test_the_best_is_one_that_a_fleet_could_have() -> None:
    assert label_of(simulated(*ALL).best) == "br_h, bundle 01234567"
    assert label_of(simulated(*ALL, saw_answers=(BUNDLE,)).best) == "br_h, kaplan_meier"
    assert label_of(simulated(ALL[-1], today="br_h").best) == "br_h, oracle"


def test_what_stands_for_today() -> None:
    assert today_of(["br_0", "round_robin", "least_kv"]) == "least_kv"
    assert today_of(["br_0", "vllm_dp", "round_robin"]) == "round_robin"
    assert today_of(["br_0", "random", "vllm_dp"]) == "random"
    assert today_of(["br_h", "br_0"]) == "br_h"
    assert today_of(["br_h", "br_0"], "br_0") == "br_0"
    with pytest.raises(UnknownNameError, match=r"--today: random is not among.*Simulated: br_h, br_0"):
        today_of(["br_h", "br_0"], "random")
    assert simulated(*ALL, today="br_h").now is ALL[2]


def test_kinds_and_labels() -> None:
    assert [kind_of(r) for r in ALL] == [Kind.DISPATCH, Kind.POOL, Kind.POOL, Kind.FORECAST, Kind.FORECAST, Kind.ORACLE]
    assert [label_of(r) for r in ALL[:4]] == ["least_kv", "br_0", "br_h, none", "br_h, kaplan_meier"]
    assert forecast_label(None) == "none" and forecast_label("crossfit:lightgbm") == "crossfit:lightgbm"


def test_orders() -> None:
    one = simulated(*ALL)
    assert [r.mean["efficiency"] for r in by_efficiency(one)] == [0.98, 0.97, 0.92, 0.90, 0.88, 0.80]
    assert [label_of(r) for r in forecast_results(one)] == [
        "br_h, none", "br_0", "br_h, kaplan_meier", "br_h, bundle 01234567", "br_h, oracle",
    ]  # fmt: skip
    assert forecast_results(dataclasses.replace(one, report=SimulationReport({}, 1, ALL[:2]))) == []


def test_the_table_of_a_large_fleet_fits_120_columns_unwrapped() -> None:
    """The widest figures that a big simulation has, with spreads and stars."""
    results = [
        made_up(policy, forecast, 0.95, 0.96)
        for policy, forecast in [("least_kv", None), ("join_shortest_queue", None), ("br_0", None), ("br_h", "oracle"),
                                 ("br_h", "kaplan_meier"), ("br_h", "crossfit:lightgbm"), ("br_h", BUNDLE)]
    ]  # fmt: skip
    console = Console(width=120, file=io.StringIO())
    console.print(result_table(simulated(*results), "title"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().rstrip().splitlines()
    rule = next(i for i, line in enumerate(lines) if "──" in line)
    assert len(lines) - rule - 1 == len(results)
    assert max(map(len, lines)) <= 120
    assert "15,280* ±113" in lines[-1] and ".955* ±.007" in lines[-1] and "1,235* ±1" in lines[-1]
