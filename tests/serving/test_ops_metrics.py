"""Metrics: their names, their bounded labels, those of outcomes, and those of several processes added up."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from endcast.predictors.drift import Deviation, DriftReport
from endcast.serving.app import create_app
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.metrics.of_outcomes import COUNTERS, GAUGES
from endcast.serving.metrics.shared import SAME, SUMMED, SharedMetrics, is_alive, merge
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.calibration import Calibration, HorizonFigures, QuantileFigures
from endcast.serving.outcomes.figures import BookFigures, Compared, Evidence, LiveFigures
from endcast.serving.shadow.comparison import Interval
from endcast.testing import ConstantHazardForecaster

Call = Callable[..., httpx.Response]
NAN = float("nan")


def families_of(app: Any) -> dict[str, Any]:
    """Every family that the app can ever have, by name."""
    return {family.name: family for family in app.state.context.metrics.registry.collect()} | {
        family.name: family for family in Metrics()._outcomes.describe()
    }


def read(text: bytes) -> dict[str, float]:
    out = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            out[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return out


def test_names_follow_the_conventions() -> None:
    families = families_of(create_app(Settings(), ConstantHazardForecaster()))
    for name, family in families.items():
        assert re.fullmatch(r"(endcast|process|python)_[a-z0-9_]+", name)
        assert family.documentation, name
        assert not re.search(r"_(ms|millis|minutes|kb|mb|percent|total)$", name), name
        assert not (family.type == "gauge" and name.endswith("_count"))


def test_no_caller_can_make_a_label(service: Call) -> None:
    for i in range(30):
        service("GET", f"/made-up/{i}")
        service("POST", "/v1/forecasts", json={f"field{i}": 1})
        service("POST", "/v1/forecasts", json={"requests": [{"prompt_tokens": 1, "model": f"m{i}", "tenant": f"t{i}"}]})
    text = service("GET", "/metrics").text
    assert "made-up" not in text and "field1" not in text
    assert len(text.splitlines()) < 400


FIGURES = BookFigures(
    statuses={"accepted": 3, "unknown": 1}, taken=3, unresolved=0, waiting=2, backlog=1, refused=4, commits=5,
    last_commit_s=0.25, ledger=7, torn_lines=1, lost_segments=0, damaged_lines=2,
    live=LiveFigures(
        bundle="b", outcomes=3, contradicted=0,
        calibration=Calibration(
            generations=3, forecasts=4,
            horizons={64: HorizonFigures(forecasts=4, happened=0.5, forecast=0.4, brier=0.2, log_loss=0.6, ece=0.1)},
            quantiles={0.5: QuantileFigures(forecasts=4, coverage=0.45, stated=0.51)},
        ),
        by_model={"m": Calibration(generations=1, forecasts=0, horizons={
            64: HorizonFigures(forecasts=0, happened=NAN, forecast=NAN, brier=NAN, log_loss=NAN, ece=NAN)})},
        by_tenant={"t": Calibration(generations=1, forecasts=1, horizons={
            64: HorizonFigures(forecasts=1, happened=1.0, forecast=0.5, brier=0.25, log_loss=0.7, ece=0.5)})},
        drift=DriftReport(
            outcomes=500, threshold=4.0, measure="H64", z=5.5, ratio=1.3, alarm=True, model_alarm=False,
            explanation="ends come sooner", served={"H64": Deviation(13.0, 10.0, 1.3, 5.5, True)}, frozen={},
        ),
        evidence=Evidence(
            served="b", shadow="c", generations=60, forecasts=99, overall=Interval(-0.1, -0.2, 0.0),
            horizons={64: Compared(served_brier=0.2, shadow_brier=0.1, brier=Interval(-0.1, -float("inf"), float("inf")),
                                   served_log=0.5, shadow_log=0.4, log=Interval(-0.1, -0.2, 0.0))},
        ),
    ),
)  # fmt: skip


def test_what_outcomes_told_is_there() -> None:
    metrics = Metrics()
    metrics.read_outcomes(lambda: FIGURES)
    seen = read(metrics.exposition("sha256:abc", 9))
    expected = {
        "endcast_outcomes_total{status=accepted}": 3, "endcast_outcome_calls_refused_total": 4,
        "endcast_outcome_commit_seconds": 0.25, "endcast_outcome_lines_lost_total{why=damaged}": 2,
        "endcast_calibration_happened_ratio{horizon=64}": 0.5, "endcast_calibration_ece{horizon=64}": 0.1,
        "endcast_calibration_coverage_ratio{quantile=0.5}": 0.45, "endcast_tenant_ece{horizon=64,tenant=t}": 0.5,
        "endcast_drift_alarm{forecasts=served}": 1, "endcast_drift_alarm{forecasts=model}": 0, "endcast_drift_z": 5.5,
        "endcast_drift_ratio{measure=H64}": 1.3, "endcast_shadow_brier_difference{horizon=64}": -0.1,
        "endcast_shadow_brier_difference_low{horizon=64}": -np.inf,
    }  # fmt: skip
    assert {name: seen.get(name) for name in expected} == expected
    assert "endcast_model_ece{horizon=64,model=m}" not in seen, "what is not known is left out"
    assert seen["endcast_bundle_info{bundle=sha256:abc}"] == 1 and seen["endcast_state_version"] == 9


def test_every_declared_metric_of_outcomes_is_given() -> None:
    metrics = Metrics()
    metrics.read_outcomes(lambda: FIGURES)
    seen = {family.name for family in metrics._outcomes.collect()}
    assert seen == set(COUNTERS) | set(GAUGES)


def test_the_bundle_that_was_served_before_is_gone() -> None:
    metrics = Metrics()
    metrics.exposition("old", 1)
    assert "endcast_bundle_info{bundle=old}" not in read(metrics.exposition("new", 2))


def process(calls: int, waiting: int, bundle: str = "b", version: int = 1) -> bytes:
    """What one process exposes."""
    metrics = Metrics()
    for _ in range(calls):
        metrics.seconds.labels("/v1/forecasts", 200).observe(0.02)
        metrics.errors.labels("busy").inc()
    metrics.open_streams.set(waiting)
    metrics.degraded.set(waiting > 1)
    return metrics.exposition(bundle, version)


def test_several_processes_are_one_service() -> None:
    merged = read(merge([(process(3, 1).decode(), True), (process(4, 2, version=5).decode(), True)]))
    assert merged["endcast_request_seconds_count{route=/v1/forecasts,status=200}"] == 7
    assert merged["endcast_request_seconds_bucket{le=0.025,route=/v1/forecasts,status=200}"] == 7
    assert merged["endcast_request_seconds_bucket{le=0.01,route=/v1/forecasts,status=200}"] == 0
    assert merged["endcast_errors_total{code=busy}"] == 7
    assert merged["endcast_open_streams"] == 3
    assert merged["endcast_degraded"] == 1 and merged["endcast_state_version"] == 5
    assert merged["endcast_bundle_info{bundle=b}"] == 1


def test_what_all_read_in_one_log_is_counted_once() -> None:
    def reading() -> str:
        metrics = Metrics()
        metrics.read_outcomes(lambda: FIGURES)
        return metrics.exposition("b", 1).decode()

    merged = read(merge([(reading(), True), (reading(), True)]))
    assert merged["endcast_outcome_generations_total"] == 3
    assert merged["endcast_outcome_lines_lost_total{why=damaged}"] == 2
    assert merged["endcast_outcomes_total{status=accepted}"] == 6, "told to each"
    assert merged["endcast_calibration_ece{horizon=64}"] == 0.1
    assert merged["endcast_ledger_forecasts"] == 14


def test_a_process_that_ended_leaves_its_counts_and_nothing_else() -> None:
    merged = read(merge([(process(3, 1).decode(), True), (process(4, 2, bundle="old").decode(), False)]))
    assert merged["endcast_errors_total{code=busy}"] == 7
    assert merged["endcast_open_streams"] == 1 and merged["endcast_degraded"] == 0
    assert "endcast_bundle_info{bundle=old}" not in merged


def test_a_folder_joins_them(tmp_path: Path) -> None:
    gone = 2**22 + 1  # above the largest id that Linux gives
    assert is_alive(os.getpid()) and not is_alive(gone)
    SharedMetrics(tmp_path, pid=gone).leave(process(2, 1))
    SharedMetrics(tmp_path, pid=os.getppid()).leave(process(1, 5))
    own = SharedMetrics(tmp_path)
    for _ in range(2):  # what it left itself is not counted again
        merged = read(own.merged(process(1, 1)))
        assert merged["endcast_errors_total{code=busy}"] == 4
        assert merged["endcast_open_streams"] == 6


def test_what_is_left_last_is_what_was_true_last(tmp_path: Path) -> None:
    texts = (process(i, 1) for i in itertools.count(1))
    own = SharedMetrics(tmp_path, pid=7)

    async def live() -> None:
        async with own.life(texts):
            await asyncio.sleep(0)

    asyncio.run(live())
    (file,) = tmp_path.iterdir()
    assert file.name == "7.metrics" and read(file.read_bytes())["endcast_errors_total{code=busy}"] >= 1


@pytest.mark.parametrize("name", sorted(SUMMED | SAME))
def test_what_is_summed_exists(name: str) -> None:
    assert name in families_of(create_app(Settings(), ConstantHazardForecaster()))
