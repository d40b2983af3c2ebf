"""Bounded KV memory: preemption against a loop in plain Python, worked examples, and laws that hold for every run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError, SimulationError, UnknownNameError
from endcast.router.admission import admission_rule
from endcast.router.cluster import UNLIMITED
from endcast.router.engine import KvRules, RunRecord, play
from endcast.router.figures import figures
from endcast.router.forecasts import Oracle
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.scale import StepTime
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.workload import Workload

STEP = StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0)


def run(
    load: Workload, policy: str, capacity: list[int], *, slots: int = 4, rule: str = "optimistic:0",
    victim: str = "newest", rate: float = float("inf"), step: StepTime = STEP, candidates: int = 64, max_overtakes: int = 100,
) -> RunRecord:  # fmt: skip
    return play(
        load,
        POLICIES.get(policy)(PolicySettings(candidates=candidates, max_overtakes=max_overtakes)),
        slots=np.full(len(capacity), slots),
        capacity=np.array(capacity),
        step_time=step,
        forecasts=Oracle(load.output),
        rng=np.random.default_rng(1),
        kv=KvRules(admission=admission_rule(rule), victim=VICTIMS.get(victim), recompute_rate=rate),
    )


def at_once(prompt: list[int], output: list[int], cap: list[int] | None = None) -> Workload:
    return Workload.from_arrays(
        arrival_s=np.zeros(len(prompt)),
        prompt=np.array(prompt),
        output=np.array(output),
        cap=None if cap is None else np.array(cap),
    )


# ---- worked examples


@pytest.mark.parametrize(
    ("victim", "finish", "recomputed"),
    [("newest", [20.0, 29.0], 51), ("smallest_kv", [20.0, 29.0], 51)],
)
def test_two_that_outgrow_their_worker(victim: str, finish: list[float], recomputed: int) -> None:
    """40 + 40 of 102 tokens. After 11 steps they hold 51 each and cannot grow: one is thrown out, prefills its 51 tokens
    anew when the other has ended after 20, and makes the 9 that it still lacks."""
    record = run(at_once([40, 40], [20, 20]), "round_robin", [102], victim=victim)
    assert sorted(record.finish_s.tolist()) == finish
    assert record.preempted.tolist() == [0, 1]
    assert record.recomputed_tokens == recomputed


@pytest.mark.parametrize(("victim", "thrown_out"), [("newest", [0, 0, 1]), ("smallest_kv", [0, 1, 0])])
def test_the_rule_says_who_goes(victim: str, thrown_out: list[int]) -> None:
    """50, 10 and 30 in 96 tokens: after 2 steps 52, 12 and 32 fill the worker."""
    record = run(at_once([50, 10, 30], [20, 5, 5]), "round_robin", [96], victim=victim)
    assert (record.preempted > 0).tolist() == [bool(out) for out in thrown_out]


def test_prefilling_anew_takes_time_and_holds_the_slot() -> None:
    """As above, at 17 tokens a second: 51 tokens take 3 s, after which the remaining 9 are made."""
    record = run(at_once([40, 40], [20, 20]), "round_robin", [102], rate=17.0)
    assert sorted(record.finish_s.tolist()) == [20.0, 32.0]
    assert record.steps == 32
    quick = run(at_once([40, 40, 1], [20, 20, 1]), "round_robin", [102], rate=17.0, slots=2)
    assert quick.admission_s.tolist() == [0.0, 0.0, 20.0]  # beside it, one slot is free
    assert run(at_once([40, 40, 1], [20, 20, 1]), "round_robin", [102], rate=17.0, slots=1).preempted.sum() == 0


def test_nothing_else_starts_where_something_thrown_out_waits() -> None:
    """After 11 steps 49 tokens are free on the worker, and the small one that arrives then has to wait for them."""
    load = Workload.from_arrays(
        arrival_s=np.array([0.0, 0.0, 12.0]), prompt=np.array([40, 40, 1]), output=np.array([20, 20, 2])
    )
    for policy in ("round_robin", "br_0"):
        record = run(load, policy, [102])
        assert record.admission_s[2] == 20.0
        assert record.finish_s[1 if record.preempted[1] else 0] == 29.0


def test_what_was_thrown_out_stays_with_its_worker() -> None:
    """The other worker is empty all the time from step 1 on, and a third request could go nowhere else."""
    load = Workload.from_arrays(arrival_s=np.zeros(3), prompt=np.array([40, 1, 40]), output=np.array([20, 1, 20]))
    record = run(load, "round_robin", [102, 102])
    assert record.worker.tolist() == [0, 1, 0]
    assert record.preempted.tolist() == [0, 0, 1]
    assert record.finish_s.tolist() == [20.0, 1.0, 29.0]


def test_a_request_that_outgrows_its_own_worker_is_given_up_and_counted() -> None:
    """60 + 60 tokens fit the second worker only, and this policy does not ask."""
    record = run(at_once([60, 60], [60, 60]), "round_robin", [100, 200])
    assert record.rejected == 1
    assert record.worker.tolist() == [1]
    assert record.output.tolist() == [60]


def test_figures_of_preemption() -> None:
    record = run(at_once([40, 40], [20, 20]), "round_robin", [102])
    found = figures(record, kv_per_slot=50.0)
    assert (found.preemptions, found.preempted_share, found.recomputed_tokens) == (1.0, 0.5, 51.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(InputError, match="recompute_rate"):
        SimulationSettings(recompute_rate=rate)


def test_rules_are_known_by_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown victim 'oldest'\. Known: newest, smallest_kv"):
        SimulationSettings(victim="oldest")
    with pytest.raises(
        UnknownNameError, match=r"unknown admission rule 'hope'\. Known: optimistic, headroom, reserve_cap, forecast"
    ):
        SimulationSettings(admission="hope")


# ---- laws


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["br_0", "br_h", "least_kv", "olp", "olp_br_h"]),
    st.sampled_from(["optimistic:0", "optimistic:0.1", "reserve_cap:30", "forecast:0.9"]),
    st.sampled_from([*VICTIMS]),
)
def test_everything_that_fits_is_served_in_full(seed: int, policy: str, rule: str, victim: str) -> None:
    """No livelock and no loss: every request that fits alone finishes, whoever is thrown out how often."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(0, 60, 60), rng.integers(1, 40, 60)
    load = Workload.from_arrays(arrival_s=np.cumsum(rng.exponential(2.0, 60)), prompt=prompt, output=output)
    record = run(load, policy, [100, 100], rule=rule, victim=victim, rate=50.0, max_overtakes=5)
    assert len(record.finish_s) == 60 and record.rejected == 0
    decoded_s = record.finish_s - record.admission_s
    assert np.all(decoded_s >= record.output - 1e-9)
    assert np.all(decoded_s[record.preempted == 0] == pytest.approx(record.output[record.preempted == 0]))
    assert (record.recomputed_tokens > 0) == (record.preempted.sum() > 0)


def test_memory_that_never_runs_out_changes_nothing() -> None:
    """The same run, float by float, as without bounds: whatever the rule, which then has nothing to say."""
    rng = np.random.default_rng(0)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(2.0, 200)), prompt=rng.integers(0, 60, 200), output=rng.integers(1, 40, 200)
    )
    for policy in POLICIES:
        free = run(load, policy, [UNLIMITED] * 2)
        for rule in ("optimistic:0.02", "forecast:0.9", "reserve_cap:50"):
            bounded = run(load, policy, [10**9] * 2, rule=rule)
            assert bounded.finish_s.tolist() == free.finish_s.tolist()
            assert bounded.worker.tolist() == free.worker.tolist()
            assert bounded.sums.tolist() == free.sums.tolist()


def test_a_giant_among_dwarfs_is_not_starved() -> None:
    """Dwarfs would always find room before the giant does: once it is past its bound, a worker drains for it."""
    prompt, output = np.full(400, 5), np.full(400, 10)
    prompt[20] = 95
    load = Workload.from_arrays(arrival_s=np.arange(400) / 2.5, prompt=prompt, output=output)
    for policy in ("br_0", "br_h"):
        record = run(load, policy, [110, 110], slots=16, max_overtakes=20)
        assert record.admission_s[20] - record.arrival_s[20] < 40.0
        starved = run(load, policy, [110, 110], slots=16, max_overtakes=10**6)
        assert starved.admission_s[20] - starved.arrival_s[20] > 100.0


def test_a_report_has_it() -> None:
    rng = np.random.default_rng(0)
    load = Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, 300)), prompt=rng.integers(0, 60, 300), output=rng.integers(1, 60, 300)
    )
    fleet = SimulationSettings(
        workers=2, slots=8, kv_capacity=300, utilization=1.2, admission="optimistic:0", recompute_rate=1e3
    )
    report = simulate(load, fleet, policies=["br_0", "least_kv"])
    told = report.to_json()
    assert told["settings"]["admission"] == "optimistic:0" and told["settings"]["victim"] == "newest"
    for entry in told["policies"]:
        assert entry["preemptions"] > 0 and entry["recomputed_tokens"] > 0 and entry["rejected"] == 0
    with pytest.raises(SimulationError, match="br_0 uses forecasts"):
        simulate(load, SimulationSettings(kv_capacity=300, admission="forecast"), policies=["br_0"])
    looked = simulate(
        load, SimulationSettings(workers=2, slots=8, kv_capacity=300, utilization=1.2, admission="forecast"),
        policies=["br_0"], forecasts=[Oracle(load.output)],
    )  # fmt: skip
    assert looked.result("br_0", "oracle").mean["preemptions"] < report.result("br_0").mean["preemptions"]
