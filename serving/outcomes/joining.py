"""From an outcome as it was told, and the generation that it tells of, to the record that is kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from endcast.curves import CurveTable, Float32Array, FloatArray, IntArray
from endcast.datasets.trace import supposed_service_s
from endcast.predictors.drift import Curve, DriftMonitor
from endcast.predictors.grid import IntervalGrid
from endcast.serving.outcomes.ledger import Generation, LedgerLimits, Scored, key_of
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import OutcomePart, Record, RequestPart, ServedPart, ShadowPart, pack
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.types import EndReason


def outcome_part(told: OutcomeTold, now: float, *, texts: bool) -> OutcomePart:
    """How it ended; at ``now`` (Unix time) if it was not told when."""
    return OutcomePart(
        output_tokens=told.output_tokens,
        end=told.end,
        finished=now if told.finished is None else told.finished,
        output=told.output if texts else None,
    )


def joined(
    told: OutcomePart, found: Generation, live: Live, limits: LedgerLimits, now: float, *, aborts: bool
) -> Record:
    """The record of an outcome whose forecasts are known; ``aborts``: whether those carry the chance of one."""
    drift = None
    hazards = found.hazards if found.bundle == live.bundle and _tells_of_hazards(told) else None
    if hazards is not None and live.grid is not None and live.monitor is not None:
        drift = pack(_drift(live.monitor, live.grid, hazards, told, found.entered))
    scored = found.scored  # read once: the ledger may drop the generation meanwhile
    rows = [one.figures.row(one.row, len(limits.horizons), len(limits.quantiles)) for one in scored]
    return Record(
        key=found.key,
        at=now,
        request=RequestPart.of(found.request, arrival=found.first_s, texts=limits.texts),
        outcome=told,
        served=ServedPart(
            bundle=found.bundle,
            entered=found.entered,
            aborts=aborts,
            landmarks=tuple(one.generated for one in scored),
            horizons=limits.horizons,
            p_end=tuple(row[0] for row in rows),
            quantiles=limits.quantiles,
            reached=tuple(row[1] for row in rows),
            stated=tuple(row[2] for row in rows),
            hazards=None if found.hazards is None else pack(found.hazards[0]),
            drift=drift,
            shadow=_shadow(found, scored, live.shadow),
        ),
    )


def alone(told: OutcomeTold, part: OutcomePart, request: RequestPart | None, now: float) -> Record:
    """The record of an outcome without forecasts: with its ``request``, or pending. A request that does not tell its
    arrival is supposed to have arrived as long before its end as such generations take."""
    if request is not None and request.arrival is None:
        took = supposed_service_s(request.prompt_tokens or 0, part.output_tokens)
        request = msgspec.structs.replace(request, arrival=max(part.finished - float(took), 0.0))
    return Record(
        key=key_of(told.request_id or "", told.forecast_id or ""),
        forecast_id=told.forecast_id,
        at=now,
        request=request,
        outcome=part,
        pending=request is None,
    )


def told_names(record: Record) -> tuple[str | None, str | None]:
    """Forecast id and request id by which a pending outcome was told."""
    return record.forecast_id, record.key[2:] if record.key.startswith("r:") else None


def told_by(record: Record, forecast_id: str | None) -> Record:
    """The record, with the forecast id by which it was told."""
    return record if forecast_id is None else msgspec.structs.replace(record, forecast_id=forecast_id)


def _tells_of_hazards(told: OutcomePart) -> bool:
    return told.output_tokens > 0 and told.end is not EndReason.ERROR


def _shadow(found: Generation, scored: Sequence[Scored], bundle: str | None) -> ShadowPart | None:
    if bundle is None or not any(one.shadow_bundle == bundle for one in scored):
        return None
    p_end = tuple(one.shadow if one.shadow_bundle == bundle else () for one in scored)
    if found.shadow_hazards is None or found.shadow_hazards[0] != bundle:
        return ShadowPart(bundle=bundle, p_end=p_end)
    _, entered, hazards = found.shadow_hazards
    return ShadowPart(bundle=bundle, p_end=p_end, entered=entered, hazards=pack(hazards))


def _drift(
    monitor: DriftMonitor, grid: IntervalGrid, hazards: Float32Array, told: OutcomePart, entered: int
) -> Float32Array:
    """What the drift monitor takes in of an outcome: of the forecast at admission, as served and as the model has it."""
    table = grid.curves(hazards[::-1])
    ended = told.end is EndReason.STOP
    return monitor.measure(told.output_tokens, ended, _curve(table, 0), _curve(table, 1), entered=entered)


def _curve(table: CurveTable, row: int) -> Curve:
    def survival(elapsed: IntArray, further: IntArray) -> FloatArray:
        of = np.full(len(elapsed), row)
        return np.exp(table.log_survival_at(of, elapsed + further) - table.log_survival_at(of, elapsed))

    return survival
