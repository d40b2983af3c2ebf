"""Simulations of routing policies on a log: one call, one frozen report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from endcast.errors import InputError, SimulationError
from endcast.router.admission import admission_rule
from endcast.router.cluster import UNLIMITED
from endcast.router.engine import KvRules, RunRecord, check_caps, play
from endcast.router.figures import figures
from endcast.router.forecasts import ForecastSource, Landmarked, NoForecast
from endcast.router.policies import POLICIES
from endcast.router.policy import Policy, PolicySettings
from endcast.router.preemption import VICTIMS
from endcast.router.results import PolicyResult, SimulationReport
from endcast.router.scale import StepTime, default_step_time, mean_kv_per_slot, offered_rate, stretched
from endcast.router.workload import Workload

#: A policy's class, as the registry names it.
MakePolicy = Callable[[PolicySettings], Policy]

#: Seed 0 plays the arrivals as they are, any other stretches them by up to this share. Runs are chaotic, but ties
#: alone do not tell those of BR-H apart: a result that a ten-thousandth of the arrivals' spacing changes is no finding.
_SEED_STRETCH = 1e-4

#: What docs/simulating.md measures as the best that preempts fewer than 1 in 100; a prefill of 10,000 tokens a second.
DEFAULT_ADMISSION, DEFAULT_VICTIM, DEFAULT_RECOMPUTE_RATE = "headroom", "newest", 10_000.0


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """The fleet, the load on it and what policies may be told.

    ``workers`` G and ``slots`` B, ≥ 1; ``kv_capacity`` tokens a worker, or none, with ``admission`` rule (``RULE`` or
    ``RULE:NUMBER``), ``victim`` and ``recompute_rate`` tokens/s where it is bounded; ``utilization`` of the offered rate,
    > 0; ``max_overtakes`` 4·G·B unless given; ``step_time`` by the default scale unless given; ``seeds`` runs, numbered
    from ``seed`` on. ``PolicySettings`` has the others.
    """

    workers: int = 8
    slots: int = 64
    kv_capacity: int | None = None
    admission: str = DEFAULT_ADMISSION
    victim: str = DEFAULT_VICTIM
    recompute_rate: float = DEFAULT_RECOMPUTE_RATE
    utilization: float = 1.0
    horizon: int = 20
    discount: float = 0.95
    candidates: int = 64
    max_overtakes: int | None = None
    step_time: StepTime | None = None
    seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        for field in ("workers", "slots", "seeds"):
            value = getattr(self, field)
            if type(value) is not int or not 1 <= value <= 100_000:
                raise InputError(field, f"must be a whole number from 1 to 100000, not {value!r:.60}")
        if type(self.seed) is not int or self.seed < 0:
            raise InputError("seed", f"must be a whole number from 0 on, not {self.seed!r:.60}")
        if self.kv_capacity is not None and (type(self.kv_capacity) is not int or self.kv_capacity < 1):
            raise InputError("kv_capacity", f"must be a whole number of tokens from 1 on, not {self.kv_capacity!r:.60}")
        if not (np.isfinite(self.utilization) and self.utilization > 0.0):
            raise InputError("utilization", f"must be a finite number above 0, not {self.utilization!r:.60}")
        if not (np.isfinite(self.recompute_rate) and self.recompute_rate > 0.0):
            raise InputError("recompute_rate", f"must be a finite number above 0, not {self.recompute_rate!r:.60}")
        self.for_policies()
        self.for_memory()

    def for_policies(self) -> PolicySettings:
        """What policies are made from."""
        bound = 4 * self.workers * self.slots if self.max_overtakes is None else self.max_overtakes
        return PolicySettings(
            horizon=self.horizon, discount=self.discount, candidates=self.candidates, max_overtakes=bound
        )

    def for_memory(self) -> KvRules:
        """What holds where KV memory is bounded."""
        return KvRules(
            admission=admission_rule(self.admission),
            victim=VICTIMS.get(self.victim),
            recompute_rate=self.recompute_rate,
        )

    @property
    def looks_ahead(self) -> bool:
        """Whether admission needs forecasts, whatever the policy."""
        return self.kv_capacity is not None and admission_rule(self.admission).needs_forecast


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


def simulate(
    workload: Workload,
    settings: SimulationSettings,
    *,
    policies: Sequence[str],
    forecasts: Sequence[ForecastSource] = (),
    progress: Callable[[Progress], None] | None = None,
    watch: Callable[[PlayedRun], None] | None = None,
) -> SimulationReport:
    """What each policy would have done with this workload: each that uses forecasts with each source, in that order.

    ``watch`` is shown every run when it has ended, for whoever wants more of it than its figures.
    """
    check_capacity(workload, settings)
    combinations = _combinations(policies, forecasts, settings)
    plan = _Plan.of(workload, settings)
    runs = _Ticker(len(workload) * settings.seeds * len(combinations), progress)
    results = [plan.result(name, POLICIES.get(name), source, runs, watch) for name, source in combinations]
    return SimulationReport(plan.describe(), settings.seeds, tuple(results))


def simulate_policy(
    workload: Workload,
    settings: SimulationSettings,
    name: str,
    policy: MakePolicy,
    source: ForecastSource | None = None,
) -> PolicyResult:
    """What one policy, registered or not, would have done with this workload; results call it ``name``."""
    check_capacity(workload, settings)
    ticker = _Ticker(len(workload) * settings.seeds, None)
    return _Plan.of(workload, settings).result(name, policy, source, ticker, None)


def check_capacity(workload: Workload, settings: SimulationSettings) -> None:
    """``SimulationError`` where no request fits a worker, or caps are needed and missing; for callers with long work to
    do before they simulate."""
    if settings.kv_capacity is None:
        return
    if settings.for_memory().admission.needs_cap:
        check_caps(workload)
    if bool(workload.oversized(settings.kv_capacity).all()):
        raise SimulationError(
            f"each of the {len(workload)} requests is larger than a worker of {settings.kv_capacity} KV tokens",
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


@dataclass(frozen=True)
class _Plan:
    """A workload at the rate asked for, and the scale of the fleet that serves it."""

    workload: Workload
    settings: SimulationSettings
    step_time: StepTime
    kv_per_slot: float
    rate: float

    @classmethod
    def of(cls, workload: Workload, settings: SimulationSettings) -> _Plan:
        kv_per_slot = mean_kv_per_slot(workload.prompt, workload.output)
        step_time = settings.step_time or default_step_time(settings.slots, kv_per_slot)
        rate = offered_rate(
            step_time,
            utilization=settings.utilization,
            workers=settings.workers,
            slots=settings.slots,
            kv_per_slot=kv_per_slot,
            output=workload.output,
        )
        at_rate = workload.at(stretched(workload.arrival_s, rate))
        return cls(at_rate, settings, step_time, kv_per_slot, rate)

    def result(
        self,
        name: str,
        policy: MakePolicy,
        source: ForecastSource | None,
        ticker: _Ticker,
        watch: Callable[[PlayedRun], None] | None,
    ) -> PolicyResult:
        label = None if source is None else source.name
        self.warm_up(policy, source)
        found = []
        for seed in range(self.settings.seed, self.settings.seed + self.settings.seeds):
            record = self.play(policy, source, seed, ticker.next(len(self.workload), name, label, seed))
            found.append(figures(record, workers=self.settings.workers, kv_per_slot=self.kv_per_slot))
            if watch is not None:
                watch(PlayedRun(name, label, seed, self.step_time, record))
        return PolicyResult(name, label, tuple(found))

    def play(
        self, policy: MakePolicy, source: ForecastSource | None, seed: int, tell: Callable[[int], None]
    ) -> RunRecord:
        workload = self.workload
        if seed > 0:
            factor = 1.0 + _SEED_STRETCH * np.random.default_rng([seed, 1]).random()
            workload = workload.at(workload.arrival_s * factor)
        return self._play(workload, policy, source, seed, tell)

    def warm_up(self, policy: MakePolicy, source: ForecastSource | None) -> None:
        """Serve a few requests, so that compiling the kernels is not counted as time to decide."""
        few = np.arange(4)
        tiny = Workload.from_arrays(arrival_s=few.astype(np.float64), prompt=few, output=few + 1, cap=few + 1)
        stand_in: ForecastSource = NoForecast()
        if source is not None and source.shared is None:
            stand_in = Landmarked("", NoForecast().at_admission(few), few, np.ones_like(few), every=1)
        self._play(tiny, policy, stand_in, 0, None)

    def _play(
        self,
        workload: Workload,
        policy: MakePolicy,
        source: ForecastSource | None,
        seed: int,
        tell: Callable[[int], None] | None,
    ) -> RunRecord:
        workers = self.settings.workers
        return play(
            workload,
            policy(self.settings.for_policies()),
            slots=np.full(workers, self.settings.slots),
            capacity=np.full(workers, UNLIMITED if self.settings.kv_capacity is None else self.settings.kv_capacity),
            step_time=self.step_time,
            forecasts=source,
            rng=np.random.default_rng(seed),
            kv=self.settings.for_memory(),
            progress=tell,
        )

    def describe(self) -> dict[str, Any]:
        """The settings as played, as JSON."""
        return {
            **asdict(self.settings),
            "max_overtakes": self.settings.for_policies().max_overtakes,
            "step_time": asdict(self.step_time),
            "kv_per_slot_tokens": self.kv_per_slot,
            "offered_rate": self.rate,
            "requests": len(self.workload),
            "left_out": {reason.replace(" ", "_"): count for reason, count in self.workload.left_out.items()},
        }


class _Ticker:
    """Counts requests served over all runs, and tells."""

    def __init__(self, total: int, progress: Callable[[Progress], None] | None) -> None:
        self._total, self._progress, self._before = total, progress, 0

    def next(self, requests: int, policy: str, forecast: str | None, seed: int) -> Callable[[int], None]:
        """What the next run, of so many requests, tells how many it has served."""
        before, self._before = self._before, self._before + requests

        def tell(served: int) -> None:
            if self._progress is not None:
                self._progress(Progress(before + served, self._total, policy, forecast, seed))

        return tell
