"""Metrics of what outcomes told: read from their figures at each exposition, since they are measured elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from endcast.predictors.drift import DriftReport
    from endcast.serving.outcomes.calibration import Calibration
    from endcast.serving.outcomes.figures import BookFigures, Evidence, LiveFigures

Samples = Iterable[tuple[tuple[str, ...], float]]

#: name → (about, labels); ``_total`` is added to counters. What is not known is left out, never 0.
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "endcast_outcomes": ("Outcomes told, by what became of them.", ("status",)),
    "endcast_outcome_generations": ("Generations whose outcome was taken in, told to whichever process.", ()),
    "endcast_outcomes_unresolved": ("Outcomes that no process had forecast.", ()),
    "endcast_outcome_calls_refused": ("Calls with outcomes that the log could not take.", ()),
    "endcast_outcome_commits": ("Groups of outcomes that were made durable together.", ()),
    "endcast_outcome_lines_lost": ("Lines of the outcome log that could not be used, by why.", ("why",)),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "endcast_outcomes_waiting": ("Outcomes that wait to be written.", ()),
    "endcast_outcomes_backlog": ("Outcomes taken in that a forecaster has still to learn from.", ()),
    "endcast_outcome_commit_seconds": ("Seconds that the last commit to the outcome log took.", ()),
    "endcast_ledger_forecasts": ("Forecasts that wait for their outcome.", ()),
    "endcast_calibration_forecasts": ("Forecasts whose answer is known, of the latest 8,192.", ("horizon",)),
    "endcast_calibration_happened_ratio": ("Share of them that ended within the horizon.", ("horizon",)),
    "endcast_calibration_forecast_ratio": ("Their mean forecast chance to.", ("horizon",)),
    "endcast_calibration_brier": ("Mean squared error of those chances.", ("horizon",)),
    "endcast_calibration_log_loss": ("Mean log loss of those chances, in nats.", ("horizon",)),
    "endcast_calibration_ece": ("Expected calibration error of those chances, 15 equal bins.", ("horizon",)),
    "endcast_calibration_coverage_ratio": ("Share of remaining tokens within the forecast quantile.", ("quantile",)),
    "endcast_calibration_stated_ratio": ("Chance that was stated for that.", ("quantile",)),
    "endcast_model_brier": ("The Brier score by model; the first 32 have a name.", ("model", "horizon")),
    "endcast_model_ece": ("The calibration error by model.", ("model", "horizon")),
    "endcast_tenant_brier": ("The Brier score by tenant; the first 32 have a name.", ("tenant", "horizon")),
    "endcast_tenant_ece": ("The calibration error by tenant.", ("tenant", "horizon")),
    "endcast_drift_alarm": ("1 while ends deviate from what was forecast by more than chance, else 0.", ("forecasts",)),
    "endcast_drift_z": ("Largest deviation of ends from forecasts, in standard deviations.", ()),
    "endcast_drift_threshold": ("Where the alarm is raised.", ()),
    "endcast_drift_ratio": ("Ends that happened for each that was forecast, by measure.", ("measure",)),
    "endcast_shadow_generations": ("Outcomes that both bundles had forecast.", ()),
    "endcast_shadow_brier_difference": ("Brier score of the shadow bundle less the served one's.", ("horizon",)),
    "endcast_shadow_brier_difference_low": ("Lower end of its 95 % interval.", ("horizon",)),
    "endcast_shadow_brier_difference_high": ("Upper end of its 95 % interval.", ("horizon",)),
}


class OutcomeCollector(Collector):
    """Collects from ``figures``, which may have none yet."""

    def __init__(self) -> None:
        self.figures: Callable[[], BookFigures | None] = lambda: None

    def describe(self) -> Iterable[Metric]:
        """All families, without samples."""
        return [_family(name, ()) for name in (*COUNTERS, *GAUGES)]

    def collect(self) -> Iterator[Metric]:
        """The families that have samples now."""
        figures = self.figures()
        if figures is not None:
            for name, samples in _samples(figures):
                yield _family(name, samples)


def _family(name: str, samples: Samples) -> Metric:
    about, labels = COUNTERS[name] if name in COUNTERS else GAUGES[name]
    kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
    family = kind(name, about, labels=labels)
    for values, number in samples:
        if not math.isnan(number):
            family.add_metric(values, number)
    return family


def _one(number: float) -> Samples:
    return [((), float(number))]


def _samples(figures: BookFigures) -> Iterator[tuple[str, Samples]]:
    yield "endcast_outcomes", [((status,), count) for status, count in figures.statuses.items()]
    yield "endcast_outcome_generations", _one(figures.taken)
    yield "endcast_outcomes_unresolved", _one(figures.unresolved)
    yield "endcast_outcome_calls_refused", _one(figures.refused)
    yield "endcast_outcome_commits", _one(figures.commits)
    yield (
        "endcast_outcome_lines_lost",
        [(("torn",), figures.torn_lines), (("damaged",), figures.damaged_lines)],
    )
    yield "endcast_outcomes_waiting", _one(figures.waiting)
    yield "endcast_outcomes_backlog", _one(figures.backlog)
    yield "endcast_outcome_commit_seconds", _one(figures.last_commit_s)
    yield "endcast_ledger_forecasts", _one(figures.ledger)
    yield from _live(figures.live)


def _live(live: LiveFigures) -> Iterator[tuple[str, Samples]]:
    yield from _calibration(live.calibration)
    yield from _named("model", live.by_model)
    yield from _named("tenant", live.by_tenant)
    if live.drift is not None:
        yield from _drift(live.drift)
    if live.evidence is not None:
        yield from _shadow(live.evidence)


def _calibration(found: Calibration) -> Iterator[tuple[str, Samples]]:
    each = {(str(horizon),): figures for horizon, figures in found.horizons.items()}
    yield "endcast_calibration_forecasts", [(at, float(one.forecasts)) for at, one in each.items()]
    yield "endcast_calibration_happened_ratio", [(at, one.happened) for at, one in each.items()]
    yield "endcast_calibration_forecast_ratio", [(at, one.forecast) for at, one in each.items()]
    yield "endcast_calibration_brier", [(at, one.brier) for at, one in each.items()]
    yield "endcast_calibration_log_loss", [(at, one.log_loss) for at, one in each.items()]
    yield "endcast_calibration_ece", [(at, one.ece) for at, one in each.items()]
    quantiles = {(str(q),): figures for q, figures in found.quantiles.items()}
    yield "endcast_calibration_coverage_ratio", [(at, one.coverage) for at, one in quantiles.items()]
    yield "endcast_calibration_stated_ratio", [(at, one.stated) for at, one in quantiles.items()]


def _named(kind: str, found: Mapping[str, Calibration]) -> Iterator[tuple[str, Samples]]:
    each = [((name, str(h)), one) for name, apart in found.items() for h, one in apart.horizons.items()]
    yield f"endcast_{kind}_brier", [(at, one.brier) for at, one in each]
    yield f"endcast_{kind}_ece", [(at, one.ece) for at, one in each]


def _drift(report: DriftReport) -> Iterator[tuple[str, Samples]]:
    alarms = [(("served",), float(report.alarm)), (("model",), float(report.model_alarm))]
    yield "endcast_drift_alarm", alarms
    yield "endcast_drift_z", _one(report.z)
    yield "endcast_drift_threshold", _one(report.threshold)
    yield "endcast_drift_ratio", [((name,), one.ratio) for name, one in report.served.items()]


def _shadow(evidence: Evidence) -> Iterator[tuple[str, Samples]]:
    each = {(str(horizon),): one.brier for horizon, one in evidence.horizons.items()}
    yield "endcast_shadow_generations", _one(evidence.generations)
    yield "endcast_shadow_brier_difference", [(at, one.mean) for at, one in each.items()]
    yield "endcast_shadow_brier_difference_low", [(at, one.low) for at, one in each.items()]
    yield "endcast_shadow_brier_difference_high", [(at, one.high) for at, one in each.items()]
