"""The skill of a fleet's forecasts, by hand and by what BR-H makes of good, empty and wrong ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from endcast.router.cluster import UNLIMITED
from endcast.router.engine import play
from endcast.router.forecasts import ForecastSource, NoForecast, OneCurve, Oracle, kaplan_meier
from endcast.router.policies.br_h import BrH
from endcast.router.policy import PolicySettings
from endcast.router.scale import StepTime
from endcast.router.skill import WindowSkill
from endcast.router.workload import Workload
from endcast.survival import CurveTable

G, B = 4, 12


def view(steps: int, generated: list[int], expected: list[list[float]]) -> Any:
    """Two workers with two slots each, prompts of 100 tokens."""
    generated_now = np.array(generated)
    prompt = np.where(generated_now > 0, 100, 0)
    load = (prompt + generated_now).reshape(2, 2).sum(axis=1)
    return SimpleNamespace(
        steps=steps,
        load=load,
        active=(generated_now > 0).reshape(2, 2).sum(axis=1),
        slots=np.array([2, 2]),
        running_prompt=prompt,
        running_generated=generated_now,
        forecast=SimpleNamespace(load=np.array(expected)),
    )


@pytest.mark.parametrize(("expected", "slope"), [([110.0, 220.0], 1.0), ([220.0, 110.0], 0.0), ([165.0, 165.0], 0.0)])
def test_one_comparison_by_hand(expected: list[float], slope: float) -> None:
    """Both workers hold 2 × 104 tokens; four steps later one request has ended on the first, and been replaced.

    208 + 8 tokens each would be there had nothing ended; 108 and 216 are. Half a window must have passed first.
    """
    skill = WindowSkill(8)
    windows = [[208.0] * 4 + [e] + [0.0] * 4 for e in expected]
    assert skill.observe(view(0, [4, 4, 4, 4], windows)) == 0.0
    assert skill.observe(view(3, [7, 7, 7, 7], windows)) == 0.0
    found = skill.observe(view(4, [8, 2, 8, 8], windows))
    weight = 1.0 / (1.0 + 10.0)
    ratio = 108.0 / 110.0 if slope else 0.0
    assert found == pytest.approx(min(ratio, 1.0) * weight, abs=1e-12)


def test_windows_that_passed_unseen_are_not_compared() -> None:
    skill = WindowSkill(8)
    windows = [[208.0] * 9, [108.0] * 9]
    skill.observe(view(0, [4, 4, 4, 4], windows))
    assert skill.observe(view(9, [13, 2, 13, 13], windows)) == 0.0


def test_another_fleet_begins_anew() -> None:
    skill = WindowSkill(8)
    windows = [[208.0] * 4 + [e] + [0.0] * 4 for e in (110.0, 220.0)]
    skill.observe(view(0, [4, 4, 4, 4], windows))
    assert skill.observe(view(4, [8, 2, 8, 8], windows)) > 0.0
    assert skill.observe(view(0, [4, 4, 4, 4], windows)) == 0.0


def log() -> Workload:
    rng = np.random.default_rng(0)
    n = 2500
    return Workload.from_arrays(
        arrival_s=np.sort(rng.uniform(0, 60, n)),
        prompt=rng.integers(50, 2000, n),
        output=np.maximum(rng.lognormal(3.5, 1.0, n), 1).astype(np.int64),
    )


def skill_with(load: Workload, source: ForecastSource) -> float:
    policy = BrH(PolicySettings())
    play(
        load,
        policy,
        slots=np.full(G, B),
        capacity=np.full(G, UNLIMITED),
        step_time=StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-6),
        forecasts=source,
        rng=np.random.default_rng(0),
    )
    return policy.skill


def test_skill_of_true_blunt_empty_and_reversed_forecasts() -> None:
    load = log()
    order, reversed_ = np.argsort(load.output), np.empty_like(load.output)
    reversed_[order] = load.output[order[::-1]]
    hazard = np.array([np.log1p(-0.02)])
    constant = OneCurve("constant", CurveTable(np.array([0, 1]), np.array([[0.0, hazard[0]]]), hazard))
    assert skill_with(load, Oracle(load.output)) > 0.6
    assert skill_with(load, kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_))) > 0.2
    assert skill_with(load, Oracle(reversed_)) < 0.1
    assert skill_with(load, NoForecast()) == pytest.approx(0.0, abs=0.05)
    assert skill_with(load, constant) == pytest.approx(0.0, abs=0.2)
