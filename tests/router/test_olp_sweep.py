"""Sweeps over rewards: each weight moves its figure the right way, and efficient points are those nothing beats."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from endcast.errors import SimulationError
from endcast.router.forecasts import Oracle
from endcast.router.olp.settings import OlpSettings
from endcast.router.simulator import Progress, SimulationSettings
from endcast.router.sweep import Sweep, SweptPoint, sweep
from endcast.router.workload import Workload


def workload(seed: int, count: int = 600) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(1.0, count)),
        prompt=np.maximum(rng.lognormal(6.0, 1.0, count), 1).astype(np.int64),
        output=np.maximum(rng.lognormal(4.0, 1.0, count), 1).astype(np.int64),
    )


def swept(policy: str, name: str, values: tuple[float, ...], **olp: float) -> list[Sweep]:
    fleet = SimulationSettings(
        workers=4,
        slots=8,
        utilization=1.1,
        candidates=16,
        olp=OlpSettings(tail_scale_s=20.0, **olp),  # type: ignore[arg-type]
    )
    loads = [workload(seed) for seed in range(2)]
    grid = [{name: value} for value in values]
    return [sweep(load, fleet, policy=policy, forecast=Oracle(load.output), grid=grid) for load in loads]


def means(sweeps: list[Sweep], kind: str, name: str) -> list[float]:
    """A figure of each point, over the logs."""
    each = [[point.result.mean[kind][name] for point in found.points] for found in sweeps]
    return [float(value) for value in np.mean(each, axis=0)]


@pytest.mark.parametrize("policy", ["olp", "olp_br_h"])
@pytest.mark.parametrize(
    ("name", "values", "others", "kind", "figure"),
    [
        ("w_latency", (0.1, 1.0, 10.0), {"w_tail": 1.0}, "e2e_s", "mean"),
        ("w_ttft", (0.01, 1.0, 100.0), {"w_latency": 0.0, "w_tail": 1.0}, "wait_s", "mean"),
        ("w_tail", (0.1, 1.0, 10.0), {}, "e2e_s", "p99"),
    ],
)
def test_each_weight_moves_its_figure_the_right_way(
    policy: str, name: str, values: tuple[float, ...], others: dict[str, float], kind: str, figure: str
) -> None:
    """Means over two logs; runs are chaotic, so 3 % the wrong way pass between neighbours, none from end to end."""
    found = means(swept(policy, name, values, **others), kind, figure)
    assert found[-1] < 0.97 * found[0], found
    assert all(later < 1.03 * earlier for earlier, later in itertools.pairwise(found)), found


def test_efficient_points_are_those_that_nothing_beats() -> None:
    (found, _) = swept("olp_br_h", "w_tail", (0.0, 1.0, 16.0))
    base = found.points[0]

    class Trade(SweptPoint):
        trade = (0.0, 0.0)

    def at(mean: float, p99: float) -> SweptPoint:
        point = Trade(base.varied, base.result)
        object.__setattr__(point, "trade", (mean, p99))
        return point

    points = tuple(at(*trade) for trade in ((1.0, 9.0), (2.0, 9.0), (2.0, 8.0), (3.0, 3.0), (3.0, 3.0), (4.0, 4.0)))
    assert Sweep({}, 1, points, ()).efficient == (True, False, True, True, True, False)


def test_a_sweep_repeats_what_a_simulation_says_and_tells_how_far_it_is() -> None:
    load, told = workload(0, 200), list[Progress]()
    fleet = SimulationSettings(workers=2, slots=4, utilization=1.1, seeds=2)
    grid = [{"w_tail": 0.0}, {"w_tail": 4.0}]
    found = sweep(
        load, fleet, policy="olp_br_h", forecast=Oracle(load.output), grid=grid, beside=["br_h", "least_kv"],
        progress=told.append,
    )  # fmt: skip
    again = sweep(load, fleet, policy="olp_br_h", forecast=Oracle(load.output), grid=grid[1:])
    assert found.points[1].result.mean["e2e_s"] == again.points[0].result.mean["e2e_s"]
    assert [result.policy for result in found.beside] == ["br_h", "least_kv"]
    assert all(later.done >= earlier.done for earlier, later in itertools.pairwise(told))
    assert (told[-1].done, told[-1].total) == (1600, 1600)


def test_what_has_no_rewards_is_not_swept() -> None:
    load = workload(0, 20)
    with pytest.raises(SimulationError, match="br_h has no rewards to sweep over"):
        sweep(load, SimulationSettings(), policy="br_h", forecast=Oracle(load.output), grid=[{"w_tail": 0.0}])
