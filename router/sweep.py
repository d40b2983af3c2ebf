"""A sweep over rewards and prices: the same log with each combination of settings, and which of them are efficient.

Weights trade the mean against the tail. A combination is *Pareto-efficient* if no other of the sweep has a mean E2E and a
p99 E2E that are both no higher, and one of them lower: the others give something away for nothing. Runs are chaotic, so
close neighbours may change places with the seed; spreads are told beside the means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from endcast.errors import SimulationError
from endcast.router.forecasts import ForecastSource
from endcast.router.policies import POLICIES
from endcast.router.results import Nested, PolicyResult, SimulationReport
from endcast.router.simulator import Progress, SimulationSettings, simulate
from endcast.router.workload import Workload


@dataclass(frozen=True)
class SweptPoint:
    """One combination: the settings that it varies by name, and what it gave."""

    varied: Mapping[str, Any]
    result: PolicyResult

    @property
    def trade(self) -> tuple[float, float]:
        """Mean and p99 E2E, seconds, means over the seeds: the two that are traded."""
        found = self.result.mean["e2e_s"]
        return float(found["mean"]), float(found["p99"])


@dataclass(frozen=True)
class Sweep:
    """All combinations in the order asked for, and the policies that were played ``beside`` them with the same settings."""

    settings: Nested
    seeds: int
    points: tuple[SweptPoint, ...]
    beside: tuple[PolicyResult, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What is varied."""
        return tuple(self.points[0].varied)

    @property
    def efficient(self) -> tuple[bool, ...]:
        """Of each point, whether no other is better in one of mean and p99 E2E and no worse in the other."""
        trades = [point.trade for point in self.points]
        return tuple(not any(_dominates(other, own) for other in trades) for own in trades)

    def to_json(self) -> Nested:
        """``{"settings", "seeds", "points": [{"varied", "efficient", …figures}], "beside": […]}``."""
        return {
            "settings": self.settings,
            "seeds": self.seeds,
            "points": [
                {"varied": dict(point.varied), "efficient": efficient, **point.result.to_json()}
                for point, efficient in zip(self.points, self.efficient, strict=True)
            ],
            "beside": [result.to_json() for result in self.beside],
        }


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def sweep(
    workload: Workload,
    settings: SimulationSettings,
    *,
    policy: str,
    forecast: ForecastSource,
    grid: Sequence[Mapping[str, Any]],
    beside: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Sweep:
    """Play ``policy`` with each of ``grid``, values of ``settings.olp`` by name, and ``beside`` policies once.

    ``SimulationError`` if the policy reads no such settings: all points would be the same.
    """
    if policy not in swept():
        raise SimulationError(
            f"{policy} has no rewards to sweep over", hint=f"Policies that have: {', '.join(swept())}"
        )
    rounds, requests = len(grid) + len(beside), len(workload) * settings.seeds

    def playing(number: int, olp: Mapping[str, Any], names: Sequence[str]) -> SimulationReport:
        def tell(made: Progress) -> None:
            if progress is not None:
                progress(replace(made, done=number * requests + made.done, total=rounds * requests))

        chosen = replace(settings, olp=replace(settings.olp, **olp))
        return simulate(workload, chosen, policies=names, forecasts=[forecast], progress=tell)

    found = [playing(i, varied, [policy]) for i, varied in enumerate(grid)]
    others = playing(len(grid), {}, beside) if beside else None
    points = tuple(SweptPoint(varied, report.results[0]) for varied, report in zip(grid, found, strict=True))
    described = {**found[0].settings, "policy": policy, "forecast": forecast.name, "olp": asdict(settings.olp)}
    return Sweep(described, settings.seeds, points, () if others is None else others.results)


def swept() -> list[str]:
    """Policies whose rewards can be swept: those that order by surplus and can explain it."""
    return [name for name in POLICIES if hasattr(POLICIES.get(name), "explain")]
