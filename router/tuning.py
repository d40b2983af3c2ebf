"""Parameters that suit a log: found on its first part, judged on the rest.

One parameter after the other is tried at each of a few values, the others as they stand; the best is kept, and the
round begins anew until nothing changes. What is judged is played twice, with the settings as they were and with those
found, on requests that the search has not seen. A gain that is noise there was noise here: *survived* is the share of
the gain on the first part that the rest shows too.

Throughput can be bought by leaving heavy requests waiting, so settings under which a busy slot holds less KV, or a
request waits much longer, than before are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from endcast.errors import InputError, SimulationError
from endcast.router.forecasts import ForecastSource
from endcast.router.policies import POLICIES
from endcast.router.results import PolicyResult
from endcast.router.simulation_settings import SimulationSettings
from endcast.router.simulator import simulate
from endcast.router.workload import Workload

#: Values tried, by parameter; ``soften`` is the forecasts', the others are the policies'.
GRID: Mapping[str, tuple[float, ...]] = {
    "horizon": (10, 20, 40, 80),
    "discount": (0.9, 0.95, 0.98, 0.99),
    "soften": (0.0, 0.3, 0.5, 0.7),
    "candidates": (16, 64, 256),
}
#: Those that policies with prices have as well.
OLP_GRID: Mapping[str, tuple[float, ...]] = {"urgency": (0.1, 0.3, 1.0, 3.0), "w_tail": (1.0, 4.0, 16.0)}
#: Parameters that ``SimulationSettings`` has by name.
OWN = ("horizon", "discount", "candidates")
#: What may be lost of a busy slot's KV, and by how much the longest wait may grow.
_KV_LOSS, _WAIT_GROWTH = 0.01, 1.25
_PASSES = 2

#: A forecast, softened to a share.
SourceAt = Callable[[float], ForecastSource]


@dataclass(frozen=True)
class Trial:
    """One setting tried on the first part: what was set, its mean ``efficiency``, and whether its waits were bearable."""

    parameters: dict[str, float]
    efficiency: float
    fair: bool


@dataclass(frozen=True)
class Gain:
    """Efficiency of one part of the log under the settings as they were and under those found, and the standard
    deviation over runs of the difference of two such means."""

    before: float
    after: float
    noise: float

    @classmethod
    def of(cls, before: PolicyResult, after: PolicyResult) -> Gain:
        """From two results of the same seeds."""
        one, two = ([run.efficiency for run in result.runs] for result in (before, after))
        difference = np.subtract(two, one)
        noise = float(np.std(difference, ddof=1) / np.sqrt(len(one))) if len(one) > 1 else 0.0
        return cls(float(np.mean(one)), float(np.mean(two)), noise)

    @property
    def gain(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True)
class Tuned:
    """One policy with one source of forecasts: what was set ``before``, what was ``chosen`` on the first part, and the
    gain there and on the rest, with the results themselves."""

    policy: str
    forecast: str | None
    before: dict[str, float]
    chosen: dict[str, float]
    trials: tuple[Trial, ...]
    first: Gain
    rest: Gain
    rest_results: tuple[PolicyResult, PolicyResult]

    @property
    def survived(self) -> float | None:
        """Of the gain on the first part, the share that the rest shows; ``None`` where nothing was gained."""
        return self.rest.gain / self.first.gain if self.chosen != self.before and self.first.gain > 0.0 else None

    def to_json(self) -> dict[str, Any]:
        """As one entry of ``tuned``."""
        return {
            "policy": self.policy,
            "forecast": self.forecast,
            "before": self.before,
            "chosen": self.chosen,
            "first": {"before": self.first.before, "after": self.first.after, "noise": self.first.noise},
            "rest": {"before": self.rest.before, "after": self.rest.after, "noise": self.rest.noise},
            "survived": self.survived,
            "rest_policies": [result.to_json() for result in self.rest_results],
            "trials": [
                {"parameters": trial.parameters, "efficiency": trial.efficiency, "fair": trial.fair}
                for trial in self.trials
            ],
        }


def parted(workload: Workload, share: float = 0.5) -> tuple[Workload, Workload]:
    """The first ``share`` of the requests to arrive, and the others."""
    if not 0.0 < share < 1.0:
        raise InputError("share", f"must lie strictly between 0 and 1, not {share!r:.60}")
    early = np.arange(len(workload)) < round(share * len(workload))
    if not early.any() or early.all():
        raise SimulationError(f"{len(workload)} requests are too few to part", hint="Tune on a longer log")
    return workload.take(early), workload.take(~early)


def grid_of(policy: str, settings: SimulationSettings, *, softens: bool) -> dict[str, tuple[float, ...]]:
    """What is tried for a policy: its window's parameters, softening where the forecast can be softened, its prices'."""
    made = POLICIES.get(policy)(settings.for_policies())
    if not made.needs_forecast:
        raise InputError(
            "--tune", f"{policy} uses no forecasts: nothing of it is tuned", hint="Such as --policies br_h"
        )
    grid = {name: values for name, values in GRID.items() if softens or name != "soften"}
    return grid | (dict(OLP_GRID) if policy.startswith("olp") else {})


def tune(
    workload: Workload,
    settings: SimulationSettings,
    policy: str,
    source_at: SourceAt,
    *,
    soften: float,
    grid: Mapping[str, Sequence[float]],
    jobs: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Search ``grid`` from ``settings`` and ``soften`` on the first half of the log, and judge on the other."""
    early, late = parted(workload)

    def play(part: Workload, chosen: Mapping[str, float]) -> PolicyResult:
        source = source_at(chosen.get("soften", soften))
        fleet = applied(settings, chosen)
        return simulate(part, fleet, policies=[policy], forecasts=[source], jobs=jobs).results[0]

    before = _as_set(settings, soften, grid)
    found = _search(lambda chosen: play(early, chosen), before, grid, progress)
    progress("the rest of the log")
    rest = play(late, before), play(late, found.chosen)
    return Tuned(
        policy=policy,
        forecast=source_at(soften).name,
        before=before,
        chosen=found.chosen,
        trials=tuple(found.trials),
        first=Gain.of(found.start, found.best),
        rest=Gain.of(*rest),
        rest_results=rest,
    )


def applied(settings: SimulationSettings, chosen: Mapping[str, float]) -> SimulationSettings:
    """``settings`` with what was chosen; ``soften`` belongs to the forecasts."""
    own = {name: type(getattr(settings, name))(value) for name, value in chosen.items() if name in OWN}
    others = tuple(f"{name}={value:g}" for name, value in chosen.items() if name not in (*OWN, "soften"))
    return replace(settings, **own, parameters=settings.parameters + others)


def _as_set(settings: SimulationSettings, soften: float, grid: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The values that the grid's parameters have now."""
    told = settings.for_policies()
    return {
        name: soften
        if name == "soften"
        else getattr(settings, name)
        if name in OWN
        else getattr(told if hasattr(told, name) else told.olp, name)
        for name in grid
    }


@dataclass(eq=False)
class _Found:
    start: PolicyResult
    best: PolicyResult
    chosen: dict[str, float]
    trials: list[Trial]


def _search(
    play: Callable[[Mapping[str, float]], PolicyResult],
    before: dict[str, float],
    grid: Mapping[str, Sequence[float]],
    progress: Callable[[str], None],
) -> _Found:
    """One parameter after the other, until a pass over all of them changes nothing."""
    start = play(before)
    found = _Found(start, start, dict(before), [_trial(before, start, start)])
    tried = {tuple(before.values())}
    for _ in range(_PASSES):
        at_first = dict(found.chosen)
        for name, values in grid.items():
            for value in values:
                candidate = found.chosen | {name: value}
                if tuple(candidate.values()) in tried:
                    continue
                tried.add(tuple(candidate.values()))
                progress(", ".join(f"{key} {one:g}" for key, one in candidate.items()))
                result = play(candidate)
                trial = _trial(candidate, result, start)
                found.trials.append(trial)
                if trial.fair and trial.efficiency > _efficiency(found.best):
                    found.chosen, found.best = candidate, result
        if found.chosen == at_first:
            break
    return found


def _efficiency(result: PolicyResult) -> float:
    return float(result.mean["efficiency"])


def _trial(parameters: Mapping[str, float], result: PolicyResult, start: PolicyResult) -> Trial:
    now, then = start.mean, result.mean
    held = then["kv_per_slot"] >= (1.0 - _KV_LOSS) * now["kv_per_slot"]
    fair = held and then["wait_s"]["max"] <= _WAIT_GROWTH * max(now["wait_s"]["max"], 1.0)
    return Trial(dict(parameters), _efficiency(result), bool(fair))
