"""Reasons of decisions: complete, adding up, and reachable for people who simulate."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from endcast.cli import main
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.write import write_trace
from endcast.errors import SimulationError
from endcast.router.balance_route import discounts, placement_gain
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.forecasts import Oracle
from endcast.router.olp.diary import diary
from endcast.router.olp.settings import OlpSettings
from endcast.router.policies import POLICIES
from endcast.router.policies.olp_br_h import OlpBrH
from endcast.router.policy import PolicySettings
from endcast.router.simulator import SimulationSettings, simulate_policy
from endcast.router.workload import Workload

FLEET = SimulationSettings(workers=3, slots=6, utilization=1.3, olp=OlpSettings(step_size=0.1))


def workload(count: int = 500) -> Workload:
    rng = np.random.default_rng(0)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=np.maximum(rng.lognormal(6.0, 1.0, count), 1).astype(np.int64),
        output=np.maximum(rng.lognormal(4.0, 1.0, count), 1).astype(np.int64),
    )


@pytest.mark.parametrize("policy", ["olp", "olp_br_h"])
def test_a_diary_tells_rounds_evenly_and_its_sums_are_right(policy: str) -> None:
    load = workload()
    entries = diary(load, FLEET, policy=policy, forecast=Oracle(load.output), moments=5, releases=2)
    assert 4 <= len(entries) <= 6
    starts = np.array([entry.dispatched for entry in entries])
    assert np.all(np.diff(starts) > 50)
    for entry in entries:
        assert 1 <= len(entry.releases) <= 2 and entry.started >= len(entry.releases)
        for why in entry.releases:
            assert why.surplus == pytest.approx(why.reward - why.slot_cost - why.kv_cost)
            assert why.reward == pytest.approx(sum(why.parts.values()))
            assert (why.balance is None) == (policy == "olp")
        text = "\n".join(entry.lines())
        assert f"request {entry.releases[0].request} on worker {entry.releases[0].worker}: surplus" in text
        assert ("of imbalance" in text) == (policy == "olp_br_h")
    assert any(scarcity.resource == "slots" for entry in entries for scarcity in entry.scarce)


def test_watching_changes_nothing() -> None:
    load = workload()
    alone = simulate_policy(load, FLEET, "olp_br_h", POLICIES.get("olp_br_h"), Oracle(load.output))
    watched = diary(load, FLEET, policy="olp_br_h", forecast=Oracle(load.output), moments=5)
    again = diary(load, replace(FLEET, seeds=3), policy="olp_br_h", forecast=Oracle(load.output), moments=5)
    assert list(watched) == list(again)
    assert alone.mean["wait_s"]["max"] >= max(why.wait_s for entry in watched for why in entry.releases)


def test_imbalance_filled_is_the_placement_gain() -> None:
    """By hand: the first fills what the second worker lacks, over the KV of a mean request in the window."""
    policy, output = OlpBrH(PolicySettings(horizon=2, discount=0.5)), np.array([50, 50, 3])
    source = Oracle(output)
    state = ClusterState(slots=np.full(2, 2), capacity=np.full(2, UNLIMITED), policy=policy, curves=source.shared)

    def arrive(row: int, prompt: int) -> None:
        one = np.array([row])
        state.arrive(one, np.array([prompt]), np.zeros(1), forecasts=source.curves(one, np.zeros_like(one)))

    rng = np.random.default_rng(0)
    arrive(0, 800)
    state.apply(policy.decide(state.view(0.0), rng))
    state.stepped(np.ones(4, dtype=np.int64), np.zeros(0, dtype=np.int64))
    arrive(1, 300)
    view = state.view(1.0)
    assert view.forecast is not None
    (why,) = policy.explain(view, policy.decide(view, rng))
    gain = placement_gain(300.0 + np.arange(3), 801.0 + np.arange(3), 2) @ discounts(2, 0.5)
    unit = policy.queue.pricing.traffic.kv_unit * 1.75
    assert why.balance == pytest.approx(float(gain) / unit)
    assert why.worker != int(np.argmax(view.load))


def test_what_has_no_prices_gives_no_reasons() -> None:
    load = workload(20)
    with pytest.raises(SimulationError, match="br_h gives no reasons"):
        diary(load, FLEET, policy="br_h", forecast=Oracle(load.output), moments=2)


def test_the_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{tmp_path}/log.parquet"
    write_trace(path, synthesize(SynthSettings(requests=200, seed=7)).trace)
    fleet = ["--workers", "3", "--slots", "4", "--utilization", "1.2", "--moments", "3", "--olp", "step_size=0.1"]
    found = []
    for extra in ([], ["--json"], ["--policy", "br_h"], ["--moments", "0"]):
        with pytest.raises(SystemExit) as exit_:
            main(["explain", path, *fleet, *extra])
        found.append((exit_.value.code, *capsys.readouterr()))
    assert found[0][0] == 0 and "requests started so far" in found[0][1] and "surplus" in found[0][1]
    told = json.loads(found[1][1])
    assert told["policy"] == "olp_br_h" and len(told["rounds"]) >= 2
    assert {"now_s", "scarce", "releases", "waiting"} <= set(told["rounds"][0])
    assert found[2][0] == 2 and "br_h gives no reasons. Those that do: olp, olp_br_h" in found[2][2]
    assert found[3][0] == 2 and "--moments: must be at least 1" in found[3][2]
