"""The reference decode cluster: one policy plays one workload, step by step, until everything has been served.

At the start of a step at time t, running requests get new forecasts where some are due, and requests that have arrived
by t enter the pool; with immediate dispatch each goes on to a worker's own queue. Free slots are filled. The step lasts
as long as its heaviest worker needs, every active request gains one token, and those that have all of theirs finish at
its end. While nothing is there to do, time jumps to the next arrival.

Where KV memory is bounded, a worker that could not hold this step's growth first throws requests out, and what was thrown
out earlier goes on where it fits (``endcast.router.preemption``). A request that goes on holds its slot and its KV while
they are prefilled anew, and gains no token until then.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from endcast.errors import InputError, SimulationError
from endcast.router.admission.optimistic import Optimistic
from endcast.router.admission.rule import AdmissionRule
from endcast.router.cluster import UNLIMITED, ClusterState, Started
from endcast.router.entries import NOTHING, PROMPT, REQUEST
from endcast.router.forecasts import ForecastSource
from endcast.router.policy import Decisions, Policy
from endcast.router.preemption import VictimRule, newest, overflowing, victims
from endcast.router.scale import StepTime
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, FloatArray, IntArray, SurvivalBatch

#: Steps between two calls of ``progress``.
_PROGRESS_STEPS = 2000

#: Sums over the steps that start by the last arrival:
#: their number, their seconds, when the last of them ended, the seconds that perfect balance of the same batches would
#: have needed, M(k), Σ_g L_g(k), and tokens (as many as slots were busy).
STEPS, STEP_S, END_S, BALANCED_S, HEAVIEST, LOAD, TOKENS = range(7)
SUMS = 7


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What happened in one run. Over the n requests served, in order of arrival: tokens, times in seconds, steps, and
    the worker that served each.

    ``sums`` (7,) over the steps that start by the last arrival, indexed by this module's constants; ``decision_ns``
    CPU time of each routing round, from the step's events to the slots filled; ``preempted`` how often each was thrown out.
    """

    prompt: IntArray
    output: IntArray
    worker: IntArray
    arrival_s: FloatArray
    admission_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    admission_step: IntArray
    sums: FloatArray
    decision_ns: IntArray
    steps: int
    rejected: int  #: requests refused: larger than any worker or, later on, than theirs; or shed by the policy
    preempted: IntArray
    recomputed_tokens: int  #: prefilled anew when requests that had been thrown out went on


@dataclass(frozen=True, kw_only=True)
class KvRules:
    """What holds where KV memory is bounded: when requests may start, which ones go when it runs out, and how many
    tokens a second, > 0, are prefilled anew when one goes on."""

    admission: AdmissionRule = field(default_factory=lambda: Optimistic(0.0))
    victim: VictimRule = newest
    recompute_rate: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.recompute_rate > 0.0:
            raise InputError(
                "recompute_rate", f"must be a number of tokens a second above 0, not {self.recompute_rate}"
            )


def play(
    workload: Workload,
    policy: Policy,
    *,
    slots: IntArray,
    capacity: IntArray,
    step_time: StepTime,
    forecasts: ForecastSource | None,
    rng: np.random.Generator,
    kv: KvRules | None = None,
    progress: Callable[[int], None] | None = None,
) -> RunRecord:
    """Serve the workload with one policy; ``progress`` is told the number of requests served so far.

    A request whose prompt and output exceed every worker's ``capacity`` is refused. ``SimulationError`` if the policy
    starts nothing although nothing runs.
    """
    oversized = workload.oversized(int(capacity.max()))
    run = _Run(workload.take(~oversized), policy, slots, capacity, step_time, forecasts, rng, kv or KvRules())
    return run.to_the_end(progress, rejected=int(oversized.sum()))


class _Run:
    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        slots: IntArray,
        capacity: IntArray,
        step_time: StepTime,
        forecasts: ForecastSource | None,
        rng: np.random.Generator,
        kv: KvRules | None = None,
    ) -> None:
        self.workload, self.policy, self.rng, self.kv = workload, policy, rng, kv or KvRules()
        rule, bounded = self.kv.admission, int(capacity.min()) < UNLIMITED
        looks = policy.needs_forecast or (bounded and rule.needs_forecast)
        if looks and forecasts is None:
            raise SimulationError("the policy or the admission rule needs forecasts and was given none")
        if bounded and rule.needs_cap:
            check_caps(workload)
        self.source = forecasts if looks else None
        shared = None if self.source is None else self.source.shared
        self.state = ClusterState(slots=slots, capacity=capacity, policy=policy, curves=shared, admission=rule)
        self.step_time = np.array([step_time.fixed_s, step_time.batch_s, step_time.kv_s])
        count, total = len(workload), len(self.state.slots)
        self.left = np.zeros(total, dtype=np.int64)
        self.tokens = np.ones(total, dtype=np.int64)
        self.ready_s = np.zeros(total)  # until then a slot prefills anew
        self.preempted, self.recomputed_tokens = np.zeros(count, dtype=np.int64), 0
        self.ended = np.zeros(0, dtype=np.int64)
        self.admission_s, self.first_token_s, self.finish_s = (np.full(count, np.nan) for _ in range(3))
        self.admission_step, self.worker = (np.full(count, NOTHING, dtype=np.int64) for _ in range(2))
        self.sums = np.zeros(SUMS)
        self.decision_ns = array("q")
        self.arrived = self.finished = self.refused = self.running = self.steps = 0
        self.now, self.last_arrival_s = 0.0, float(workload.arrival_s[-1])

    def to_the_end(self, progress: Callable[[int], None] | None, rejected: int) -> RunRecord:
        count = len(self.workload)
        while self.finished < count:
            if self.arrived == self.finished:
                self.now = max(self.now, float(self.workload.arrival_s[self.arrived]))
            started = self._route(self._arrivals())
            if self.running > 0 or len(started.request) > 0 or self.arrived > self.finished:
                self._decode(started)
            if progress is not None and self.steps % _PROGRESS_STEPS == 0:
                progress(self.finished)
        if progress is not None:
            progress(count)
        served = np.isfinite(self.finish_s) if self.refused else slice(None)
        return RunRecord(
            prompt=self.workload.prompt[served],
            output=self.workload.output[served],
            worker=self.worker[served],
            arrival_s=self.workload.arrival_s[served],
            admission_s=self.admission_s[served],
            first_token_s=self.first_token_s[served],
            finish_s=self.finish_s[served],
            admission_step=self.admission_step[served],
            sums=self.sums,
            decision_ns=np.array(self.decision_ns, dtype=np.int64),
            steps=self.steps,
            rejected=rejected + self.refused,
            preempted=self.preempted[served],
            recomputed_tokens=self.recomputed_tokens,
        )

    def _arrivals(self) -> tuple[slice, SurvivalBatch | None]:
        """Those that have arrived by now, and their forecasts."""
        times, first = self.workload.arrival_s, self.arrived
        if first < len(times) and times[first] <= self.now:
            self.arrived = int(np.searchsorted(times, self.now, side="right"))
        new = slice(first, self.arrived)
        if self.source is None or new.start == new.stop:
            return new, None
        rows = self.workload.row[new]
        return new, self.source.curves(rows, np.zeros_like(rows))

    def _route(self, arrivals: tuple[slice, SurvivalBatch | None]) -> Started:
        """From the last step's events to free slots filled: what a router does, timed as such."""
        new, forecasts = arrivals
        state, policy, began = self.state, self.policy, time.thread_time_ns()
        if self.steps > 0:
            state.stepped(self.tokens, self.ended)
            began += self._make_room()
            began += self._refresh()
        if new.start < new.stop:
            self._enter(new, forecasts)
        decides = len(state.pool) > 0 and (policy.immediate_dispatch or self.running < len(state.slots))
        started = state.apply(policy.decide(state.view(self.now), self.rng) if decides else _NOTHING_DECIDED)
        if decides:
            self.decision_ns.append(time.thread_time_ns() - began)
        self.refused += len(started.refused)
        self.finished += len(started.refused)
        return started

    def _make_room(self) -> int:
        """What engines do whose KV memory is bounded, before anything starts; CPU nanoseconds that it took to play it."""
        state = self.state
        if not state.bounded:
            return 0
        began = time.thread_time_ns()
        growth = (self.ready_s <= self.now).astype(np.int64)
        full = np.zeros(len(state.capacity), dtype=np.bool_)
        if overflowing(state.slots, growth, state.capacity):
            slots = victims(state.slots, growth, state.capacity, self.kv.victim)
            full[state.slots.worker[slots]] = True
            self.preempted[state.slots.request[slots]] += 1
            self.ready_s[slots] = 0.0
            lost = state.preempt(slots)
            full &= state.slots.active > 0  # all that ran there may have been given up
            self.running -= len(slots)
            self.refused, self.finished = self.refused + len(lost), self.finished + len(lost)
        waiting = np.flatnonzero((state.preempted.count > 0) & ~full)
        if len(waiting) > 0:
            self._resume(state.resume(waiting))
        return time.thread_time_ns() - began

    def _resume(self, slots: IntArray) -> None:
        running = self.state.slots
        tokens = running.entries[PROMPT, slots] + running.generated[slots]
        self.ready_s[slots] = self.now + tokens / self.kv.recompute_rate
        self.left[slots] = self.workload.output[running.request[slots]] - running.generated[slots]
        self.recomputed_tokens += int(tokens.sum())
        self.running += len(slots)

    def _refresh(self) -> int:
        """Take in news of what runs, where the source has some; CPU nanoseconds that the source took to make it."""
        if self.source is None or self.source.refresh_every is None:
            return 0
        slots = self.state.slots.reached(self.tokens, self.source.refresh_every)
        if len(slots) == 0:
            return 0
        asked = time.thread_time_ns()
        rows = self.workload.row[self.state.slots.request[slots]]
        forecasts = self.source.curves(rows, self.state.slots.generated[slots])
        took = time.thread_time_ns() - asked
        self.state.news(slots, forecasts)
        return took

    def _enter(self, new: slice, forecasts: SurvivalBatch | None) -> None:
        load = self.workload
        self.state.arrive(
            np.arange(new.start, new.stop),
            load.prompt[new],
            load.arrival_s[new],
            supposed=load.supposed[new],
            tenant=None if load.tenant is None else load.tenant[new],
            weight=None if load.weight is None else load.weight[new],
            max_tokens=None if load.cap is None else load.cap[new],
            forecasts=forecasts,
            prefix_blocks=load.prefix_blocks[new],
        )

    def _decode(self, started: Started) -> None:
        """One step of all workers: the truth, which the router does not see."""
        state = self.state
        self.running += len(started.request)
        if self.running == 0:
            raise SimulationError(
                f"the policy starts none of the {self.arrived - self.finished} requests that wait, and nothing runs",
                hint="Something must run if anything can: this is a fault of the policy",
            )
        self.left[started.slot] = self.workload.output[started.request]
        self.admission_s[started.request] = self.now
        self.admission_step[started.request] = self.steps
        self.worker[started.request] = state.slots.worker[started.slot]
        step_s, self.ended = decode_step(
            state.slots.entries, state.slots.active, state.slots.load, self.left, self.finish_s, self.ready_s,
            self.tokens, self.now, self.step_time, self.now <= self.last_arrival_s, self.sums,
        )  # fmt: skip
        self.first_token_s[started.request] = self.now + step_s
        self.now += step_s
        self.steps += 1
        self.running -= len(self.ended)
        self.finished += len(self.ended)


def check_caps(workload: Workload) -> None:
    """``SimulationError`` unless every request has its own cap on output tokens."""
    without = len(workload) if workload.cap is None else int(np.sum(workload.cap >= NO_CAP // 2))
    if without:
        raise SimulationError(
            f"reserve_cap needs each request's own cap, and {without} of {len(workload)} requests have none",
            hint="Say how many output tokens to reserve for these, such as reserve_cap:2048",
        )


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING_DECIDED = Decisions(_NONE, _NONE)


@njit(cache=True)
def decode_step(
    entries: IntArray, active: IntArray, load: IntArray, left: IntArray, finish_s: FloatArray, ready_s: FloatArray,
    tokens: IntArray, now: float, step_time: FloatArray, counted: bool, sums: FloatArray,
) -> tuple[float, IntArray]:  # fmt: skip
    """Seconds that this step takes and the slots (k,) whose requests end with it.

    ``left`` (S,) tokens that each slot still has to make, lowered by the ``tokens`` (S,) that it makes: one, or none
    before ``ready_s`` (S,); ``finish_s`` (n,) and ``sums`` are added to.
    """
    workers, batch, heaviest, total, running = active.shape[0], 0, 0, 0, 0
    for g in range(workers):
        batch, heaviest = max(batch, active[g]), max(heaviest, load[g])
        total, running = total + load[g], running + active[g]
    base = step_time[0] + step_time[1] * batch
    step_s = base + step_time[2] * heaviest
    if counted:
        sums[STEPS] += 1
        sums[STEP_S] += step_s
        sums[END_S] = now + step_s
        sums[BALANCED_S] += base + step_time[2] * total / workers
        sums[HEAVIEST] += heaviest
        sums[LOAD] += total
    ended, count, made = np.empty(running, dtype=np.int64), 0, 0
    for slot in range(left.shape[0]):
        tokens[slot] = 1 if ready_s[slot] <= now else 0
        if entries[REQUEST, slot] != NOTHING and tokens[slot] > 0:
            made += 1
            left[slot] -= 1
            if left[slot] == 0:
                finish_s[entries[REQUEST, slot]] = now + step_s
                ended[count] = slot
                count += 1
    if counted:
        sums[TOKENS] += made
    return step_s, ended[:count].copy()
