"""Details of runs against figures, and against slow recomputation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.trace import Trace
from endcast.reporting.run_details import BINS, INSTANTS, LoadOverTime, RunDetails, load_over_time, waits_by_size
from endcast.reporting.simulation_summary import Simulated, key_of
from endcast.router import record as sums_of
from endcast.router.record import RunRecord
from endcast.router.simulator import PlayedRun, SimulationSettings, simulate
from endcast.router.workload import Workload

WORKERS, SLOTS = 3, 4


@pytest.fixture(scope="module")
def played(trace: Trace) -> PlayedRun:
    runs: list[PlayedRun] = []
    settings = SimulationSettings(workers=WORKERS, slots=SLOTS)
    simulate(Workload.from_trace(trace), settings, policies=["least_kv"], watch=runs.append)
    return runs[0]


def test_shares_of_time_agree_with_the_figures(simulated: Simulated) -> None:
    for result in simulated.report.results:
        shares = simulated.details[key_of(result)].shares
        assert shares.fixed + shares.reading + shares.imbalance == pytest.approx(1.0)
        assert shares.imbalance == pytest.approx(1.0 - result.mean["efficiency"])
        assert 0.0 < shares.occupancy <= 1.0


def test_waits_agree_with_the_figures(simulated: Simulated) -> None:
    for result in simulated.report.results:
        details = simulated.details[key_of(result)]
        assert details.wait_s == pytest.approx(result.mean["wait_s"]["mean"])
        assert details.wait_s + details.decode_s == pytest.approx(result.mean["e2e_s"]["mean"])
        for classes in (details.by_prompt, details.by_output):
            counts = np.array([size.requests for size in classes])
            assert counts.sum() == simulated.report.settings["requests"]
            assert counts @ [size.mean for size in classes] / counts.sum() == pytest.approx(details.wait_s)
            assert max(size.max for size in classes) >= result.mean["wait_s"]["p99"]


def slow_load_over_time(record: RunRecord, workers: int) -> LoadOverTime:
    """Instant by instant, request by request."""
    until, count = record.arrival_s[-1], BINS * INSTANTS
    load, waiting = np.zeros((workers, count)), np.zeros(count)
    for i in range(count):
        now = (i + 0.5) * until / count
        for j in range(len(record.prompt)):
            if record.admission_s[j] <= now < record.finish_s[j]:
                done = (now - record.admission_s[j]) / (record.finish_s[j] - record.admission_s[j])
                load[record.worker[j], i] += record.prompt[j] + done * record.output[j]
            waiting[i] += record.arrival_s[j] <= now < record.admission_s[j]
    binned = load.reshape(workers, BINS, INSTANTS)
    return LoadOverTime(
        until_s=float(until),
        load=binned.mean(axis=2),
        heaviest=binned.max(axis=0).mean(axis=1),
        waiting=waiting.reshape(BINS, INSTANTS).mean(axis=1),
    )


def test_load_over_time_is_what_adding_up_gives(trace: Trace) -> None:
    runs: list[PlayedRun] = []
    few = Workload.from_trace(Trace(trace.table.slice(0, 40)))
    simulate(few, SimulationSettings(workers=2, slots=3), policies=["random"], watch=runs.append)
    fast, slow = load_over_time(runs[0].record, 2), slow_load_over_time(runs[0].record, 2)
    assert fast.until_s == slow.until_s
    for name in ("load", "heaviest", "waiting", "idle"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-6, atol=1e-6)


def test_idle_over_time_is_near_the_imbalance(played: PlayedRun) -> None:
    """Instants against steps: the same quantity, measured in two ways."""
    over_time = RunDetails.of(played, workers=WORKERS, slots=WORKERS * SLOTS).over_time
    idle = float(over_time.idle @ over_time.heaviest / over_time.heaviest.sum())
    sums = played.record.sums
    imbalance = 1.0 - sums[sums_of.LOAD] / sums[sums_of.IDEAL]
    assert idle == pytest.approx(imbalance, abs=0.03)


def test_averages_of_one_run_are_the_run(played: PlayedRun) -> None:
    details = RunDetails.of(played, workers=WORKERS, slots=WORKERS * SLOTS)
    same = RunDetails.averaged([details, details])
    assert (same.shares, same.by_prompt, same.by_output) == (details.shares, details.by_prompt, details.by_output)
    assert same.wait_s == details.wait_s and same.over_time is details.over_time


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_classes_part_the_requests_by_size(sizes: list[int]) -> None:
    tokens = np.array(sizes)
    classes = waits_by_size(tokens, tokens.astype(np.float64))  # wait = size, so classes must be in order
    assert sum(size.requests for size in classes) == len(sizes)
    assert 1 <= len(classes) <= 4
    assert all(size.requests > 0 for size in classes)
    means = [size.mean for size in classes]
    assert means == sorted(means) and len(set(means)) == len(means)


def test_labels_of_classes() -> None:
    quarters = np.arange(1, 4001)
    labels = [size.label for size in waits_by_size(quarters, np.zeros(4000))]
    assert labels == ["up to 1,000", "1,001 to 2,000", "2,001 to 3,000", "over 3,000"]
    assert [size.label for size in waits_by_size(np.full(5, 7), np.zeros(5))] == ["all"]
