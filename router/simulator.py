"""Simulations of routing policies on a log: one call, one frozen report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from endcast.errors import SimulationError
from endcast.router.engine import check_caps
from endcast.router.figures import Figures, figures
from endcast.router.forecasts import ForecastSource
from endcast.router.parallel import played
from endcast.router.plan import MakePolicy, Plan
from endcast.router.policies import POLICIES
from endcast.router.record import RunRecord
from endcast.router.results import PolicyResult, SimulationReport
from endcast.router.scale import StepTime
from endcast.router.simulation_settings import (
    DEFAULT_ADMISSION,
    DEFAULT_RECOMPUTE_RATE,
    DEFAULT_VICTIM,
    SimulationSettings,
)
from endcast.router.workload import Workload

__all__ = [
    "DEFAULT_ADMISSION", "DEFAULT_RECOMPUTE_RATE", "DEFAULT_VICTIM", "Kept", "PlayedRun", "Progress", "SimulationSettings",
    "check_capacity", "simulate", "simulate_policy",
]  # fmt: skip


@dataclass(frozen=True)
class Progress:
    """How far a simulation is: ``done`` of ``total`` requests over all runs, and the run going on."""

    done: int
    total: int
    policy: str
    forecast: str | None
    seed: int


@dataclass(frozen=True, eq=False)
class PlayedRun:
    """One of a simulation's runs, request by request, and how long its steps took."""

    policy: str
    forecast: str | None
    seed: int
    step_time: StepTime
    record: RunRecord


@dataclass(frozen=True)
class _Task:
    """One run: which of the combinations, and its seed."""

    combination: int
    seed: int


@dataclass(eq=False)
class _Player:
    """Plays tasks of a plan, here or in a process of its own."""

    plan: Plan
    combinations: Sequence[tuple[str, ForecastSource | None]]
    warm: set[int] = field(default_factory=set)

    def __call__(self, task: _Task, tell: Callable[[int], None]) -> RunRecord:
        name, source = self.combinations[task.combination]
        policy = POLICIES.get(name)
        if task.combination not in self.warm:
            self.plan.warm_up(policy, source)
            self.warm.add(task.combination)
        return self.plan.play(policy, source, task.seed, tell)


class RunStore(Protocol):
    """Where finished runs are kept."""

    def load(self, key: str) -> RunRecord | None:
        """The run of that key, if there is one."""

    def save(self, key: str, record: RunRecord) -> None:
        """Keep a run."""


@dataclass(frozen=True)
class Kept:
    """A ``store``, and what runs depend on that the plan does not know, such as how forecasts were made."""

    store: RunStore
    told: str = ""


def simulate(
    workload: Workload,
    settings: SimulationSettings,
    *,
    policies: Sequence[str],
    forecasts: Sequence[ForecastSource] = (),
    progress: Callable[[Progress], None] | None = None,
    watch: Callable[[PlayedRun], None] | None = None,
    jobs: int = 1,
    kept: Kept | None = None,
) -> SimulationReport:
    """What each policy would have done with this workload: each that uses forecasts with each source, in that order.

    ``watch`` is shown every run when it has ended, for whoever wants more of it than its figures, in that order too.
    With ``jobs`` > 1 as many runs are played at the same time, each in a process with a copy of workload and forecasts;
    only ``decision_ms``, which is measured, can differ. Runs that are ``kept`` already are not played again.
    """
    check_capacity(workload, settings)
    plan, combinations = Plan.of(workload, settings), _combinations(policies, forecasts, settings)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    tasks = [_Task(i, seed) for i in range(len(combinations)) for seed in seeds]
    ticker = _Ticker(len(workload), [(*_named(*combinations[task.combination]), task.seed) for task in tasks], progress)
    found: list[Figures] = []
    for task, record in zip(tasks, _records(_Player(plan, combinations), tasks, jobs, kept, ticker), strict=True):
        found.append(figures(record, kv_per_slot=plan.kv_per_slot))
        if watch is not None:
            name, label = _named(*combinations[task.combination])
            watch(PlayedRun(name, label, task.seed, plan.step_time, record))
    results = [
        PolicyResult(*_named(*pair), tuple(found[i * len(seeds) : (i + 1) * len(seeds)]))
        for i, pair in enumerate(combinations)
    ]
    return SimulationReport(plan.describe(), settings.seeds, tuple(results))


def _named(policy: str, source: ForecastSource | None) -> tuple[str, str | None]:
    return policy, None if source is None else source.name


def _records(
    player: _Player, tasks: Sequence[_Task], jobs: int, kept: Kept | None, ticker: _Ticker
) -> Iterator[RunRecord]:
    """Records of all tasks, in order: those kept, and those played, which are kept from then on."""
    keys = [] if kept is None else [_key(player, task, kept) for task in tasks]
    held = [] if kept is None else [kept.store.load(key) for key in keys]
    ticker.done([i for i, record in enumerate(held) if record is not None])
    missing = [i for i in range(len(tasks)) if not held or held[i] is None]
    fresh: Generator[RunRecord, None, None]
    if jobs > 1 and len(missing) > 1:
        fresh = played(player, [tasks[i] for i in missing], jobs, lambda i, served: ticker.tell(missing[i], served))
    else:
        fresh = (player(tasks[i], partial(ticker.tell, i)) for i in missing)
    with closing(fresh):
        for i in range(len(tasks)):
            record = held[i] if held else None
            if record is None:
                record = next(fresh)
                if kept is not None:
                    kept.store.save(keys[i], record)
            elif held:
                held[i] = None
            yield record


def _key(player: _Player, task: _Task, kept: Kept) -> str:
    policy, source = player.combinations[task.combination]
    return player.plan.key(policy, source, task.seed, kept.told)


def simulate_policy(
    workload: Workload,
    settings: SimulationSettings,
    name: str,
    policy: MakePolicy,
    source: ForecastSource | None = None,
) -> PolicyResult:
    """What one policy, registered or not, would have done with this workload; results call it ``name``."""
    check_capacity(workload, settings)
    plan = Plan.of(workload, settings)
    plan.warm_up(policy, source)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    records = (plan.play(policy, source, seed, lambda served: None) for seed in seeds)
    return PolicyResult(*_named(name, source), tuple(figures(one, kv_per_slot=plan.kv_per_slot) for one in records))


def check_capacity(workload: Workload, settings: SimulationSettings) -> None:
    """``SimulationError`` where no request fits a worker, or caps are needed and missing; for callers with long work to
    do before they simulate."""
    if settings.kv_capacity is None:
        return
    if settings.for_memory().admission.needs_cap:
        check_caps(workload)
    most = int(settings.capacity_each.max())
    if bool(workload.oversized(most).all()):
        raise SimulationError(
            f"each of the {len(workload)} requests is larger than a worker of {most} KV tokens",
            hint=f"The smallest needs {int((workload.prompt + workload.output).min())}",
        )


def _combinations(
    policies: Sequence[str], forecasts: Sequence[ForecastSource], settings: SimulationSettings
) -> list[tuple[str, ForecastSource | None]]:
    """Each policy, with each source where it uses forecasts, in the order given."""
    if not policies:
        raise SimulationError("no policy was named", hint=f"Known: {', '.join(POLICIES)}")
    pairs: list[tuple[str, ForecastSource | None]] = []
    for name in policies:
        needs_forecast = POLICIES.get(name)(settings.for_policies()).needs_forecast or settings.looks_ahead
        if needs_forecast and not forecasts:
            raise SimulationError(f"{name} uses forecasts and none were given", hint="Name some, such as kaplan_meier")
        pairs += [(name, source) for source in forecasts] if needs_forecast else [(name, None)]
    return pairs


class _Ticker:
    """Counts requests served over all runs, and tells."""

    def __init__(
        self,
        requests: int,
        runs: Sequence[tuple[str, str | None, int]],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._requests, self._runs, self._progress = requests, runs, progress
        self._served = [0] * len(runs)

    def done(self, runs: Sequence[int]) -> None:
        """These runs need not be played."""
        for run in runs:
            self.tell(run, self._requests)

    def tell(self, run: int, served: int) -> None:
        """Of the run of that number so many requests have been served."""
        self._served[run] = served
        if self._progress is not None:
            self._progress(Progress(sum(self._served), self._requests * len(self._runs), *self._runs[run]))
