"""Logs that are made to break bounded KV memory: everybody is accounted for, nothing starves, memory is never exceeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.admission import ADMISSION_RULES, admission_rule
from endcast.router.engine import KvRules, RunRecord, play
from endcast.router.figures import overtakings
from endcast.router.forecasts import ForecastSource, NoForecast, Oracle, kaplan_meier
from endcast.router.policies import POLICIES
from endcast.router.policy import ClusterView, Decisions, Policy, PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.scale import StepTime
from endcast.router.workload import Workload
from endcast.survival import IntArray

STEP = StepTime(fixed_s=1.0, batch_s=0.0, kv_s=0.001)
CAPACITY, WORKERS, SLOTS = 200, 3, 6
RULES = (
    "optimistic:0",
    "optimistic:0.3",
    "headroom:0.5",
    "headroom:0.001",
    "reserve_cap:40",
    "forecast:0.5",
    "forecast:0.99",
)


@dataclass(frozen=True)
class Watched:
    """A policy that looks, each time it is asked, whether a worker holds more than it can."""

    policy: Policy

    @property
    def needs_forecast(self) -> bool:
        return self.policy.needs_forecast

    @property
    def needs_prefix(self) -> bool:
        return self.policy.needs_prefix

    @property
    def immediate_dispatch(self) -> bool:
        return self.policy.immediate_dispatch

    @property
    def horizon(self) -> int:
        return self.policy.horizon

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        assert np.all(view.load <= view.capacity) and np.all(view.active <= view.slots)
        return self.policy.decide(view, rng)


def run(
    load: Workload, policy: str, rule: str, victim: str, forecasts: ForecastSource, *, rate: float = float("inf"), bound: int = 5
) -> RunRecord:  # fmt: skip
    return play(
        load,
        Watched(POLICIES.get(policy)(PolicySettings(max_overtakes=bound))),
        slots=np.full(WORKERS, SLOTS),
        capacity=np.full(WORKERS, CAPACITY),
        step_time=STEP,
        forecasts=forecasts,
        rng=np.random.default_rng(1),
        kv=KvRules(admission=admission_rule(rule), victim=VICTIMS.get(victim), recompute_rate=rate),
    )


def everybody_is_accounted_for(load: Workload, record: RunRecord) -> None:
    """Served in full or refused for its size; and with instant prefill, a token is made in every step."""
    fitting = load.prompt + load.output <= CAPACITY
    assert record.rejected == int((~fitting).sum())
    assert record.output.tolist() == load.output[fitting].tolist()
    assert record.prompt.tolist() == load.prompt[fitting].tolist()
    assert np.all(record.admission_s >= record.arrival_s)
    assert np.all(record.finish_s - record.admission_s >= record.output * STEP.fixed_s - 1e-9)
    assert record.steps <= int(record.output.sum())


def wrong(output: IntArray) -> Oracle:
    """The longer, the shorter it is said to be."""
    return Oracle(int(output.max()) + 1 - output)


@st.composite
def adversaries(draw: st.DrawFn) -> Workload:
    """Dwarfs; a few giants that fill a worker, some that fill none; in a trickle, in bursts or all at once."""
    count = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    prompt, output = rng.integers(0, 12, count), rng.integers(1, 30, count)
    for giant in draw(st.lists(st.integers(0, count - 1), max_size=4)):
        prompt[giant] = draw(st.sampled_from([CAPACITY // 2, CAPACITY - 31, CAPACITY - 1, CAPACITY, 10 * CAPACITY]))
    for long in draw(st.lists(st.integers(0, count - 1), max_size=4)):
        output[long] = draw(st.integers(100, CAPACITY))
    number = np.arange(count, dtype=np.float64)
    arrival = {"once": 0.0 * number, "bursts": number // 20 * 30.0, "trickle": number * 2.0}
    prompt[0], output[0] = 1, 1  # something fits
    return Workload.from_arrays(
        arrival_s=arrival[draw(st.sampled_from([*arrival]))], prompt=prompt, output=output, cap=output + 5
    )


@settings(deadline=None, max_examples=80)
@given(
    adversaries(),
    st.sampled_from(["round_robin", "least_kv", "br_0", "br_h", "olp"]),
    st.sampled_from(RULES),
    st.sampled_from([*VICTIMS]),
    st.sampled_from(["truth", "wrong", "nothing"]),
)
def test_nothing_starves_and_nothing_is_lost(load: Workload, policy: str, rule: str, victim: str, told: str) -> None:
    forecasts: dict[str, ForecastSource] = {
        "truth": Oracle(load.output),
        "wrong": wrong(load.output),
        "nothing": NoForecast(),
    }
    everybody_is_accounted_for(load, run(load, policy, rule, victim, forecasts[told]))


@pytest.mark.parametrize("rule", RULES)
def test_a_giant_among_dwarfs_is_not_starved(rule: str) -> None:
    """It needs all of a worker but 19 tokens, and every rule would rather start dwarfs; past its bound, one drains for it."""
    prompt, output = np.full(600, 10), np.full(600, 20)
    prompt[50], output[50] = CAPACITY - 20, 1
    load = Workload.from_arrays(arrival_s=np.arange(600) / 1.5, prompt=prompt, output=output)
    for policy in ("br_0", "br_h"):
        record = run(load, policy, rule, "newest", Oracle(load.output), bound=20)
        everybody_is_accounted_for(load, record)
        # 20 pass it, and while one worker drains, what starts in the slots of the two others
        assert overtakings(record.admission_step)[50] <= 20 + 2 * SLOTS + 6


@pytest.mark.parametrize("victim", [*VICTIMS])
@pytest.mark.parametrize("rule", RULES)
def test_thrashing_ends(rule: str, victim: str) -> None:
    """All at once, growing from nothing to a whole worker each, prefilled anew slowly, forecast to end at once."""
    load = Workload.from_arrays(
        arrival_s=np.zeros(24), prompt=np.zeros(24, dtype=np.int64), output=np.full(24, CAPACITY - 1)
    )
    record = run(load, "br_0", rule, victim, Oracle(np.ones(24, dtype=np.int64)), rate=20.0)
    assert record.rejected == 0 and np.all(np.isfinite(record.finish_s))
    assert record.recomputed_tokens == 0 or record.preempted.sum() > 0


def test_one_of_each_rule_is_tried() -> None:
    assert {rule.partition(":")[0] for rule in RULES} == set(ADMISSION_RULES)


def test_learned_forecasts_lower_preemption_at_equal_room() -> None:
    """Kaplan-Meier on a log whose lengths have no memory: a quantile of it preempts fewer than starting what fits."""
    rng = np.random.default_rng(0)
    output = np.minimum(rng.geometric(0.04, 400), 150)
    load = Workload.from_arrays(arrival_s=np.arange(400) / 1.2, prompt=rng.integers(5, 40, 400), output=output)
    source = kaplan_meier(output, output > 0)
    careless = run(load, "br_0", "optimistic:0", "newest", source)
    careful = run(load, "br_0", "forecast:0.9", "newest", source)
    assert careful.preempted.sum() < careless.preempted.sum() / 3
