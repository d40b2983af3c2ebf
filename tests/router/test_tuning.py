"""Parameters that suit a log: the search, its guards, and what is left of a gain on requests that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from endcast.errors import InputError, SimulationError
from endcast.router.forecasts import ForecastSource, Oracle, kaplan_meier
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.soften import Softened
from endcast.router.tuning import Gain, Tuned, _search, applied, grid_of, parted, tune
from endcast.router.workload import Workload

FLEET = SimulationSettings(workers=4, slots=4, utilization=1.1, seeds=2, candidates=1)


def workload(count: int = 300) -> Workload:
    rng = np.random.default_rng(0)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=rng.integers(0, 900, count),
        output=rng.geometric(0.05, count),
    )


def tuned(grid: dict[str, tuple[float, ...]], fleet: SimulationSettings = FLEET) -> Tuned:
    load = workload()
    truth, blunt = Oracle(load.output), kaplan_meier(load.output, load.output > 0)

    def at(weight: float) -> ForecastSource:
        return Softened(truth, blunt, weight) if weight > 0.0 else truth

    return tune(load, fleet, "br_h", at, soften=0.0, grid=grid)


def test_what_is_chosen_is_the_best_fair_trial_and_is_judged_on_the_rest() -> None:
    found = tuned({"candidates": (1, 4, 64), "horizon": (5, 20), "soften": (0.0, 0.5)})
    assert len(found.trials) > 3 and found.trials[0].parameters == found.before and found.trials[0].fair
    best = max((trial for trial in found.trials if trial.fair), key=lambda trial: trial.efficiency)
    assert (found.chosen, found.first.before, found.first.after) == (
        best.parameters, found.trials[0].efficiency, best.efficiency,
    )  # fmt: skip
    if found.chosen != found.before:
        assert found.survived == pytest.approx(found.rest.gain / found.first.gain)
    _, late = parted(workload())
    truth, blunt = Oracle(workload().output), kaplan_meier(workload().output, workload().output > 0)
    for chosen, told in ((found.before, found.rest.before), (found.chosen, found.rest.after)):
        source = truth if chosen["soften"] == 0.0 else Softened(truth, blunt, chosen["soften"])
        report = simulate(late, applied(FLEET, chosen), policies=["br_h"], forecasts=[source])
        assert told == report.results[0].mean["efficiency"]


def test_nothing_is_chosen_that_is_not_better() -> None:
    found = tuned({"candidates": (1,)})
    assert found.chosen == found.before and found.survived is None and len(found.trials) == 1
    assert found.first.gain == found.rest.gain == 0.0
    assert found.to_json()["survived"] is None


@dataclass
class Told:
    """Stands for a result: what the search reads of one."""

    efficiency: float
    kv_per_slot: float = 1.0
    longest_s: float = 100.0

    @property
    def mean(self) -> dict[str, Any]:
        return {"efficiency": self.efficiency, "kv_per_slot": self.kv_per_slot, "wait_s": {"max": self.longest_s}}


def searched(values: dict[tuple[float, float], Told]) -> tuple[dict[str, float], int]:
    """What is chosen of two parameters, each 0, 1 or 2, and how many were tried; what is not told is poor."""
    grid, poor = {"a": (0.0, 1.0, 2.0), "b": (0.0, 1.0, 2.0)}, Told(0.1)
    found = _search(
        lambda chosen: values.get((chosen["a"], chosen["b"]), poor),  # type: ignore[arg-type,return-value]
        {"a": 0.0, "b": 0.0},
        grid,
        lambda text: None,
    )
    return found.chosen, len(found.trials)


def test_the_search_takes_what_is_fair_only() -> None:
    start = {(0.0, 0.0): Told(0.90)}
    assert searched(start) == ({"a": 0.0, "b": 0.0}, 5)
    assert searched(start | {(1.0, 0.0): Told(0.92)})[0] == {"a": 1.0, "b": 0.0}
    assert searched(start | {(1.0, 0.0): Told(0.92, longest_s=126.0)})[0] == {"a": 0.0, "b": 0.0}
    assert searched(start | {(1.0, 0.0): Told(0.92, longest_s=124.0)})[0] == {"a": 1.0, "b": 0.0}
    assert searched(start | {(1.0, 0.0): Told(0.92, kv_per_slot=0.98)})[0] == {"a": 0.0, "b": 0.0}


def test_parameters_are_tried_at_what_the_others_have_become() -> None:
    chain = {(0.0, 0.0): Told(0.90), (1.0, 0.0): Told(0.91), (1.0, 2.0): Told(0.93), (2.0, 2.0): Told(0.95)}
    assert searched(chain)[0] == {"a": 2.0, "b": 2.0}  # the last one in a second pass


def test_parameters_reach_settings_by_their_names() -> None:
    made = applied(FLEET, {"horizon": 40.0, "candidates": 9.0, "urgency": 0.5, "soften": 0.3})
    assert (made.horizon, made.candidates, type(made.horizon)) == (40, 9, int)
    assert made.for_policies().olp.urgency == 0.5


def test_grids_are_those_of_the_policy() -> None:
    assert set(grid_of("br_h", FLEET, softens=True)) == {"horizon", "discount", "soften", "candidates"}
    assert "soften" not in grid_of("br_h", FLEET, softens=False)
    assert {"urgency", "w_tail"} <= set(grid_of("olp", FLEET, softens=False))
    with pytest.raises(InputError, match="least_kv uses no forecasts"):
        grid_of("least_kv", FLEET, softens=True)


def test_noise_is_that_of_a_difference() -> None:
    load = workload()
    one, two = (simulate(load, replace(FLEET, seeds=3, candidates=c), policies=["br_0"]).results[0] for c in (1, 64))
    difference = [b.efficiency - a.efficiency for a, b in zip(one.runs, two.runs, strict=True)]
    found = Gain.of(one, two)
    assert found.gain == pytest.approx(np.mean(difference))
    assert found.noise == pytest.approx(np.std(difference, ddof=1) / np.sqrt(3))


def test_a_log_of_one_request_cannot_be_parted() -> None:
    with pytest.raises(SimulationError, match="1 requests are too few to part"):
        parted(workload(1))
    with pytest.raises(InputError, match="share: must lie strictly between"):
        parted(workload(), 1.0)
