"""What is counted and measured of outcomes, as plain frozen values: metrics and the status page read these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endcast.predictors.drift import DriftReport
from endcast.serving.outcomes.calibration import Calibration
from endcast.serving.outcomes.schema import Verdict
from endcast.serving.shadow.comparison import Interval


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Mean scores of both bundles on the same forecasts, and shadow − served: below 0, the shadow bundle is better."""

    served_brier: float
    shadow_brier: float
    brier: Interval
    served_log: float
    shadow_log: float
    log: Interval


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What speaks for a shadow bundle: by horizon, and its Brier score over all of them."""

    served: str
    shadow: str
    generations: int
    forecasts: int
    horizons: Mapping[int, Compared]
    overall: Interval

    @property
    def verdict(self) -> Verdict:
        """In words, at 95 %."""
        if self.overall.high < 0.0:
            return "shadow is better"
        return "served is better" if self.overall.low > 0.0 else "no difference shown"


@dataclass(frozen=True, kw_only=True)
class LiveFigures:
    """All that is measured on outcomes of one bundle's forecasts, of a moment."""

    bundle: str
    outcomes: int  #: with forecasts of that bundle
    contradicted: int  #: forecasts of generations that had ended before, as outcomes say
    calibration: Calibration
    by_model: Mapping[str, Calibration]
    by_tenant: Mapping[str, Calibration]
    drift: DriftReport | None  #: None of forecasters that have no grid
    evidence: Evidence | None  #: None without a shadow bundle


@dataclass(frozen=True, kw_only=True)
class BookFigures:
    """Counts of one process since it began, and what is measured (over all processes that share a log)."""

    statuses: Mapping[str, int]  #: outcomes told to this process
    taken: int  #: generations taken in, told to whichever process
    unresolved: int  #: pending ones that no process had forecast
    waiting: int  #: in the queue
    backlog: int  #: taken in, and not yet told to a forecaster
    refused: int  #: calls that the log could not take
    commits: int
    last_commit_s: float  #: how long the last one took
    ledger: int  #: forecasts that wait for their outcome
    torn_lines: int  #: cut off: a crash had left them unfinished
    lost_segments: int  #: deleted before they were read
    damaged_lines: int
    live: LiveFigures
