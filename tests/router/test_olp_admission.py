"""OLP where KV memory binds: what it starts is what the admission rule lets start, under every rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.admission import ADMISSION_RULES, admission_rule
from endcast.router.admission.gate import fits
from endcast.router.cluster import ClusterState
from endcast.router.engine import KvRules, RunRecord, play
from endcast.router.forecasts import Oracle
from endcast.router.olp.settings import OlpSettings
from endcast.router.policies import POLICIES
from endcast.router.policy import ClusterView, Decisions, Policy, PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.scale import StepTime
from endcast.router.workload import Workload

#: Every registered rule, with a number that makes it say no to what would fit.
NUMBERS = {
    "optimistic": "optimistic:0.2",
    "headroom": "headroom:0.5",
    "reserve_cap": "reserve_cap:40",
    "forecast": "forecast:0.9",
}
RULES = {name: NUMBERS.get(name, name) for name in ADMISSION_RULES}
CENTRAL = ["olp", "olp_br_h"]


class Counted:
    """Another policy, whose placements are counted."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.placed = inner, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        decided = self.inner.decide(view, rng)
        self.placed += len(decided.position)
        return decided


def requests(seed: int, count: int = 80) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(0.6, count)),
        prompt=rng.integers(0, 60, count),
        output=rng.integers(1, 40, count),
    )


def run(load: Workload, policy: Policy, rule: str, capacity: list[int], victim: str = "newest") -> RunRecord:
    return play(
        load,
        policy,
        slots=np.full(len(capacity), 6),
        capacity=np.array(capacity),
        step_time=StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0),
        forecasts=Oracle(load.output),
        rng=np.random.default_rng(0),
        kv=KvRules(admission=admission_rule(rule), victim=VICTIMS.get(victim), recompute_rate=50.0),
    )


@pytest.mark.parametrize("name", CENTRAL)
@pytest.mark.parametrize("rule", RULES.values())
def test_no_placement_is_taken_back(name: str, rule: str) -> None:
    """The cluster drops placements that its rule forbids: each request is then placed more than once."""
    for seed in range(3):
        load = requests(seed)
        counted = Counted(POLICIES.get(name)(PolicySettings(max_overtakes=2)))
        record = run(load, counted, rule, [140, 140])  # type: ignore[arg-type]
        assert len(record.finish_s) == len(load)
        assert counted.placed == len(load)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(CENTRAL),
    rule=st.sampled_from(list(RULES.values())),
    candidates=st.integers(1, 4),
)
def test_no_slot_stays_empty_while_the_rule_lets_something_start(
    seed: int, name: str, rule: str, candidates: int
) -> None:
    """After each round no worker with a free slot would be given anything that waits, but one that is kept."""
    rng, output = np.random.default_rng(seed), np.zeros(0, dtype=np.int64)
    policy = POLICIES.get(name)(
        PolicySettings(max_overtakes=int(rng.integers(0, 30)), candidates=candidates, horizon=5)
    )
    state = ClusterState(
        slots=rng.integers(1, 4, 3),
        capacity=rng.integers(50, 400, 3),
        policy=policy,
        curves=Oracle(output).shared,
        admission=admission_rule(rule),
    )
    for step in range(12):
        new = np.arange(len(output), len(output) + int(rng.integers(1, 5)))
        output = np.concatenate([output, rng.integers(1, 30, len(new))])
        state.arrive(
            new, rng.integers(0, 90, len(new)), np.full(len(new), 0.05 * step),
            forecasts=Oracle(output).curves(new, np.zeros_like(new)),
        )  # fmt: skip
        decided = policy.decide(state.view(0.05 * step), rng)
        assert len(state.apply(decided).request) == len(decided.position)
        view, kept = state.view(), policy.queue.reserved[1]  # type: ignore[attr-defined]
        for g in np.flatnonzero(view.free):
            assert g == kept or not any(fits(view.gate, g, j) for j in range(len(view.waiting)))
        slots = len(state.slots)
        state.stepped(np.zeros(slots, dtype=np.int64), np.flatnonzero(rng.random(slots) < 0.3))


@pytest.mark.parametrize("name", CENTRAL)
@pytest.mark.parametrize("rule", [rule.replace("reserve_cap:40", "reserve_cap:10") for rule in RULES.values()])
def test_a_giant_among_dwarfs_gets_a_worker_kept(name: str, rule: str) -> None:
    """Past its bound a worker drains for it, whatever the rule; with a bound that is never reached it waits longer."""
    prompt, output = np.full(300, 5), np.full(300, 10)
    prompt[20] = 95
    load = Workload.from_arrays(arrival_s=np.arange(300) / 2.5, prompt=prompt, output=output)
    waited = []
    for bound in (20, 10**6):
        policy = POLICIES.get(name)(PolicySettings(max_overtakes=bound, olp=OlpSettings(patience=1.0, w_tail=0.0)))
        record = play(
            load, policy, slots=np.full(2, 16), capacity=np.full(2, 110), forecasts=Oracle(output),
            step_time=StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.0), rng=np.random.default_rng(0),
            kv=KvRules(admission=admission_rule(rule)),
        )  # fmt: skip
        waited.append(float(record.admission_s[20] - record.arrival_s[20]))
    assert waited[0] < 45.0
    assert waited[1] > waited[0] + 5.0


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(CENTRAL),
    rule=st.sampled_from(list(RULES.values())),
    victim=st.sampled_from([*VICTIMS]),
)
def test_everything_that_fits_is_served_on_unequal_workers(seed: int, name: str, rule: str, victim: str) -> None:
    load = requests(seed, 50)
    record = run(load, POLICIES.get(name)(PolicySettings(max_overtakes=5)), rule, [100, 160], victim)
    assert len(record.finish_s) == len(load) and record.rejected == 0
    assert np.all(record.finish_s - record.admission_s >= record.output - 1e-9)
