"""Laws that hold for every run: conservation, Little's law, bounded overtaking; and faults that end in a clear error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError, SimulationError, UnknownNameError
from endcast.router import engine
from endcast.router.cluster import UNLIMITED, Started
from endcast.router.figures import overtakings
from endcast.router.forecasts import NoForecast, Oracle, kaplan_meier
from endcast.router.policies import POLICIES
from endcast.router.policies.br_0 import BrZero
from endcast.router.policy import ClusterView, Decisions, Policy, PolicySettings
from endcast.router.results import forecast_value_captured
from endcast.router.scale import StepTime
from endcast.router.simulator import Progress, SimulationSettings, simulate
from endcast.router.workload import Workload

STEP = StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-6)


def workload(count: int = 400, seed: int = 0, *, rate: float = 8.0) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1 / rate, count)),
        prompt=rng.integers(0, 2000, count),
        output=rng.geometric(0.02, count),
    )


def play(
    load: Workload, policy: Policy, *, capacity: int = UNLIMITED, workers: int = 4, slots: int = 4
) -> engine.RunRecord:
    return engine.play(
        load,
        policy,
        slots=np.full(workers, slots),
        capacity=np.full(workers, capacity),
        step_time=STEP,
        forecasts=Oracle(load.output),
        rng=np.random.default_rng(0),
    )


@pytest.mark.parametrize("name", ["join_shortest_queue", "br_0", "br_h"])
def test_littles_law(name: str) -> None:
    """The time that all requests spend in the system is the number in it, summed over the clock.

    Requests enter at the start of a step, so each may have been there for up to a step before the clock counts it.
    """

    class Counting(engine.Run):
        area, longest = 0.0, 0.0

        def _decode(self, started: Started) -> None:
            inside, began = self.arrived - self.finished, self.now
            super()._decode(started)
            self.area += inside * (self.now - began)
            self.longest = max(self.longest, self.now - began)

    load = workload()
    policy = POLICIES.get(name)(PolicySettings())
    run = Counting(
        load, policy, np.full(4, 4), np.full(4, UNLIMITED), STEP, Oracle(load.output), np.random.default_rng(0)
    )
    record = run.to_the_end(None, rejected=0)
    spent = float((record.finish_s - record.arrival_s).sum())
    assert run.area <= spent + 1e-6
    assert spent <= run.area + len(load) * run.longest


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from(["br_0", "br_h"]), st.sampled_from([2, 64]))
def test_nobody_is_overtaken_beyond_the_bound(seed: int, bound: int, name: str, candidates: int) -> None:
    chosen = PolicySettings(max_overtakes=bound, candidates=candidates)
    record = play(workload(120, seed, rate=40.0), POLICIES.get(name)(chosen), workers=2, slots=3)
    passed = overtakings(record.admission_step)
    assert passed.max() <= bound
    if bound == 0:
        assert np.all(np.diff(record.admission_step) >= 0)


def test_the_bound_binds() -> None:
    """Without it, somebody here is overtaken far more often: the test above can fail."""
    unbounded = POLICIES.get("br_0")(PolicySettings(max_overtakes=10**9))
    record = play(workload(400, 0, rate=40.0), unbounded, workers=2, slots=3)
    assert overtakings(record.admission_step).max() > 30


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_overtakings_are_what_counting_gives(step: list[int]) -> None:
    slow = [sum(later < mine for later in step[i + 1 :]) for i, mine in enumerate(step)]
    assert overtakings(np.array(step)).tolist() == slow


def test_requests_larger_than_any_worker_are_refused_and_counted() -> None:
    """CASE 28: two of four fit, one of them exactly."""
    load = Workload.from_arrays(
        arrival_s=np.arange(4.0), prompt=np.array([995, 990, 1000, 5]), output=np.array([5, 11, 1, 95])
    )
    for name in POLICIES:
        record = play(load, POLICIES.get(name)(PolicySettings()), capacity=1000)
        assert record.rejected == 2
        assert record.output.tolist() == [5, 95]
        assert np.isfinite(record.finish_s).all()
    with pytest.raises(SimulationError, match="no request of the log can be simulated"):
        play(load, POLICIES.get("br_0")(PolicySettings()), capacity=3)


@pytest.mark.parametrize(("name", "steps"), [("br_0", [0, 2, 0]), ("least_kv", [0, 2, 2])])
def test_without_kv_room_a_request_waits(name: str, steps: list[int]) -> None:
    """50 and 60 do not fit together in 100 tokens; 10 fits, but not past the head of a worker's own queue."""
    load = Workload.from_arrays(arrival_s=np.zeros(3), prompt=np.array([50, 60, 10]), output=np.full(3, 2))
    record = play(load, POLICIES.get(name)(PolicySettings()), capacity=100, workers=1)
    assert record.admission_step.tolist() == steps


class Idle(BrZero):
    """Places nothing, ever."""

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        none = np.zeros(0, dtype=np.int64)
        return Decisions(none, none)


class GivesUp(BrZero):
    """Places the first ten requests and then nothing."""

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        if view.dispatched < 10:
            return super().decide(view, rng)
        none = np.zeros(0, dtype=np.int64)
        return Decisions(none, none)


class Invents(BrZero):
    """Places a request that is not there."""

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        return Decisions(np.array([len(view.waiting)]), np.array([0]))


@pytest.mark.parametrize(
    ("policy", "says"),
    [(Idle, "starts none of the 1 requests"), (GivesUp, "nothing runs"), (Invents, "does not exist")],
)
def test_a_policy_that_does_not_play_along_is_stopped(policy: Callable[[PolicySettings], Policy], says: str) -> None:
    """CASE 29."""
    with pytest.raises(SimulationError, match=says):
        play(workload(), policy(PolicySettings()))


def test_forecasts_are_needed_where_they_are_used() -> None:
    load = workload(10)
    with pytest.raises(SimulationError, match="br_h uses forecasts and none were given"):
        simulate(load, SimulationSettings(), policies=["br_h"])
    with pytest.raises(SimulationError, match="no policy was named"):
        simulate(load, SimulationSettings(), policies=[])
    with pytest.raises(UnknownNameError, match="unknown policy 'br_9'"):
        simulate(load, SimulationSettings(), policies=["br_9"])


def test_a_capacity_that_nothing_fits_is_refused_by_name() -> None:
    load = workload()
    least = int((load.prompt + load.output).min())
    with pytest.raises(SimulationError, match=rf"each of the 400 requests is larger .* The smallest needs {least}"):
        simulate(load, SimulationSettings(kv_capacity=least - 1), policies=["br_0"])


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"slots": 0}, {"seeds": 0}, {"seed": -1}, {"utilization": 0.0}, {"utilization": float("nan")},
     {"utilization": float("inf")}, {"kv_capacity": 0}, {"horizon": -1}, {"discount": 2.0}, {"workers": True}],
)  # fmt: skip
def test_settings_out_of_bounds_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        SimulationSettings(**wrong)  # type: ignore[arg-type]


def test_requests_without_lengths_are_left_out_and_counted() -> None:
    load = Workload.from_arrays(
        arrival_s=np.array([3.0, 1.0, 2.0, 0.0]), prompt=np.array([5, -1, 7, 8]), output=np.array([1, 2, 0, 4])
    )
    assert load.row.tolist() == [3, 0]
    assert load.left_out == {"no output": 1, "unknown prompt": 1}
    report = simulate(load, SimulationSettings(workers=1, slots=1), policies=["br_0"])
    assert report.settings["left_out"] == {"no_output": 1, "unknown_prompt": 1}
    assert report.settings["requests"] == 2
    with pytest.raises(SimulationError, match="2 with no output"):
        Workload.from_arrays(arrival_s=np.zeros(2), prompt=np.ones(2, dtype=int), output=np.zeros(2, dtype=int))


FIGURES = {
    "throughput", "efficiency", "imbalance", "kv_per_slot", "overtakings_max", "backlog", "e2e_s", "wait_s", "ttft_s",
    "tpot_s", "preemptions", "preempted_share", "requeued", "prefill_s", "recomputed_tokens", "rejected",
    "prefix_hit_share", "decision_ms",
}  # fmt: skip


def test_the_report_is_the_documented_json() -> None:
    load = workload(150)
    seen: list[Progress] = []
    report = simulate(
        load,
        SimulationSettings(workers=2, slots=4, seeds=3, seed=4, utilization=1.1),
        policies=["random", "br_h"],
        forecasts=[NoForecast(), kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_)), Oracle(load.output)],
        progress=seen.append,
    )
    told = report.to_json()
    assert set(told) == {"settings", "seeds", "policies"}
    assert told["seeds"] == 3
    assert told["settings"]["max_overtakes"] == 4 * 2 * 4
    names = [(p["policy"], p["forecast"]) for p in told["policies"]]
    assert names == [("random", None), ("br_h", None), ("br_h", "kaplan_meier"), ("br_h", "oracle")]
    for entry in told["policies"]:
        assert set(entry) == FIGURES | {"policy", "forecast", "spread"}
        assert set(entry["spread"]) == FIGURES
        assert set(entry["e2e_s"]) == set(entry["spread"]["wait_s"]) == {"mean", "p50", "p99", "max"}
        assert set(entry["decision_ms"]) == {"p50", "p99"}
    result = report.result("random")
    runs = [run.efficiency for run in result.runs]
    assert len(set(runs)) == 3
    assert told["policies"][0]["efficiency"] == pytest.approx(np.mean(runs))
    assert told["policies"][0]["spread"]["efficiency"] == pytest.approx(np.std(runs, ddof=1))
    longest = [asdict(run)["wait_s"]["max"] for run in result.runs]
    assert told["policies"][0]["wait_s"]["max"] == pytest.approx(np.mean(longest))
    with pytest.raises(KeyError):
        report.result("br_0")
    assert seen[-1] == Progress(150 * 12, 150 * 12, "br_h", "oracle", 6)
    assert [p.done for p in seen] == sorted(p.done for p in seen)


def test_a_seed_is_the_same_run_whatever_it_is_run_with() -> None:
    load = workload(200)
    alone = simulate(load, SimulationSettings(workers=2, slots=4, seed=2), policies=["power_of_two"])
    among = simulate(load, SimulationSettings(workers=2, slots=4, seeds=3), policies=["random", "power_of_two"])
    one, three = alone.result("power_of_two").runs[0], among.result("power_of_two").runs[2]
    assert one.e2e_s == three.e2e_s
    assert one.efficiency == three.efficiency


def test_one_run_has_no_spread() -> None:
    report = simulate(workload(50), SimulationSettings(workers=2, slots=4), policies=["br_0"])
    assert report.result("br_0").spread["efficiency"] == 0.0
    assert report.result("br_0").spread["wait_s"]["p99"] == 0.0


def test_forecast_value_captured() -> None:
    assert forecast_value_captured(0.97, 0.95, 0.99) == pytest.approx(0.5)
    assert forecast_value_captured(0.97, 0.95, 0.95) is None
