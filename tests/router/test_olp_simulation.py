"""OLP in whole simulations: what its weights do, and that nobody is forgotten."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from endcast.router.cluster import UNLIMITED
from endcast.router.engine import RunRecord, play
from endcast.router.figures import overtakings
from endcast.router.forecasts import ForecastSource, Oracle
from endcast.router.olp.settings import OlpSettings
from endcast.router.policies.olp import Olp
from endcast.router.policy import PolicySettings
from endcast.router.scale import default_step_time, mean_kv_per_slot, offered_rate, stretched
from endcast.router.workload import Workload

G, B = 4, 8


def workload(seed: int, *, count: int = 1000, utilization: float = 1.05, tenants: int = 0) -> Workload:
    """Poisson arrivals, log-normal lengths, at so much of what the fleet could serve."""
    rng = np.random.default_rng(seed)
    prompt = np.maximum(rng.lognormal(6.0, 1.0, count), 1).astype(np.int64)
    output = np.maximum(rng.lognormal(4.0, 1.0, count), 1).astype(np.int64)
    kv = mean_kv_per_slot(prompt, output)
    step = default_step_time(B, kv)
    rate = offered_rate(step, utilization=utilization, workers=G, slots=B, kv_per_slot=kv, output=output)
    arrival_s = stretched(np.cumsum(rng.exponential(1.0, count)), rate)
    tenant = np.where(rng.random(count) < 0.8, 0, 1) if tenants else None
    return Workload.from_arrays(arrival_s=arrival_s, prompt=prompt, output=output, tenant=tenant)


def run(
    load: Workload, *, max_overtakes: int = 10**6, source: ForecastSource | None = None, seed: int = 0, **olp: object
) -> RunRecord:
    settings = PolicySettings(max_overtakes=max_overtakes, olp=OlpSettings(**{"patience": 1.0, **olp}))  # type: ignore[arg-type]
    kv = mean_kv_per_slot(load.prompt, load.output)
    return play(
        load,
        Olp(settings),
        slots=np.full(G, B),
        capacity=np.full(G, UNLIMITED),
        step_time=default_step_time(B, kv),
        forecasts=source or Oracle(load.output),
        rng=np.random.default_rng(seed),
    )


def mean_e2e(record: RunRecord) -> float:
    return float(np.mean(record.finish_s - record.arrival_s))


def test_scaling_all_weights_changes_nothing() -> None:
    load = workload(0)
    one, other = (run(load, w_latency=s * 1.0, w_ttft=s * 0.5, w_tail=s * 4.0) for s in (1.0, 1024.0))
    np.testing.assert_array_equal(one.finish_s, other.finish_s)
    third = run(load, w_latency=1.0, w_ttft=0.5, w_tail=8.0)
    assert np.any(third.finish_s != one.finish_s)


@pytest.mark.parametrize("step_size", [0.0, 0.05], ids=["no prices", "prices"])
def test_each_weight_moves_its_figure_the_right_way(step_size: float) -> None:
    """From one end of each weight to the other, means over two logs; runs are chaotic, so 3 % the wrong way pass."""
    loads = [workload(seed, count=500) for seed in range(2)]

    def figures(**weights: float) -> tuple[float, float, float]:
        records = [
            run(load, step_size=step_size, tail_scale_s=20.0, **weights)  # type: ignore[arg-type]
            for load in loads
        ]
        waits = [r.admission_s - r.arrival_s for r in records]
        return (
            float(np.mean([mean_e2e(r) for r in records])),
            float(np.mean([w.mean() for w in waits])),
            float(np.mean([np.percentile(r.finish_s - r.arrival_s, 99) for r in records])),
        )

    base = {"w_latency": 1.0, "w_ttft": 0.0, "w_tail": 1.0}
    sweeps = {
        "w_latency": (0, [figures(**{**base, "w_latency": w}) for w in (0.1, 1.0, 10.0)]),
        "w_ttft": (1, [figures(w_latency=0.0, w_tail=1.0, w_ttft=w) for w in (0.01, 1.0, 100.0)]),
        "w_tail": (2, [figures(**{**base, "w_tail": w}) for w in (0.1, 1.0, 10.0)]),
    }
    for name, (which, found) in sweeps.items():
        values = [f[which] for f in found]
        assert values[2] < 0.95 * values[0], (name, values)
        assert all(later < 1.03 * earlier for earlier, later in itertools.pairwise(values)), (
            name,
            values,
        )


def test_shortest_first_and_first_come_are_its_two_ends() -> None:
    load = workload(1)
    short = run(load, w_latency=1.0, w_tail=0.0, step_size=0.0)
    fifo = run(load, w_latency=0.0, w_ttft=0.0, step_size=0.0)
    assert mean_e2e(short) < 0.75 * mean_e2e(fifo)
    assert overtakings(fifo.admission_step).max() == 0
    assert np.all(np.diff(fifo.admission_s) >= 0.0)


@pytest.mark.parametrize("reward", ["urgency", "published"])
@pytest.mark.parametrize("bound", [0, 16, 200])
def test_overtaking_is_bounded_whatever_the_reward(reward: str, bound: int) -> None:
    """The published reward overtakes without end where nothing bounds it."""
    record = run(workload(2), max_overtakes=bound, reward=reward, w_throughput=1.0, w_tail=0.0)
    assert overtakings(record.admission_step).max() <= bound
    if reward == "published":
        free = run(workload(2), reward=reward, w_throughput=1.0, w_tail=0.0)
        assert overtakings(free.admission_step).max() > 300


def test_lengths_opposite_to_their_forecasts_starve_nobody() -> None:
    load = workload(3)
    rank = np.argsort(np.argsort(load.output, kind="stable"))
    wrong = Oracle(np.sort(load.output)[::-1][rank])
    good, bad = run(load, max_overtakes=128), run(load, max_overtakes=128, source=wrong)
    assert np.isfinite(bad.finish_s).all()
    assert overtakings(bad.admission_step).max() <= 128
    assert mean_e2e(bad) > mean_e2e(good)


def test_all_at_once_and_one_giant_among_dwarfs_are_served() -> None:
    count = 400
    output = np.full(count, 3)
    output[7] = 2000
    load = Workload.from_arrays(arrival_s=np.zeros(count), prompt=np.full(count, 40), output=output)
    record = run(load, max_overtakes=64)
    assert np.isfinite(record.finish_s).all()
    assert overtakings(record.admission_step)[7] <= 64


def test_weights_of_requests_are_priorities() -> None:
    load = workload(4)
    chosen = np.random.default_rng(0).random(len(load)) < 0.2
    record = run(replace(load, weight=np.where(chosen, 5.0, 1.0)), w_tail=1.0, tail_scale_s=20.0)
    plain = run(load, w_tail=1.0, tail_scale_s=20.0)
    wait, before = (r.admission_s - r.arrival_s for r in (record, plain))
    assert wait[chosen].mean() < 0.5 * before[chosen].mean()
    assert wait[~chosen].mean() > before[~chosen].mean()


def test_fairness_protects_the_small_tenant_from_the_large_one() -> None:
    """Four fifths of the requests are tenant 0's; under overload tenant 1 asks for less than half and waits less."""
    load = workload(5, tenants=2, utilization=1.2)
    assert load.tenant is not None
    small = load.tenant == 1
    wait = {}
    for strength in (0.0, 1.0):
        record = run(load, fairness=strength, fairness_s=30.0, w_tail=1.0, tail_scale_s=20.0)
        wait[strength] = float(np.mean((record.admission_s - record.arrival_s)[small]))
    assert wait[1.0] < 0.6 * wait[0.0]


def test_shedding_keeps_what_is_served_short_and_counts_what_is_not() -> None:
    load = workload(6, utilization=1.5)
    everybody, paying = run(load, w_tail=0.0), run(load, w_tail=0.0, shed=True)
    assert everybody.rejected == 0
    assert 0 < paying.rejected == len(load) - len(paying.finish_s) < len(load) // 2
    assert np.isfinite(paying.finish_s).all()
    waits = [float(np.mean(r.admission_s - r.arrival_s)) for r in (everybody, paying)]
    assert waits[1] < 0.7 * waits[0]


def test_a_fleet_with_room_sheds_nothing() -> None:
    assert run(workload(7, utilization=0.5), shed=True).rejected == 0
