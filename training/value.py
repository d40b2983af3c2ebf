"""What forecasts buy in placement: forecast value captured, each forecast at the settings that suit it.

The window that suits a forecast depends on how sharp it is, so horizon, discount and softening are tuned for each one, and
for true lengths, on the first part of a log. The rest of the log reports: BR-H with that forecast, with true lengths at
the same horizon and discount, and BR-0, which needs no forecast. BR-H is the published form, which follows its forecasts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from endcast.errors import InputError
from endcast.router.forecasts import ForecastSource, Oracle
from endcast.router.results import PolicyResult, forecast_value_captured
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.soften import Softened
from endcast.router.workload import Workload

ORACLE = "oracle"
#: Told how many runs are done, of how many at most, and what is being measured.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class ValueSettings:
    """The fleets (``workers`` × ``slots``), their load, what is tried when tuning, and how often.

    ``validation`` is the share of requests, the first to arrive, on which settings are chosen; ``soften`` are shares of
    the reference forecast. ``max_overtakes`` is 4·G·B.
    """

    workers: tuple[int, ...] = (8, 32)
    slots: int = 32
    utilization: float = 1.05
    candidates: int = 64
    horizons: tuple[int, ...] = (20, 40, 80)
    discounts: tuple[float, ...] = (0.95, 0.98)
    soften: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7)
    validation: float = 0.3
    tuning_seeds: int = 2
    seeds: int = 4

    def fleet(self, workers: int, horizon: int, discount: float, seeds: int) -> SimulationSettings:
        """One of the fleets, as the simulator takes it."""
        return SimulationSettings(
            workers=workers,
            slots=self.slots,
            utilization=self.utilization,
            candidates=self.candidates,
            horizon=horizon,
            discount=discount,
            seeds=seeds,
        )


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, result: PolicyResult, *path: str) -> Spread:
        """Of one of a result's figures, such as ``"wait_s", "max"``."""
        mean, deviation = result.mean, result.spread
        for name in path[:-1]:
            mean, deviation = mean[name], deviation[name]
        return cls(float(mean[path[-1]]), float(deviation[path[-1]]))


@dataclass(frozen=True)
class PlacementFigures:
    """What a run is judged by: throughput alone can be gamed by leaving heavy prompts waiting."""

    efficiency: Spread
    throughput: Spread  #: tokens/s
    kv_per_slot: Spread  #: KV of a busy slot over the log's mean; 1 = nothing heavy was deferred
    longest_wait_s: Spread

    @classmethod
    def of(cls, result: PolicyResult) -> PlacementFigures:
        """Of a simulation's result."""
        return cls(
            efficiency=Spread.of(result, "efficiency"),
            throughput=Spread.of(result, "throughput"),
            kv_per_slot=Spread.of(result, "kv_per_slot"),
            longest_wait_s=Spread.of(result, "wait_s", "max"),
        )


@dataclass(frozen=True)
class Tuning:
    """The settings that served a forecast best on the validation part, and the mean efficiency that they gave there."""

    horizon: int
    discount: float
    soften: float
    efficiency: float


@dataclass(frozen=True)
class PlacementValue:
    """One forecast on one fleet, on the reporting part."""

    forecast: str
    workers: int
    tuning: Tuning
    figures: PlacementFigures
    without: PlacementFigures  #: BR-0
    truth: PlacementFigures  #: true lengths at the same horizon and discount, not softened
    best_truth: PlacementFigures  #: true lengths at the settings that suit them, softened if that suits them

    @property
    def captured(self) -> float | None:
        """Forecast value captured, by its definition: all at the same horizon and discount; above 1 where softening or
        luck beats plain truth, ``None`` where truth gains nothing."""
        return self._share_of(self.truth)

    @property
    def captured_of_best(self) -> float | None:
        """The same against the most that true lengths give at any of the settings tried."""
        return self._share_of(self.best_truth)

    def _share_of(self, truth: PlacementFigures) -> float | None:
        model, without = self.figures.efficiency.mean, self.without.efficiency.mean
        return forecast_value_captured(model, without, truth.efficiency.mean)


def measure_value(
    workload: Workload,
    forecasts: Mapping[str, ForecastSource],
    *,
    reference: ForecastSource,
    settings: ValueSettings | None = None,
    progress: Progress = lambda done, total, what: None,
) -> tuple[PlacementValue, ...]:
    """Each of ``forecasts`` by name, and true lengths as ``oracle``, on each fleet.

    Softening blends towards ``reference``, which is not softened itself.
    """
    if ORACLE in forecasts:
        raise InputError("forecasts", f"{ORACLE} is always measured and must not be among them")
    settings = settings or ValueSettings()
    sources = {**forecasts, ORACLE: truth_of(workload)}
    early, late = validation_split(workload, settings.validation)
    ticker = _Ticker(settings, sources, reference, progress)
    values: list[PlacementValue] = []
    for workers in settings.workers:
        bench = _Bench(late, workers, settings, reference, ticker)
        tuned = {
            name: _tune(early, workers, name, source, settings, reference, ticker) for name, source in sources.items()
        }
        values += bench.values(sources, tuned)
    ticker.finish()
    return tuple(values)


def truth_of(workload: Workload) -> Oracle:
    """True lengths of a workload's requests."""
    output = np.zeros(int(workload.row.max()) + 1, dtype=np.int64)
    output[workload.row] = workload.output
    return Oracle(output)


def validation_split(workload: Workload, share: float) -> tuple[Workload, Workload]:
    """The first ``share`` of the requests to arrive, and the others."""
    if not 0.0 < share < 1.0:
        raise InputError("validation", f"must lie strictly between 0 and 1, not {share!r:.60}")
    early = np.arange(len(workload)) < round(share * len(workload))
    return workload.take(early), workload.take(~early)


def softened(source: ForecastSource, reference: ForecastSource, weight: float) -> ForecastSource:
    """``source`` with a share of ``reference``; itself where that is none."""
    return source if weight == 0.0 else Softened(source, reference, weight)


def _tried(
    settings: ValueSettings, source: ForecastSource, reference: ForecastSource
) -> list[tuple[int, float, float]]:
    """Horizon, discount and softening to be tried."""
    soften = (0.0,) if source is reference else settings.soften
    return list(itertools.product(settings.horizons, settings.discounts, soften))


def _tune(
    early: Workload,
    workers: int,
    name: str,
    source: ForecastSource,
    settings: ValueSettings,
    reference: ForecastSource,
    ticker: _Ticker,
) -> Tuning:
    """The most efficient of all settings tried, of equal ones the first."""
    found = []
    for horizon, discount, weight in _tried(settings, source, reference):
        ticker.tick(settings.tuning_seeds, f"tuning {name}, {workers} workers")
        fleet = settings.fleet(workers, horizon, discount, settings.tuning_seeds)
        report = simulate(early, fleet, policies=["br_h_published"], forecasts=[softened(source, reference, weight)])
        found.append(Tuning(horizon, discount, weight, float(report.results[0].mean["efficiency"])))
    return max(found, key=lambda tuning: tuning.efficiency)


class _Bench:
    """The reporting part on one fleet; what several forecasts are compared with is played once."""

    def __init__(
        self, late: Workload, workers: int, settings: ValueSettings, reference: ForecastSource, ticker: _Ticker
    ) -> None:
        self._late, self._workers, self._settings, self._ticker = late, workers, settings, ticker
        self._reference, self._truth = reference, truth_of(late)
        self._plain_truth = cache(
            lambda horizon, discount: self._play("br_h_published", self._truth, horizon, discount)
        )

    def values(self, sources: Mapping[str, ForecastSource], tuned: Mapping[str, Tuning]) -> list[PlacementValue]:
        without = self._play("br_0", None, 0, 1.0)
        found = {name: self._tuned(source, tuned[name]) for name, source in sources.items()}
        return [
            PlacementValue(
                forecast=name,
                workers=self._workers,
                tuning=tuned[name],
                figures=figures,
                without=without,
                truth=self._plain_truth(tuned[name].horizon, tuned[name].discount),
                best_truth=found[ORACLE],
            )
            for name, figures in found.items()
        ]

    def _tuned(self, source: ForecastSource, tuning: Tuning) -> PlacementFigures:
        soft = softened(source, self._reference, tuning.soften)
        return self._play("br_h_published", soft, tuning.horizon, tuning.discount)

    def _play(self, policy: str, source: ForecastSource | None, horizon: int, discount: float) -> PlacementFigures:
        settings = self._settings
        self._ticker.tick(settings.seeds, f"reporting, {self._workers} workers")
        fleet = settings.fleet(self._workers, horizon, discount, settings.seeds)
        played = simulate(self._late, fleet, policies=[policy], forecasts=[] if source is None else [source])
        return PlacementFigures.of(played.results[0])


class _Ticker:
    """Counts runs, against the most that there can be: plain truth is played twice only where settings differ."""

    def __init__(
        self,
        settings: ValueSettings,
        sources: Mapping[str, ForecastSource],
        reference: ForecastSource,
        progress: Progress,
    ) -> None:
        tuning = settings.tuning_seeds * sum(len(_tried(settings, one, reference)) for one in sources.values())
        self._total = len(settings.workers) * (tuning + settings.seeds * (2 * len(sources) + 1))
        self._done, self._progress = 0, progress

    def tick(self, runs: int, what: str) -> None:
        """So many runs begin."""
        self._progress(self._done, self._total, what)
        self._done += runs

    def finish(self) -> None:
        """All runs are done."""
        self._progress(self._total, self._total, "done")
