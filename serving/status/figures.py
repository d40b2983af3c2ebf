"""What the status page shows, put together from the metrics, the bundle and what outcomes told."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import endcast
from endcast.serving.context import Context
from endcast.serving.status.activity import Activity
from endcast.serving.status.schema import (
    DriftStatus,
    GroupRow,
    HorizonRow,
    MeasureRow,
    QuantileRow,
    ShadowStatus,
    StatusReply,
)

if TYPE_CHECKING:
    from endcast.predictors.drift import DriftReport
    from endcast.serving.outcomes.calibration import Calibration
    from endcast.serving.outcomes.figures import BookFigures, Evidence

#: What of a manifest is too long for a card, or says nothing to people.
NOT_ON_CARD = frozenset({"files", "columns", "interval_columns"})


def status_of(context: Context, activity: Activity, *, now: float, uptime_s: float) -> StatusReply:
    """The status of one process now."""
    loaded = context.bundles.current
    figures = None if context.outcomes is None else context.outcomes.figures()
    degraded = _gauge(context, "endcast_degraded") > 0.0
    return StatusReply(
        status="degraded" if degraded else "ready",
        bundle=loaded.id,
        state_version=loaded.state_version,
        endcast=endcast.__version__,
        process=os.getpid(),
        processes=context.settings.processes,
        now=now,
        uptime_s=uptime_s,
        waiting_calls=int(_gauge(context, "endcast_waiting_calls")),
        open_streams=int(_gauge(context, "endcast_open_streams")),
        degraded_forecasts=int(_gauge(context, "endcast_degraded_forecasts_total")),
        rates=activity.rates(),
        outcomes={} if figures is None else dict(figures.statuses),
        calibration=[] if figures is None else _horizons(figures.live.calibration),
        quantiles=[] if figures is None else _quantiles(figures.live.calibration),
        groups=[] if figures is None else _groups(figures),
        drift=None if figures is None or figures.live.drift is None else _drift(figures.live.drift),
        shadow=None if figures is None or figures.live.evidence is None else _shadow(figures.live.evidence),
        card={name: value for name, value in loaded.manifest.items() if name not in NOT_ON_CARD},
    )


def _gauge(context: Context, name: str) -> float:
    return context.metrics.registry.get_sample_value(name) or 0.0


def _finite(number: float) -> float | None:
    """JSON knows no NaN; what is not known is null."""
    return number if math.isfinite(number) else None


def _horizons(found: Calibration) -> list[HorizonRow]:
    return [
        HorizonRow(
            horizon=horizon,
            forecasts=one.forecasts,
            forecast=_finite(one.forecast),
            happened=_finite(one.happened),
            brier=_finite(one.brier),
            ece=_finite(one.ece),
        )
        for horizon, one in found.horizons.items()
    ]


def _quantiles(found: Calibration) -> list[QuantileRow]:
    return [
        QuantileRow(quantile=q, forecasts=one.forecasts, coverage=_finite(one.coverage), stated=_finite(one.stated))
        for q, one in found.quantiles.items()
    ]


def _groups(figures: BookFigures) -> list[GroupRow]:
    kinds: Mapping[str, Mapping[str, Calibration]] = {"model": figures.live.by_model, "tenant": figures.live.by_tenant}
    rows = [
        GroupRow(kind=kind, name=name, generations=found.generations, horizons=_horizons(found))
        for kind, apart in kinds.items()
        for name, found in apart.items()
    ]
    return sorted(rows, key=lambda row: (row.kind, -row.generations))


def _drift(report: DriftReport) -> DriftStatus:
    measures = [
        MeasureRow(measure=name, happened=one.happened, forecast=one.forecast, z=_finite(one.z), alarm=one.alarm)
        for name, one in report.served.items()
        if math.isfinite(one.happened) and math.isfinite(one.forecast)
    ]
    return DriftStatus(
        alarm=report.alarm,
        model_alarm=report.model_alarm,
        outcomes=report.outcomes,
        threshold=report.threshold,
        explanation=report.explanation,
        measures=measures,
    )


def _shadow(evidence: Evidence) -> ShadowStatus:
    return ShadowStatus(
        bundle=evidence.shadow,
        generations=evidence.generations,
        verdict=evidence.verdict,
        differences={str(horizon): _finite(one.brier.mean) for horizon, one in evidence.horizons.items()},
    )
