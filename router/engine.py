"""The reference decode cluster: one policy plays one workload, step by step, until everything has been served.

At the start of a step at time t, running requests get new forecasts where some are due, and requests that have arrived
by t enter the pool; with immediate dispatch each goes on to a worker's own queue. Free slots are filled. The step lasts
as long as its heaviest worker needs, every active request gains a token, and those that have all of theirs finish at
its end. While nothing is there to do, time jumps to what happens next.

Where KV memory is bounded, a worker that could not hold this step's growth first throws requests out, and what was thrown
out earlier goes on where it fits (``endcast.router.preemption``). A request that goes on holds its slot and its KV while
they are prefilled anew, and gains no token until then. So does one that comes from a worker that was lost: it waits in
front of all others, and what it had generated counts as part of its prompt from then on.

``Conditions`` says what else is played: a prefill stage, late reports, steps of several tokens.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

import numpy as np

from endcast.errors import SimulationError
from endcast.router.cluster import UNLIMITED, ClusterState, Started
from endcast.router.conditions import Conditions, KvRules
from endcast.router.decode import decode_step
from endcast.router.entries import PROMPT
from endcast.router.forecasts import ForecastSource
from endcast.router.journal import Journal
from endcast.router.outages import Event, schedule
from endcast.router.policy import BoolArray, Decisions, Policy
from endcast.router.preemption import overflowing, victims
from endcast.router.prefill import Prefilled, prefilled
from endcast.router.record import RunRecord
from endcast.router.reports import LateView
from endcast.router.scale import StepTime
from endcast.router.speculation import Drafts
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, IntArray, SurvivalBatch

__all__ = ["KvRules", "Run", "RunRecord", "check_caps", "play"]

#: Steps between two calls of ``progress``.
_PROGRESS_STEPS = 2000


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
    conditions: Conditions | None = None,
    progress: Callable[[int], None] | None = None,
) -> RunRecord:
    """Serve the workload with one policy; ``progress`` is told the number of requests served so far.

    A request whose prompt and output exceed every worker's ``capacity`` is refused. ``SimulationError`` if the policy
    starts nothing although nothing runs.
    """
    oversized = workload.oversized(int(capacity.max()))
    kept = workload.take(~oversized)
    run = Run(kept, policy, slots, capacity, step_time, forecasts, rng, kv, conditions)
    return run.to_the_end(progress, rejected=int(oversized.sum()))


class Run:
    """One run, as far as it has come."""

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
        conditions: Conditions | None = None,
    ) -> None:
        self.policy, self.rng, self.kv = policy, rng, kv or KvRules()
        conditions = conditions or Conditions()
        rule, bounded = self.kv.admission, int(capacity.min()) < UNLIMITED
        looks = policy.needs_forecast or (bounded and rule.needs_forecast)
        if looks and forecasts is None:
            raise SimulationError("the policy or the admission rule needs forecasts and was given none")
        if bounded and rule.needs_cap:
            check_caps(workload)
        self.source = forecasts if looks else None
        shared = None if self.source is None else self.source.shared
        speed = np.ones(len(slots)) if conditions.speed is None else np.array(conditions.speed, dtype=np.float64)
        self.state = ClusterState(
            slots=slots, capacity=capacity, policy=policy, curves=shared, admission=rule, speed=speed
        )
        self.power = float(speed.sum())
        self.step_time = np.array([step_time.fixed_s, step_time.batch_s, step_time.kv_s])
        total = len(self.state.slots)
        self.left, self.tokens = np.zeros(total, dtype=np.int64), np.ones(total, dtype=np.int64)
        self.ready_s = np.zeros(total)  # until then a slot prefills anew
        self.ended = np.zeros(0, dtype=np.int64)
        self.drafts = Drafts(conditions.speculation, total, rng)
        late = policy.immediate_dispatch and not conditions.reports.instant
        self.late = LateView(conditions.reports, slots, capacity) if late else None
        self.events: list[Event] = list(schedule(conditions.outages, len(slots)))
        self.most = self.largest = int(capacity.max())  # of all workers, and of those that are there or come back
        self.staged: Prefilled = prefilled(workload, conditions.prefill)
        self.workload = self.staged.workload
        self.last_arrival_s = float(self.workload.arrival_s[-1])
        self.journal = Journal(len(workload))
        self.decision_ns = array("q")
        self.arrived = self.finished = self.refused = self.running = self.steps = 0
        self.stepped, self.now = False, 0.0

    def to_the_end(self, progress: Callable[[int], None] | None, rejected: int) -> RunRecord:
        """Play until everything has been served; ``rejected`` requests were refused before."""
        count = len(self.workload)
        while self.finished < count:
            if self.arrived == self.finished:
                self.now = max(self.now, float(self.workload.arrival_s[self.arrived]))
            started = self._route(self._arrivals())
            if self.running > 0 or len(started.request) > 0:
                self._decode(started)
            elif self.arrived > self.finished:
                self._wait_for_a_worker()
            if progress is not None and self.steps % _PROGRESS_STEPS == 0:
                progress(self.finished)
        if progress is not None:
            progress(count)
        return self.journal.record(
            self.staged, self.decision_ns, steps=self.steps, rejected=rejected + self.refused, refused=self.refused
        )

    def _wait_for_a_worker(self) -> None:
        """Nothing runs, and nothing that waits can start: whatever changes that is a worker that comes back."""
        waiting = self.arrived - self.finished
        if self.events:
            upcoming = self.workload.arrival_s[self.arrived : self.arrived + 1]
            self.now = max(self.now, min([self.events[0].at_s, *upcoming]))
        elif not self.state.accepting.any():
            raise SimulationError(
                f"all workers are lost for good at {self.now:g} s, and {waiting} requests wait",
                hint="Let one of them stay, or come back: --lose WORKER@SECONDS-SECONDS",
            )
        else:
            raise SimulationError(
                f"the policy starts none of the {waiting} requests that wait, and nothing runs",
                hint="Something must run if anything can: this is a fault of the policy",
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
        if self.stepped:
            self.stepped = False
            state.stepped(self.tokens, self.ended)
            began += self._lose_and_return()
            began += self._make_room()
            began += self._refresh()
        elif self.events:
            began += self._lose_and_return()
        if new.start < new.stop:
            self._enter(np.arange(new.start, new.stop), forecasts)
        if self.late is not None and self.late.due(self.now):
            self.late.report(state.view(self.now))
        decides = len(state.pool) > 0 and (policy.immediate_dispatch or self.running < len(state.slots))
        started = state.apply(self._decide() if decides else _NOTHING_DECIDED)
        if decides:
            self.decision_ns.append(time.thread_time_ns() - began)
        self._count_refused(len(started.refused))
        return started

    def _decide(self) -> Decisions:
        view = self.state.view(self.now)
        if self.late is None:
            return self.policy.decide(view, self.rng)
        decided = self.policy.decide(self.late.see(view), self.rng)
        self.late.sent(view, decided)
        return decided

    def _count_refused(self, count: int) -> None:
        self.refused += count
        self.finished += count

    def _lose_and_return(self) -> int:
        """Workers go and come as scheduled; CPU nanoseconds that it took to play it."""
        if not self.events or self.events[0].at_s > self.now:
            return 0
        began = time.thread_time_ns()
        while self.events and self.events[0].at_s <= self.now:
            event = self.events.pop(0)
            if event.returns:
                self.state.accept(event.worker, True)
            else:
                self._lose(event.worker)
        there = self.state.accepting.copy()
        self.power = float(self.state.speed[there].sum())
        there[[later.worker for later in self.events if later.returns]] = True
        self.largest = int(self.state.capacity[there].max()) if there.any() else UNLIMITED
        self._refuse_oversized()
        return time.thread_time_ns() - began

    def _lose(self, worker: int) -> None:
        """What was there goes back, in front of what waits; what had started is prefilled anew."""
        self.running -= int(self.state.slots.active[worker])
        self.ready_s[self.state.slots.worker == worker] = 0.0
        lost = self.state.lose(worker)
        if len(lost.request) == 0:
            return
        order = np.argsort(lost.request)
        request = lost.request[order]
        self.journal.lose(request, lost.generated[order], lost.started[order])
        made = self.journal.made[request]
        forecasts = None if self.source is None else self.source.curves(self.workload.row[request], made)
        self._enter(request, forecasts, front=True)

    def _refuse_oversized(self) -> None:
        """What fits no worker any more, now that some are gone for good."""
        if self.largest >= self.most:
            return
        waiting = self.state.view(self.now).waiting
        whole = self.workload.prompt[waiting] + self.workload.output[waiting]
        self._count_refused(len(self.state.withdrawn(np.flatnonzero(whole > self.largest))))

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
            self.journal.preempted[state.slots.request[slots]] += 1
            self.ready_s[slots] = 0.0
            lost = state.preempt(slots)
            full &= state.slots.active > 0  # all that ran there may have been given up
            self.running -= len(slots)
            self._count_refused(len(lost))
        waiting = np.flatnonzero((state.preempted.count > 0) & ~full)
        if len(waiting) > 0:
            resumed = state.resume(waiting)
            self._begin(resumed, anew=np.ones(len(resumed), dtype=np.bool_))
        return time.thread_time_ns() - began

    def _begin(self, slots: IntArray, *, anew: BoolArray) -> None:
        """Requests start in ``slots`` (k,) or go on there, those ``anew`` (k,) after their KV has been prefilled again."""
        running = self.state.slots
        request, generated = running.request[slots], running.generated[slots]
        self.left[slots] = self.workload.output[request] - self.journal.made[request] - generated
        self.running += len(slots)
        again = slots[anew]
        if len(again) > 0:
            tokens = running.entries[PROMPT, again] + running.generated[again]
            self.ready_s[again] = self.now + tokens / self.kv.recompute_rate
            self.journal.recomputed_tokens += int(tokens.sum())

    def _refresh(self) -> int:
        """Take in news of what runs, where the source has some; CPU nanoseconds that the source took to make it."""
        if self.source is None or self.source.refresh_every is None:
            return 0
        slots = self.state.slots.reached(self.tokens, self.source.refresh_every)
        if len(slots) == 0:
            return 0
        asked = time.thread_time_ns()
        request = self.state.slots.request[slots]
        generated = self.journal.made[request] + self.state.slots.generated[slots]
        forecasts = self.source.curves(self.workload.row[request], generated)
        took = time.thread_time_ns() - asked
        self.state.news(slots, forecasts)
        return took

    def _enter(self, new: IntArray, forecasts: SurvivalBatch | None, *, front: bool = False) -> None:
        load, made = self.workload, self.journal.made[new]
        self.state.arrive(
            new,
            load.prompt[new] + made,
            load.arrival_s[new],
            supposed=load.supposed[new],
            tenant=None if load.tenant is None else load.tenant[new],
            weight=None if load.weight is None else load.weight[new],
            max_tokens=None if load.cap is None else np.where(load.cap[new] < NO_CAP, load.cap[new] - made, NO_CAP),
            forecasts=forecasts,
            prefix_blocks=[load.prefix_blocks[i] for i in new] if load.prefix_blocks else None,
            front=front,
        )
        if not front:
            self._refuse_oversized()

    def _decode(self, started: Started) -> None:
        """One step of all workers: the truth, which the router does not see."""
        state, journal = self.state, self.journal
        if len(started.slot) > 0:
            self._begin(started.slot, anew=journal.anew[started.request])
        fresh = journal.start(started.request, state.slots.worker[started.slot], self.now, self.steps)
        drawn = self.drafts.draw(state.slots, self.left, state.capacity)
        step_s, self.ended = decode_step(
            state.slots.entries, state.slots.active, state.slots.load, state.speed, self.power, drawn, self.left,
            journal.finish_s, self.ready_s, self.tokens, self.now, self.step_time, self.now <= self.last_arrival_s,
            journal.sums,
        )  # fmt: skip
        journal.first_token_s[fresh] = self.now + step_s
        self.now += step_s
        self.steps += 1
        self.stepped = True
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
