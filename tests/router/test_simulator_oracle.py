"""The simulator against a loop in plain Python, written from the definition of the reference decode cluster.

Requests are small objects, workers are lists of them, every sum is taken anew in each step. All policies but those that
weigh survival curves must agree with it exactly: the same admissions, the same times, the same figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.balance_route import placement_gain
from endcast.router.cluster import UNLIMITED
from endcast.router.engine import play
from endcast.router.figures import figures
from endcast.router.forecasts import ForecastSource, NoForecast, Oracle
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.scale import StepTime
from endcast.router.workload import Workload


@dataclass
class Job:
    """A request of the slow simulator."""

    number: int
    arrival: float
    prompt: int
    output: int
    supposed: int
    made: int = 0
    passed: int = 0
    admission: float = -1.0
    first: float = -1.0
    finish: float = -1.0
    step: int = -1

    @property
    def kv(self) -> int:
        return self.prompt + self.made


@dataclass
class Node:
    """A worker of the slow simulator."""

    running: list[Job] = field(default_factory=list)
    queue: list[Job] = field(default_factory=list)


@dataclass
class SlowCluster:
    """All there is, and the settings."""

    nodes: list[Node]
    slots: int
    settings: PolicySettings
    rng: np.random.Generator
    true_lengths: bool
    dispatched: int = 0


def least(scores: list[float], keys: np.ndarray) -> int:
    return min(range(len(scores)), key=lambda g: (scores[g], keys[g]))


SCORES: dict[str, Callable[[Node], float]] = {
    "random": lambda node: 0,
    "join_shortest_queue": lambda node: len(node.running) + len(node.queue),
    "least_kv": lambda node: sum(j.kv for j in node.running) + sum(j.prompt for j in node.queue),
    "vllm_dp": lambda node: 4 * len(node.queue) + len(node.running),
    "length_bucket": lambda node: sum(j.supposed for j in node.running + node.queue),
}


def dispatch(policy: str, new: list[Job], cluster: SlowCluster) -> None:
    """Immediate dispatch: one after the other, each sees the queues as the one before left them."""
    nodes = cluster.nodes
    keys = np.zeros((len(new), 0)) if policy == "round_robin" else cluster.rng.random((len(new), len(nodes)))
    for job, key in zip(new, keys, strict=True):
        if policy == "round_robin":
            g = cluster.dispatched % len(nodes)
        elif policy == "power_of_two":
            first, second, *_ = [*np.argsort(key), np.argsort(key)[0]]
            held = [len(node.running) + len(node.queue) for node in nodes]
            g = int(second if held[second] < held[first] else first)
        else:
            g = least([SCORES[policy](node) for node in nodes], key)
        nodes[g].queue.append(job)
        cluster.dispatched += 1


def expected(job: Job, cluster: SlowCluster) -> np.ndarray:
    """Load of a request over the window: it ends where it will, or never for one who knows nothing."""
    h = np.arange(cluster.settings.horizon + 1)
    ends = job.output - job.made if cluster.true_lengths else 10**9
    return np.where(h < ends, job.kv + h, 0).astype(float)


def balance(pool: list[Job], cluster: SlowCluster) -> list[tuple[Job, int]]:
    """BR-H with everything recomputed for every slot."""
    settings, nodes = cluster.settings, cluster.nodes
    weight = settings.discount ** np.arange(settings.horizon + 1)
    keys, placed, pool = cluster.rng.random(len(nodes)), [], list(pool)
    running = [list(node.running) for node in nodes]
    while pool and any(len(r) < cluster.slots for r in running):
        load = np.array([sum((expected(j, cluster) for j in r), np.zeros(len(weight))) for r in running])
        margin = load.max(axis=0) - load
        free = [g for g in range(len(nodes)) if len(running[g]) < cluster.slots]
        g = min(free, key=lambda g: (-float(weight @ margin[g]), keys[g]))
        score = [
            float(weight @ placement_gain(expected(j, cluster), margin[g], len(nodes)))
            for j in pool[: settings.candidates]
        ]
        best = 0 if pool[0].passed >= settings.max_overtakes else score.index(max(score))
        for older in pool[:best]:
            older.passed += 1
        job = pool.pop(best)
        running[g].append(job)
        placed.append((job, g))
    return placed


def slow_play(policy: str, jobs: list[Job], cluster: SlowCluster, step_time: StepTime) -> dict[str, float]:
    """Sums over the steps that start by the last arrival; the jobs learn their own times."""
    upcoming, pool = list(jobs), list[Job]()
    now, steps, last = 0.0, 0, jobs[-1].arrival
    sums = dict.fromkeys(("time", "balanced", "imbalance", "heaviest", "tokens", "kv", "ended_s"), 0.0)
    while upcoming or pool or any(node.running or node.queue for node in cluster.nodes):
        if not pool and not any(node.running or node.queue for node in cluster.nodes):
            now = max(now, upcoming[0].arrival)
        new = [job for job in upcoming if job.arrival <= now]
        upcoming = upcoming[len(new) :]
        admitted: list[tuple[Job, int]] = []
        if policy.startswith("br"):
            pool += new
            if pool and any(len(node.running) < cluster.slots for node in cluster.nodes):
                admitted = balance(pool, cluster)
            pool = [job for job in pool if all(job is not other for other, _ in admitted)]
        elif new:
            dispatch(policy, new, cluster)
        for g, node in enumerate(cluster.nodes):
            for _ in range(
                min(cluster.slots - len(node.running), len(node.queue)) if not policy.startswith("br") else 0
            ):
                admitted.append((node.queue.pop(0), g))
                cluster.nodes[g].running.append(admitted[-1][0])
        for job, g in admitted:
            if policy.startswith("br"):
                cluster.nodes[g].running.append(job)
            job.admission, job.step = now, steps
        loads = [sum(job.kv for job in node.running) for node in cluster.nodes]
        batch = max(len(node.running) for node in cluster.nodes)
        fixed = step_time.fixed_s + step_time.batch_s * batch
        took = fixed + step_time.kv_s * max(loads)
        if now <= last:
            sums["time"] += took
            sums["balanced"] += fixed + step_time.kv_s * sum(loads) / len(loads)
            sums["imbalance"] += sum(max(loads) - load for load in loads)
            sums["heaviest"] += max(loads)
            sums["tokens"] += sum(len(node.running) for node in cluster.nodes)
            sums["kv"] += sum(loads)
            sums["ended_s"] = now + took
        for node in cluster.nodes:
            for job in node.running:
                job.made += 1
                job.first = now + took if job.first < 0 else job.first
                job.finish = now + took
            node.running = [job for job in node.running if job.made < job.output]
        now, steps = now + took, steps + 1
    return sums


@st.composite
def logs(draw: st.DrawFn) -> Workload:
    """Few requests, arriving one by one, at once, and with pauses in which the fleet runs empty."""
    count = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.125, 1.0, 40.0]), min_size=count, max_size=count))
    small = st.integers(0, 30)
    return Workload.from_arrays(
        arrival_s=np.cumsum(gaps),
        prompt=np.array(draw(st.lists(small, min_size=count, max_size=count)), dtype=np.int64),
        output=np.array(draw(st.lists(st.integers(1, 12), min_size=count, max_size=count)), dtype=np.int64),
        supposed=np.array(draw(st.lists(st.sampled_from([100, 1000, 4096]), min_size=count, max_size=count))),
    )


#: Whole tokens and discounts that are powers of two: all sums are exact, and ties are ties in any order of adding.
SETTINGS = st.builds(
    PolicySettings,
    horizon=st.integers(0, 6),
    discount=st.sampled_from([0.5, 1.0]),
    candidates=st.sampled_from([1, 3, 64]),
    max_overtakes=st.sampled_from([0, 1, 3, 100]),
)
STEP_TIMES = st.sampled_from(
    [
        StepTime(fixed_s=0.25, batch_s=0.0, kv_s=0.125),
        StepTime(fixed_s=0.5, batch_s=0.0625, kv_s=0.0),
        StepTime(fixed_s=0.0, batch_s=0.5, kv_s=0.25),
    ]
)


RUNS = [(name, None) for name in (*SCORES, "round_robin", "power_of_two", "br_0")] + [
    ("br_h_published", "none"),
    ("br_h_published", "oracle"),
]


@pytest.mark.parametrize(("policy", "forecast"), RUNS)
@settings(deadline=None, max_examples=40)
@given(workload=logs(), chosen=SETTINGS, step_time=STEP_TIMES, workers=st.integers(1, 4), slots=st.integers(1, 3))
def test_it_is_the_loop_by_the_book(
    policy: str,
    forecast: str | None,
    workload: Workload,
    chosen: PolicySettings,
    step_time: StepTime,
    workers: int,
    slots: int,
) -> None:
    slow_settings = PolicySettings(
        horizon=0 if policy == "br_0" else chosen.horizon,
        discount=chosen.discount,
        candidates=chosen.candidates,
        max_overtakes=chosen.max_overtakes,
    )
    jobs = [
        Job(
            i, float(workload.arrival_s[i]), int(workload.prompt[i]), int(workload.output[i]), int(workload.supposed[i])
        )
        for i in range(len(workload))
    ]
    cluster = SlowCluster(
        [Node() for _ in range(workers)], slots, slow_settings, np.random.default_rng(3), forecast == "oracle"
    )
    slow = slow_play(policy, jobs, cluster, step_time)

    sources: dict[str | None, ForecastSource] = {"none": NoForecast(), "oracle": Oracle(workload.output)}
    record = play(
        workload.at(workload.arrival_s),
        POLICIES.get(policy)(chosen),
        slots=np.full(workers, slots),
        capacity=np.full(workers, UNLIMITED),
        step_time=step_time,
        forecasts=sources.get(forecast),
        rng=np.random.default_rng(3),
    )
    assert record.admission_step.tolist() == [job.step for job in jobs]
    np.testing.assert_allclose(record.admission_s, [job.admission for job in jobs], rtol=1e-12)
    np.testing.assert_allclose(record.first_token_s, [job.first for job in jobs], rtol=1e-12)
    np.testing.assert_allclose(record.finish_s, [job.finish for job in jobs], rtol=1e-12)
    found = figures(record, kv_per_slot=2.0)
    assert found.efficiency == pytest.approx(slow["balanced"] / slow["time"], rel=1e-12)
    assert found.throughput == pytest.approx(slow["tokens"] / (slow["ended_s"] - jobs[0].arrival), rel=1e-12)
    assert found.kv_per_slot == pytest.approx(slow["kv"] / slow["tokens"] / 2.0, rel=1e-12)
    if slow["heaviest"]:
        assert found.imbalance == pytest.approx(slow["imbalance"] / (workers * slow["heaviest"]), abs=1e-12)
    assert found.backlog == sum(job.admission > jobs[-1].arrival for job in jobs)
    passed = [sum(other.step < job.step for other in jobs[job.number + 1 :]) for job in jobs]
    assert found.overtakings_max == max(passed)
