"""The few values that table, page and demo share."""

from __future__ import annotations

import dataclasses

import pytest

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

TIMES = Distribution(mean=1.0, p50=1.0, p99=1.0, max=1.0)


def result(policy: str, forecast: str | None, *efficiency: float) -> PolicyResult:
    """With one run for each efficiency given."""
    return PolicyResult(
        policy,
        forecast,
        tuple(
            Figures(
                throughput=100.0,
                efficiency=value,
                imbalance=0.1,
                kv_per_slot=1.0,
                backlog=0.0,
                overtakings_max=0.0,
                e2e_s=TIMES,
                wait_s=TIMES,
                ttft_s=TIMES,
                tpot_s=TIMES,
                preemptions=0.0,
                rejected=0.0,
                decision_ms=DecisionTime(p50=0.1, p99=0.1),
            )
            for value in efficiency
        ),
    )


def simulated(*results: PolicyResult, today: str = "least_kv", saw_answers: tuple[str, ...] = ()) -> Simulated:
    report = SimulationReport({}, len(results[0].runs), results)
    return Simulated(report, {}, today, frozenset(saw_answers), (), ())


BUNDLE = "sha256:0123456789abcdef"
ALL = (
    result("least_kv", None, 0.80),
    result("br_0", None, 0.90),
    result("br_h", None, 0.88),
    result("br_h", "kaplan_meier", 0.92),
    result("br_h", BUNDLE, 0.97),
    result("br_h", "oracle", 0.98),
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
        result("br_0", None, 0.90, 0.94),
        result("br_h", "kaplan_meier", 0.92, 0.92),
        result("br_h", "oracle", 0.93, 0.93),
    )
    assert value_captured(noisy.report, noisy.report.results[1]) is None
    without_oracle = simulated(*ALL[:-1])
    assert all(value_captured(without_oracle.report, r) is None for r in without_oracle.report.results)
    worse = simulated(ALL[1], ALL[3], result("br_h", "oracle", 0.89))
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
