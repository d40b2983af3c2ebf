"""Bounded KV memory against a loop in plain Python: who starts, who is thrown out, who goes on, and when."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import SimulationError
from endcast.router.admission import admission_rule
from endcast.router.engine import KvRules, RunRecord, play
from endcast.router.forecasts import Oracle
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.scale import StepTime
from endcast.router.workload import Workload

STEPS = (StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0), StepTime(fixed_s=0.5, batch_s=0.0, kv_s=0.0625))
RULES = (
    "optimistic:0",
    "optimistic:0.05",
    "optimistic:0.3",
    "reserve_cap",
    "headroom:0.9",
    "headroom:0.97",
    "headroom:0.3",
    "forecast:0.5",
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a run is played with. ``bound``: the overtaking bound of a pool, or round-robin dispatch."""

    capacity: list[int]
    slots: int
    rule: str
    victim: str
    rate: float
    bound: int | None


def run(load: Workload, memory: Memory, step: StepTime) -> RunRecord:
    name = "round_robin" if memory.bound is None else "br_0"
    return play(
        load,
        POLICIES.get(name)(PolicySettings(max_overtakes=memory.bound or 0)),
        slots=np.full(len(memory.capacity), memory.slots),
        capacity=np.array(memory.capacity),
        step_time=step,
        forecasts=Oracle(load.output),
        rng=np.random.default_rng(1),
        kv=KvRules(
            admission=admission_rule(memory.rule), victim=VICTIMS.get(memory.victim), recompute_rate=memory.rate
        ),
    )


def interval(age: int) -> int:
    """Of 16 tokens up to 128, which is further than these requests get."""
    return age // 16


def peak(jobs: list[Job]) -> int:
    """Most KV tokens that these come to hold, step by step, if nothing else starts."""
    left = [job.output - job.made for job in jobs]
    return max(
        sum(job.kv + i + 1 for job, r in zip(jobs, left, strict=True) if r > i) for i in range(max(left))
    )  # fmt: skip


@dataclass(eq=False)
class Job:
    """A request of the slow fleet."""

    number: int
    arrival: float
    prompt: int
    output: int
    cap: int
    made: int = 0
    since: int = -1
    ready: float = 0.0
    admission: float = -1.0
    finish: float = -1.0
    thrown_out: int = 0
    node: int = -1
    passed: int = 0

    @property
    def kv(self) -> int:
        return self.prompt + self.made


class SlowFleet:
    """Workers that preempt; everything is summed anew, one worker after the other.

    Dispatch is round-robin; or, with one worker and ``bound``, from a pool of which the oldest that fits starts, unless
    later arrivals have passed the oldest of all ``bound`` times.
    """

    def __init__(
        self, jobs: list[Job], capacity: list[int], slots: int, rule: str, victim: str, rate: float,
        bound: int | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.capacity, self.slots, self.rate, self.victim = jobs, capacity, slots, rate, victim
        name, _, number = rule.partition(":")
        self.rule, self.number, self.bound = name, float(number or 0), bound
        self.made, self.ends = defaultdict[int, float](float), defaultdict[int, float](float)  # by interval of age
        self.running: list[list[Job]] = [[] for _ in capacity]
        self.queue: list[list[Job]] = [[] for _ in capacity]
        self.out: list[list[Job]] = [[] for _ in capacity]
        self.round: list[list[Job]] = [[] for _ in capacity]  # what ran when starting began
        self.recomputed = self.starts = 0
        self.now, self.lost = 0.0, list[Job]()

    def claim(self, job: Job, capacity: int) -> int:
        if self.rule != "reserve_cap":
            return job.kv + 1
        return min(max(job.prompt + job.cap, job.kv + 1), capacity)

    def kept_free(self, job: Job, g: int) -> float:
        capacity = self.capacity[g]
        if self.rule == "optimistic":
            return int(np.ceil(self.number * capacity))
        if self.rule == "headroom":
            return self.headroom(job, self.round[g], len(self.running[g]) - len(self.round[g]), capacity)
        return 0

    def headroom(self, job: Job, before: list[Job], since: int, capacity: int) -> float:
        """What ran ``before`` this round and has so many tokens ends by its age; it, and those started ``since``, from age 0."""
        pooled, margin = (sum(self.made.values()) + 500.0) / (sum(self.ends.values()) + 1.0), log(1.0 / self.number)
        steps = max(round(pooled * margin / max(len(before), 1)), 1)

        def ends_of(age: int) -> float:
            chance = [
                0.5 * (self.ends[k] + 5.0) / (self.made[k] + 5.0 * pooled) + 0.5 / pooled
                for k in (interval(age + i) for i in range(steps))
            ]
            return sum(chance) / steps

        expected = sum(ends_of(other.made) for other in before) + (since + 1) * ends_of(0)
        per_end = (len(before) + since + 1) / expected
        size = (job.kv + 1) / per_end
        return min(max(per_end * (margin - log(size / (1.0 - exp(-size)))), 0.0), capacity / 2)

    def fits(self, job: Job, g: int) -> bool:
        here, capacity = self.running[g], self.capacity[g]
        if sum(j.kv + 1 for j in here) + job.kv + 1 > capacity:
            return False
        if not here:
            return True
        claimed = sum(self.claim(j, capacity) for j in here) + self.claim(job, capacity)
        if self.rule == "forecast" and peak([*here, job]) > capacity:
            return False
        return claimed + self.kept_free(job, g) <= capacity

    def start(self, job: Job, g: int) -> None:
        job.since, job.node = self.starts, g
        self.starts += 1
        self.running[g].append(job)

    def throw_out(self, g: int) -> bool:
        """Whether anything had to go."""
        had_to = False
        while sum(j.kv + (j.ready <= self.now) for j in self.running[g]) > self.capacity[g]:
            had_to = True
            if self.victim == "newest":
                job = max(self.running[g], key=lambda j: j.since)
            else:
                job = min(self.running[g], key=lambda j: (j.kv, -j.since))
            self.running[g].remove(job)
            job.thrown_out, job.ready = job.thrown_out + 1, 0.0
            if job.kv + 1 > self.capacity[g]:
                self.lost.append(job)
            else:
                self.out[g].insert(0, job)
        return had_to and bool(self.running[g])

    def count_ends(self) -> None:
        """Tokens of this step, and ends: older counts fade by 1 in 2,000 for each."""
        everything = [job for jobs in self.running for job in jobs]
        kept = (1.0 - 1.0 / 2000.0) ** sum(job.made == job.output for job in everything)
        for counts in (self.made, self.ends):
            counts.update({age: count * kept for age, count in counts.items()})
        for job in everything:
            made = int(job.ready <= self.now)
            self.made[interval(job.made - made)] += made
            self.ends[interval(job.made - made)] += job.made == job.output

    def admit(self, g: int) -> None:
        """New requests from the queue's head, or the oldest that fits if they wait in a pool."""
        queue = self.queue[g]
        blocked = self.bound is not None and bool(queue) and queue[0].passed >= self.bound
        if blocked and not self.fits(queue[0], g):
            return
        while not self.out[g] and len(self.running[g]) < self.slots:
            considered = queue[:1] if self.bound is None else queue
            job = next((job for job in considered if self.fits(job, g)), None)
            if job is None:
                return
            for older in queue[: queue.index(job)]:
                older.passed += 1
            queue.remove(job)
            job.admission = self.now
            self.start(job, g)

    def play(self, step_time: StepTime) -> None:
        upcoming, turn, workers = list(self.jobs), 0, range(len(self.capacity))
        while upcoming or any(self.running) or any(self.queue) or any(self.out):
            if not (any(self.running) or any(self.queue) or any(self.out)):
                self.now = max(self.now, upcoming[0].arrival)
            had_to = [self.throw_out(g) for g in workers]
            self.round = [list(jobs) for jobs in self.running]
            for g in workers:
                while (
                    not had_to[g] and self.out[g] and len(self.running[g]) < self.slots and self.fits(self.out[g][0], g)
                ):
                    job = self.out[g].pop(0)
                    job.ready = self.now + job.kv / self.rate
                    self.recomputed += job.kv
                    self.start(job, g)
            while upcoming and upcoming[0].arrival <= self.now:
                self.queue[turn % len(workers)].append(upcoming.pop(0))
                turn += 1
            self.round = [list(jobs) for jobs in self.running]
            for g in workers:
                self.admit(g)
            if not any(self.running):
                continue
            loads = [sum(j.kv for j in jobs) for jobs in self.running]
            took = step_time.of(max(map(len, self.running)), max(loads))
            for g in workers:
                for job in self.running[g]:
                    job.made += job.ready <= self.now
                    job.finish = self.now + took
            self.count_ends()
            for g in workers:
                self.running[g] = [job for job in self.running[g] if job.made < job.output]
            self.now += took


@st.composite
def memories(draw: st.DrawFn) -> tuple[Workload, Memory]:
    """Small workers in which a few requests crowd. Each prompt fits each of them, not each output."""
    count, bound = draw(st.integers(1, 20)), draw(st.sampled_from([None, None, 0, 2, 50]))
    capacity = draw(st.lists(st.integers(32, 70), min_size=1, max_size=3 if bound is None else 1))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 3.0, 200.0]), min_size=count, max_size=count))
    output = draw(st.lists(st.integers(1, 18), min_size=count, max_size=count))
    more = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    load = Workload.from_arrays(
        arrival_s=np.cumsum(gaps),
        prompt=np.array(draw(st.lists(st.integers(0, 30), min_size=count, max_size=count)), dtype=np.int64),
        output=np.array(output),
        cap=np.array(output) + np.array(more),
    )
    memory = Memory(
        capacity=capacity,
        slots=draw(st.integers(1, 5)),
        rule=draw(st.sampled_from(RULES)),
        victim=draw(st.sampled_from([*VICTIMS])),
        rate=draw(st.sampled_from([float("inf"), 64.0, 8.0])),
        bound=bound,
    )
    return load, memory


@settings(deadline=None, max_examples=400)
@given(memories(), st.sampled_from(STEPS))
def test_it_is_the_loop_by_the_book(case: tuple[Workload, Memory], step_time: StepTime) -> None:
    load, memory = case
    fitting = load.prompt + load.output <= max(memory.capacity)
    if not fitting.any():
        with pytest.raises(SimulationError, match="no request of the log"):
            run(load, memory, step_time)
        return
    kept = load.take(fitting)
    assert kept.cap is not None
    jobs = [
        Job(i, float(kept.arrival_s[i]), int(kept.prompt[i]), int(kept.output[i]), int(kept.cap[i]))
        for i in range(len(kept))
    ]
    slow = SlowFleet(
        jobs, memory.capacity, memory.slots, memory.rule, memory.victim, memory.rate, memory.bound
    )  # fmt: skip
    slow.play(step_time)
    record = run(load, memory, step_time)
    done = [job for job in jobs if job not in slow.lost]
    assert record.preempted.tolist() == [job.thrown_out for job in done]
    assert record.worker.tolist() == [job.node for job in done]
    np.testing.assert_allclose(record.admission_s, [job.admission for job in done], rtol=1e-12)
    np.testing.assert_allclose(record.finish_s, [job.finish for job in done], rtol=1e-12)
    assert record.recomputed_tokens == slow.recomputed
    assert record.rejected == len(load) - len(kept) + len(slow.lost)
    if memory.rule in ("reserve_cap", "forecast:0.5") and len(set(memory.capacity)) == 1:
        assert record.preempted.sum() == 0
