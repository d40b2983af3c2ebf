"""What is played beside the reference cluster: worked examples by hand, and laws over random fleets, losses and logs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError, SimulationError
from endcast.router.admission import admission_rule
from endcast.router.cluster import UNLIMITED, Started
from endcast.router.conditions import Conditions, KvRules
from endcast.router.engine import Run, play
from endcast.router.entries import NOTHING, PROMPT
from endcast.router.figures import figures
from endcast.router.forecasts import Oracle
from endcast.router.outages import Outage, schedule
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.prefill import Prefill, prefilled
from endcast.router.record import IDEAL, LOAD, TOKENS, RunRecord
from endcast.router.reports import LoadReports
from endcast.router.scale import StepTime, fleet_rate, offered_rate
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.speculation import DRAFT, Drafts, Speculation
from endcast.router.workload import Workload

SECOND = StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0)
PLAIN = Conditions()


def log(arrival_s: list[float], prompt: list[int], output: list[int]) -> Workload:
    return Workload.from_arrays(arrival_s=np.array(arrival_s), prompt=np.array(prompt), output=np.array(output))


def run(
    load: Workload, policy: str, slots: list[int], conditions: Conditions, *, capacity: list[int] | None = None,
    step: StepTime = SECOND, rate: float = 10.0,
) -> RunRecord:  # fmt: skip
    return play(
        load,
        POLICIES.get(policy)(PolicySettings()),
        slots=np.array(slots),
        capacity=np.full(len(slots), UNLIMITED) if capacity is None else np.array(capacity),
        step_time=step,
        forecasts=Oracle(load.output),
        rng=np.random.default_rng(1),
        kv=KvRules(recompute_rate=rate),
        conditions=conditions,
    )


# ---- unlike workers


def test_a_slower_worker_takes_longer_for_the_same_tokens() -> None:
    """10 tokens on a worker of half speed count as 20 on the others: a step takes 1 + 0.1·20 s."""
    step = StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.1)
    load = log([0.0, 0.0], [10, 10], [1, 1])
    record = run(load, "round_robin", [1, 1], Conditions(speed=(1.0, 0.5)), step=step)
    assert record.finish_s.tolist() == [3.0, 3.0]
    found = figures(record, kv_per_slot=10.0)
    assert found.efficiency == pytest.approx((1.0 + 0.1 * 20 / 1.5) / 3.0)  # 20 tokens in proportion to speed
    assert record.sums[IDEAL] == 1.5 * 20.0 and record.sums[LOAD] == 20.0
    assert found.imbalance == pytest.approx((30.0 - 20.0) / 30.0)


def test_slots_and_memory_of_each_worker_hold() -> None:
    load = log([0.0] * 4, [4, 4, 4, 4], [2, 2, 2, 2])
    record = run(load, "br_0", [3, 1], PLAIN)
    assert np.bincount(record.worker[record.admission_s == 0.0]).tolist() == [3, 1]
    record = run(load, "br_0", [3, 3], PLAIN, capacity=[100, 7])
    assert np.bincount(record.worker[record.admission_s == 0.0]).tolist() == [3, 1]


def test_what_a_small_worker_could_never_hold_is_refused_where_it_is_sent() -> None:
    """The second request goes to the worker of 6 tokens in turn, and would block its queue for ever."""
    record = run(log([0.0] * 3, [3, 9, 3], [2, 2, 2]), "round_robin", [1, 1], PLAIN, capacity=[20, 6])
    assert (record.rejected, record.prompt.tolist()) == (1, [3, 3])


def test_alike_workers_are_the_reference_cluster() -> None:
    """One number for all, one each, and speeds of 1: the same run to the last bit, and the same offered rate."""
    rng = np.random.default_rng(2)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, 200)),
        prompt=rng.integers(0, 900, 200),
        output=rng.geometric(0.05, 200),
    )
    one = SimulationSettings(workers=3, slots=4, kv_capacity=4000)
    same = replace(one, slots=(4, 4, 4), kv_capacity=(4000,) * 3, speed=(1.0, 1.0, 1.0))
    runs: list[RunRecord] = []
    for chosen in (one, same):
        simulate(load, chosen, policies=["br_0"], watch=lambda played: runs.append(played.record))
    for name in ("admission_s", "finish_s", "worker", "sums"):
        assert np.array_equal(getattr(runs[0], name), getattr(runs[1], name)), name
    step = StepTime(fixed_s=0.02, batch_s=1e-4, kv_s=1e-6)
    shared = {"utilization": 0.9, "kv_per_slot": 512.5, "output": load.output}
    each = fleet_rate(step, slots=np.full(3, 4), speed=np.ones(3), **shared)  # type: ignore[arg-type]
    assert each == offered_rate(step, workers=3, slots=4, **shared)  # type: ignore[arg-type]
    double = fleet_rate(step, slots=np.full(3, 4), speed=np.ones(3), tokens_per_step=2.0, **shared)  # type: ignore[arg-type]
    assert double == 2.0 * each


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"slots": (4, 4)}, "slots: has 2 numbers for 3 workers"),
        ({"slots": (4, 0, 4)}, "slots: must be a whole number from 1"),
        ({"kv_capacity": (1, 2, 3, 4)}, "kv_capacity: has 4 numbers"),
        ({"speed": (1.0, 2.0)}, "speed: has 2 numbers"),
        ({"speed": (1.0, 0.0, 1.0)}, "speed: must be finite numbers above 0"),
        ({"prefill_rate": 0.0}, "prefill_rate: must be a finite number above 0"),
        ({"prefill_rate": 5.0, "prefill_workers": 0}, "prefill_workers: must be a whole number"),
        ({"report_every": -1.0}, "report_every: must be a finite number"),
        ({"report_delay": float("nan")}, "report_delay: must be a finite number"),
        ({"tokens_per_step": 0.5}, "tokens_per_step: must be at least 1 and below 9"),
        ({"tokens_per_step": 9.0}, "Drafts have 8 tokens"),
        ({"lose": ("1",)}, "lose: '1' is not WORKER@SECONDS"),
        ({"lose": ("1@5-5",)}, "ends before it begins"),
        ({"lose": ("3@5",)}, "there is no worker 3: they are numbered from 0 to 2"),
        ({"lose": ("1@5", "1@9-10")}, "worker 1 is lost at 9 s while it is away"),
        ({"parameters": ("urgency",)}, "'urgency' is not of the form NAME=VALUE"),
        ({"parameters": ("urgence=1",)}, "unknown parameter 'urgence'"),
        ({"parameters": ("urgency=x",)}, "urgency: must be a number, not 'x'"),
        ({"parameters": ("candidates=1.5",)}, "candidates: must be a whole number"),
        ({"parameters": ("shed=maybe",)}, "shed: must be true or false"),
    ],
)
def test_wrong_settings_say_what_is_wrong(wrong: dict[str, object], says: str) -> None:
    with pytest.raises((InputError, Exception), match=says):
        SimulationSettings(workers=3, **wrong)  # type: ignore[arg-type]


def test_parameters_are_set_by_name() -> None:
    made = SimulationSettings(parameters=("urgency=0.7", "candidates=9", "shed=true")).for_policies()
    assert (made.olp.urgency, made.candidates, made.olp.shed) == (0.7, 9, True)


# ---- prefill


def test_prefill_is_a_queue_in_front() -> None:
    """Two prompts of 20 and 10 tokens at 10 a second: read from 0 to 2 and from 2 to 3, then decoded at once."""
    load = log([0.0, 0.0], [20, 10], [1, 1])
    record = run(load, "br_0", [2], Conditions(prefill=Prefill(rate=10.0)))
    assert record.reached_s.tolist() == [2.0, 3.0]
    assert record.prefill_s.tolist() == [2.0, 1.0]
    assert record.admission_s.tolist() == [2.0, 3.0]
    assert record.first_token_s.tolist() == [3.0, 4.0]
    found = figures(record, kv_per_slot=1.0)
    assert found.wait_s.max == 2.0  # the second one's, for the prefill worker
    assert found.ttft_s.max == found.wait_s.max + 1.0 + 1.0  # wait, prefill, first step
    two = run(load, "br_0", [2], Conditions(prefill=Prefill(rate=10.0, workers=2)))
    assert two.reached_s.tolist() == [2.0, 1.0]  # the short one passes
    assert two.arrival_s.tolist() == [0.0, 0.0] and two.prompt.tolist() == [20, 10]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 3))
def test_prefill_against_a_loop(requests: list[tuple[int, int]], workers: int) -> None:
    arrival = np.cumsum([float(gap) for gap, _ in requests])
    load = Workload.from_arrays(
        arrival_s=arrival,
        prompt=np.array([size for _, size in requests]),
        output=np.ones(len(requests), dtype=np.int64),
    )
    free, ready = [0.0] * workers, []
    for begin, (_, size) in zip(arrival.tolist(), requests, strict=True):
        g = free.index(min(free))
        free[g] = max(begin, free[g]) + size / 2.0
        ready.append(free[g])
    found = prefilled(load, Prefill(rate=2.0, workers=workers))
    assert found.workload.arrival_s.tolist() == sorted(ready)
    assert np.array(ready)[found.order].tolist() == sorted(ready)
    assert found.arrival_s.tolist() == arrival[found.order].tolist()


# ---- losses


@pytest.mark.parametrize(("text", "outage"), [("2@30", Outage(2, 30.0)), (" 0@1.5-3e1 ", Outage(0, 1.5, 30.0))])
def test_outages_are_read(text: str, outage: Outage) -> None:
    assert Outage.parse(text) == outage


def test_a_schedule_is_in_order_and_returns_come_first() -> None:
    events = schedule([Outage(1, 5.0), Outage(0, 2.0, 5.0)], 2)
    assert [(e.at_s, e.returns, e.worker, e.for_good) for e in events] == [
        (2.0, False, 0, False), (5.0, True, 0, False), (5.0, False, 1, True),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["br_0", "br_h", "least_kv"])
def test_what_a_lost_worker_ran_goes_on_elsewhere(policy: str) -> None:
    """10 tokens each. At 4 s each has made 4 of 8; the lost one prefills its 14 tokens anew, 1.4 s at 10 a second, on the
    other worker, and makes the last 4 in the steps from 6 s on."""
    load = log([0.0, 0.0], [10, 10], [8, 8])
    record = run(load, policy, [2, 2], Conditions(outages=(Outage(0, 4.0),)))
    lost = int(np.argmax(record.requeued))
    assert record.requeued.sum() == 1 and record.rejected == 0
    assert (record.finish_s[1 - lost], record.finish_s[lost]) == (8.0, 10.0)
    assert record.recomputed_tokens == 14
    assert record.worker.tolist() == [1, 1]
    assert record.admission_s.tolist() == [0.0, 0.0] and record.first_token_s.tolist() == [1.0, 1.0]


def test_lost_requests_are_placed_before_those_that_wait() -> None:
    """Two of 8 tokens run, one is lost after 2. The slot that is left frees at 8: it makes its last 6 there, until 14."""
    load = log([0.0, 0.0, 1.0], [10, 10, 1], [8, 8, 3])
    record = run(load, "br_0", [1, 1], Conditions(outages=(Outage(1, 2.0),)), rate=np.inf)
    assert record.admission_step.tolist() == [0, 0, 14]
    assert sorted(record.finish_s.tolist()) == [8.0, 14.0, 17.0]


def test_a_fleet_without_workers_waits_for_one_to_return() -> None:
    load = log([0.0, 3.0], [10, 10], [4, 2])
    record = run(load, "br_0", [2], Conditions(outages=(Outage(0, 2.0, 50.0),)), rate=np.inf)
    assert record.finish_s.tolist() == [52.0, 52.0]
    with pytest.raises(SimulationError, match="all workers are lost for good at 2 s, and 1 requests wait"):
        run(load, "br_0", [2], Conditions(outages=(Outage(0, 2.0),)))


def test_what_fits_no_worker_that_is_left_is_refused() -> None:
    """The large worker is lost for good: 30 + 5 tokens fit nowhere any more, whether they ran, wait or are to come."""
    load = log([0.0, 0.0, 0.0, 9.0], [30, 5, 30, 30], [5, 9, 5, 5])
    record = run(load, "br_0", [1, 1], Conditions(outages=(Outage(0, 2.0),)), capacity=[40, 20])
    assert (record.rejected, record.prompt.tolist()) == (3, [5])
    back = run(load, "br_0", [1, 1], Conditions(outages=(Outage(0, 2.0, 60.0),)), capacity=[40, 20])
    assert back.rejected == 0 and len(back.prompt) == 4


# ---- late reports


def test_policies_see_the_last_report() -> None:
    """The report at 10 s shows one request on one of two workers. Without its own counts the router sends all five that
    follow to the other one; with them it sends two and three, as it does when it sees queues as they are."""
    load = log([0.0, 11.0, 12.0, 13.0, 14.0, 15.0], [1] * 6, [40] * 6)

    def spread(reports: LoadReports) -> int:
        record = run(load, "join_shortest_queue", [8, 8], Conditions(reports=reports))
        return int(np.ptp(np.bincount(record.worker, minlength=2)))

    assert spread(LoadReports()) == 0
    assert spread(LoadReports(every_s=10.0)) == 0
    assert spread(LoadReports(every_s=10.0, own=False)) == 4
    assert spread(LoadReports(every_s=4.0, delay_s=6.5, own=False)) == 4  # made at 8 s
    assert spread(LoadReports(delay_s=100.0)) == 0  # no report yet: what it sent is all it knows


def test_reports_of_every_step_without_delay_are_the_truth() -> None:
    rng = np.random.default_rng(5)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(0.4, 150)), prompt=rng.integers(0, 90, 150), output=rng.geometric(0.1, 150)
    )
    for policy in ("least_kv", "vllm_dp"):
        true = run(load, policy, [4, 4, 4], PLAIN)
        fine = run(load, policy, [4, 4, 4], Conditions(reports=LoadReports(every_s=1e-6)))
        assert true.worker.tolist() == fine.worker.tolist()
        late = run(load, policy, [4, 4, 4], Conditions(reports=LoadReports(every_s=20.0, own=False)))
        assert late.finish_s.mean() > true.finish_s.mean()


def test_central_policies_hold_the_truth_themselves() -> None:
    load = log([0.0, 0.0, 1.0], [5, 6, 7], [9, 9, 9])
    reports = Conditions(reports=LoadReports(every_s=50.0, delay_s=50.0, own=False))
    assert run(load, "br_0", [2, 2], reports).finish_s.tolist() == run(load, "br_0", [2, 2], PLAIN).finish_s.tolist()


# ---- several tokens a step


@given(st.floats(1.0, DRAFT + 0.99))
def test_acceptance_gives_the_mean(mean: float) -> None:
    acceptance = Speculation(mean).acceptance
    assert sum(acceptance**i for i in range(DRAFT + 1)) == pytest.approx(mean, abs=1e-9)


def test_draws_have_the_mean_and_leave_the_policys_numbers_alone() -> None:
    from endcast.router.slots import Slots

    rng, plain = np.random.default_rng(3), np.random.default_rng(3)
    slots = Slots(np.array([2000]))
    drafts = Drafts(Speculation(2.4), 2000, rng)
    far = np.full(1, UNLIMITED)
    drawn = np.concatenate([drafts.draw(slots, slots.generated, far).copy() for _ in range(20)])
    assert drawn.min() == 1 and drawn.max() == 1 + DRAFT
    assert drawn.mean() == pytest.approx(2.4, abs=5 * drawn.std() / np.sqrt(len(drawn)))
    assert rng.random() == plain.random()


def test_lengths_stay_exact_and_steps_fall() -> None:
    rng = np.random.default_rng(6)
    load = Workload.from_arrays(arrival_s=np.zeros(60), prompt=rng.integers(0, 50, 60), output=rng.integers(1, 60, 60))
    one, many = (run(load, "br_0", [60], Conditions(speculation=Speculation(m))) for m in (1.0, 3.0))
    assert many.finish_s.max() < one.finish_s.max() / 2.0
    assert np.all(many.finish_s <= one.finish_s)
    every = run(load, "br_0", [8, 8], Conditions(speculation=Speculation(3.0)), capacity=[400, 400])
    assert len(every.finish_s) == 60 and every.rejected == 0


def test_windows_of_several_tokens_a_step_reach_as_far_in_steps() -> None:
    made = SimulationSettings(horizon=20, discount=0.81, tokens_per_step=2.0).for_policies()
    assert made.horizon == 40 and made.discount == pytest.approx(0.9)


# ---- laws


class Counted(Run):
    """Counts everything anew in each step, beside what is kept up to date."""

    def _decode(self, started: Started) -> None:
        super()._decode(started)
        slots = self.state.slots
        taken = slots.request != NOTHING
        request = slots.request[taken]
        assert len(set(request.tolist())) == len(request), "a request runs twice"
        made = self.journal.made[request] + slots.generated[taken]
        assert np.all(made + self.left[taken] + self.tokens[taken] == self.workload.output[request])
        assert np.all(slots.entries[PROMPT, taken] == self.workload.prompt[request] + self.journal.made[request])
        held = slots.entries[PROMPT] + slots.generated
        assert slots.load.tolist() == np.bincount(slots.worker[taken], held[taken], len(slots.load)).tolist()
        assert np.all(
            slots.load + np.bincount(slots.worker, self.tokens * taken, len(slots.load)) <= self.state.capacity
        )
        assert slots.active.tolist() == np.bincount(slots.worker[taken], minlength=len(slots.load)).tolist()
        assert not slots.active[~self.state.accepting].any(), "something runs on a worker that is lost"
        out = int(self.state.preempted.count.sum() + self.state.queues.count.sum())
        assert len(request) - len(self.ended) + len(self.state.pool) + out == self.arrived - self.finished
        assert self.steps < 20_000, "no end in sight"


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Workload, list[int], list[int], Conditions]:
    count, workers = draw(st.integers(1, 25)), draw(st.integers(1, 3))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 3.0, 40.0]), min_size=count, max_size=count))
    load = Workload.from_arrays(
        arrival_s=np.cumsum(gaps),
        prompt=np.array(draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))),
        output=np.array(draw(st.lists(st.integers(1, 25), min_size=count, max_size=count))),
    )
    each = st.lists(st.integers(1, 4), min_size=workers, max_size=workers)
    memory = st.lists(st.sampled_from([60, 90, UNLIMITED]), min_size=workers, max_size=workers)
    outages = []
    for g in range(workers):
        at = draw(st.one_of(st.none(), st.sampled_from([0.0, 1.0, 5.5, 20.0, 45.0])))
        if at is not None:
            outages.append(
                Outage(g, at, None if g > 0 and draw(st.booleans()) else at + draw(st.sampled_from([0.5, 7.0, 60.0])))
            )
    conditions = Conditions(
        speed=tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=workers, max_size=workers))),
        prefill=draw(st.sampled_from([None, Prefill(rate=10.0), Prefill(rate=50.0, workers=2)])),
        outages=tuple(outages),
        reports=draw(st.sampled_from([LoadReports(), LoadReports(every_s=3.0, delay_s=1.0, own=False)])),
        speculation=Speculation(draw(st.sampled_from([1.0, 1.0, 2.5]))),
    )
    return load, draw(each), draw(memory), conditions


@settings(deadline=None, max_examples=60)
@given(fleets(), st.sampled_from(["round_robin", "least_kv", "br_0", "br_h"]), st.sampled_from([*VICTIMS]))
def test_nothing_is_lost_whatever_happens(
    case: tuple[Workload, list[int], list[int], Conditions], policy: str, victim: str
) -> None:
    """Every request is served in full or counted as rejected, every token is made once, and runs end."""
    load, slots, capacity, conditions = case

    def played() -> RunRecord:
        return Counted(
            load, POLICIES.get(policy)(PolicySettings(horizon=5)), np.array(slots), np.array(capacity),
            StepTime(fixed_s=0.5, batch_s=0.0, kv_s=0.01), Oracle(load.output), np.random.default_rng(0),
            KvRules(admission=admission_rule("optimistic:0"), victim=VICTIMS.get(victim), recompute_rate=40.0), conditions,
        ).to_the_end(None, rejected=0)  # fmt: skip

    record = played()
    assert len(record.prompt) + record.rejected == len(load)
    assert np.all(record.reached_s >= record.arrival_s + record.prefill_s - 1e-9)
    assert np.all(record.admission_s >= record.reached_s - 1e-9)
    assert np.all(record.first_token_s > record.admission_s) and np.all(record.finish_s >= record.first_token_s)
    if record.rejected == 0:
        assert record.output.tolist() == load.output.tolist()
        assert record.sums[TOKENS] <= load.output.sum()
    if not conditions.outages:
        assert record.requeued.sum() == 0
    again = played()
    assert again.finish_s.tolist() == record.finish_s.tolist() and again.worker.tolist() == record.worker.tolist()
