"""Tiny cases, stepped by hand; all times are sums of powers of two, so they must come out exactly."""

from __future__ import annotations

import numpy as np
import pytest

from endcast.router.cluster import UNLIMITED
from endcast.router.engine import RunRecord, play
from endcast.router.figures import figures
from endcast.router.forecasts import Oracle
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.scale import (
    StepTime,
    default_step_time,
    mean_kv_per_slot,
    offered_rate,
    stretched,
)
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.workload import Workload

#: A second a step, and an eighth for each KV token of the heaviest worker.
STEP = StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.125)


def run(workload: Workload, policy: str, *, workers: int = 2, slots: int = 1, **chosen: int) -> RunRecord:
    return play(
        workload,
        POLICIES.get(policy)(PolicySettings(**chosen)),  # type: ignore[arg-type]
        slots=np.full(workers, slots),
        capacity=np.full(workers, UNLIMITED),
        step_time=STEP,
        forecasts=Oracle(workload.output),
        rng=np.random.default_rng(0),
    )


def log(*requests: tuple[float, int, int]) -> Workload:
    """Requests as (arrival, prompt, output)."""
    arrival, prompt, output = zip(*requests, strict=True)
    return Workload.from_arrays(
        arrival_s=np.array(arrival, dtype=float), prompt=np.array(prompt), output=np.array(output)
    )


THREE = log((0.0, 10, 2), (0.0, 4, 1), (0.5, 2, 1))


def test_round_robin_leaves_a_slot_empty() -> None:
    """A on worker 0, B on 1, and C behind A although worker 1 is free.

    Step 0 at 0: loads 10, 4, takes 1 + 10/8 = 2.25; B is done. Step 1 at 2.25: C enters worker 0's queue, loads 11, 0,
    takes 2.375; A is done. Step 2 at 4.625: C starts, load 2, takes 1.25.
    """
    record = run(THREE, "round_robin")
    assert record.admission_s.tolist() == [0.0, 0.0, 4.625]
    assert record.first_token_s.tolist() == [2.25, 2.25, 5.875]
    assert record.finish_s.tolist() == [4.625, 2.25, 5.875]
    assert record.steps == 3


def test_figures_of_that_run() -> None:
    """Only step 0 starts by the last arrival, at 0.5: M = 10, I = 6, two tokens in 2.25 s."""
    found = figures(run(THREE, "round_robin"), kv_per_slot=3.5)
    assert found.imbalance == 0.3
    assert found.efficiency == (1 + 7 / 8) / 2.25
    assert found.throughput == 2 / 2.25
    assert found.kv_per_slot == 2.0
    assert found.backlog == 1
    assert found.overtakings_max == 0
    assert (found.wait_s.mean, found.wait_s.p50, found.wait_s.max) == (4.125 / 3, 0.0, 4.125)
    assert (found.e2e_s.p50, found.e2e_s.max) == (4.625, 5.375)
    assert (found.ttft_s.p50, found.ttft_s.max) == (2.25, 5.375)
    assert (found.tpot_s.p50, found.tpot_s.max) == (2.25, 2.3125)
    assert found.wait_s.p99 == pytest.approx(4.125 * 0.98)
    assert (found.preemptions, found.rejected) == (0, 0)


@pytest.mark.parametrize("policy", ["br_0", "br_h", "join_shortest_queue", "least_kv"])
def test_others_fill_the_slot(policy: str) -> None:
    """C starts at 2.25 beside A; loads 11, 2: the step takes 2.375 and both are done."""
    record = run(THREE, policy)
    assert record.admission_s.tolist() == [0.0, 0.0, 2.25]
    assert record.finish_s.tolist() == [4.625, 2.25, 4.625]


def test_what_fits_the_margin_goes_first() -> None:
    """Loads 11 and 0 (margin 11), waiting 14, 9 and 3: F(14) = 11 − 3 = 8, F(9) = 9, F(3) = 3."""
    workload = log((0.0, 10, 9), (0.5, 14, 1), (0.5, 9, 1), (0.5, 3, 1))
    record = run(workload, "br_0")
    assert record.admission_step.tolist() == [0, 2, 1, 3]


def test_one_that_ends_soon_overflows_cheaply() -> None:
    """Looking one step ahead with true lengths, 12 tokens that end at once beat 9 that stay.

    Loads of the other worker: 11 now, 12 then. d = (12, 0): F_1 = (11 − 1) + 0 = 10; d = (9, 0): 9. Now make the 9 last:
    d = (9, 10): F_1 = 9 + 10 = 19, so it goes first.
    """
    ends = log((0.0, 10, 9), (0.5, 12, 1), (0.5, 9, 1))
    stays = log((0.0, 10, 9), (0.5, 12, 1), (0.5, 9, 5))
    chosen = {"horizon": 1}
    assert run(ends, "br_h_published", **chosen).admission_step.tolist() == [0, 1, 2]
    assert run(stays, "br_h_published", **chosen).admission_step.tolist() == [0, 6, 1]


def test_overtaken_once_too_often() -> None:
    """One slot a worker beside a load of 10; 30 tokens never fit the margin, but one may pass them, or none."""
    workload = log((0.0, 10, 99), (0.5, 30, 1), (0.5, 9, 1), (0.5, 8, 1))
    for bound, order in ((0, [1, 2, 3]), (1, [2, 1, 3]), (2, [3, 1, 2])):
        assert run(workload, "br_0", max_overtakes=bound).admission_step.tolist() == [0, *order]


def test_time_jumps_to_the_next_arrival_when_nothing_is_left() -> None:
    record = run(log((3.0, 0, 1), (100.0, 0, 1)), "round_robin")
    assert record.admission_s.tolist() == [3.0, 100.0]
    assert record.finish_s.tolist() == [4.0, 101.0]
    assert figures(record, kv_per_slot=1.0).throughput == 2 / 98  # from the first arrival to the last step


def test_a_batch_costs_its_largest_worker() -> None:
    record = play(
        log((0.0, 0, 1), (0.0, 0, 1), (0.0, 0, 1)),
        POLICIES.get("round_robin")(PolicySettings()),
        slots=np.array([4, 4]),
        capacity=np.full(2, UNLIMITED),
        step_time=StepTime(fixed_s=1.0, batch_s=0.5, kv_s=0.0),
        forecasts=None,
        rng=np.random.default_rng(0),
    )
    assert record.finish_s.tolist() == [2.0, 2.0, 2.0]


def test_the_default_scale() -> None:
    """L̄₁ = (100·3 + 10·1)/4 + (3·2)/(2·4) = 78.25; a full balanced step takes 60 ms."""
    prompt, output = np.array([100, 10]), np.array([3, 1])
    kv = mean_kv_per_slot(prompt, output)
    assert kv == 78.25
    step = default_step_time(32, kv)
    assert (step.fixed_s, step.batch_s) == (0.020, 0.0)
    assert step.of(32, 32 * kv) == pytest.approx(0.060)
    rate = offered_rate(step, utilization=1.05, workers=8, slots=32, kv_per_slot=kv, output=output)
    assert rate == pytest.approx(1.05 * 8 * 32 / 0.060 / 2)


def test_arrivals_are_stretched_linearly() -> None:
    assert stretched(np.array([5.0, 6.0, 9.0]), rate=0.5).tolist() == [0.0, 1.5, 6.0]


def test_simulate_plays_that_scale() -> None:
    """Two requests at an offered rate of 1.05·… a second, one worker, one slot: the second waits for the first."""
    workload = log((7.0, 100, 3), (9.0, 10, 1))
    report = simulate(workload, SimulationSettings(workers=1, slots=1, utilization=1.0), policies=["round_robin"])
    kv = 78.25
    second = 2 * 2 / (1 / 0.060)  # n requests of 2 tokens on average at 1/0.060 tokens a second
    took = [0.020 + 0.040 * load / kv for load in (100, 101, 102, 10)]
    e2e = [sum(took[:3]), max(sum(took[:3]), second) + took[3] - second]
    run_ = report.result("round_robin").runs[0]
    assert run_.e2e_s.max == pytest.approx(max(e2e), rel=1e-12)
    assert run_.e2e_s.mean == pytest.approx(sum(e2e) / 2, rel=1e-12)
