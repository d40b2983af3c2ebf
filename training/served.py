"""What a forecaster would have said while a log happened: one curve for each request, made when it arrived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.forecaster import Forecaster
from endcast.predictors.bundle import Bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.survival import CurveTable, SurvivalBatch
from endcast.training.replay import events
from endcast.types import Landmark

#: Requests whose curves are made in one call where nothing finished between them.
LARGEST_BATCH = 256


@dataclass(frozen=True, eq=False)
class Served:
    """``rows`` (n,) of the trace, in order of arrival, and the ``batch`` of their n forecasts at admission."""

    rows: IntArray
    batch: SurvivalBatch


def serve_trace(
    forecaster: Forecaster,
    trace: Trace,
    wanted: BoolArray,
    *,
    observed: BoolArray | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Served:
    """Live through ``trace``: forecast each ``wanted`` (n,) request at its arrival, observe each ``observed`` (n,) end
    (all by default) when it happened."""
    waiting: list[tuple[int, Landmark]] = []
    rows: list[int] = []
    batches: list[SurvivalBatch] = []

    def flush() -> None:
        if waiting:
            batches.append(forecaster.forecast_batch([landmark for _, landmark in waiting], 0))
            rows.extend(row for row, _ in waiting)
            waiting.clear()

    for event in events(trace, seed):
        if event.completion is not None:
            if observed is None or observed[event.row]:
                flush()
                forecaster.observe([event.completion])
            continue
        if wanted[event.row]:
            waiting.append((event.row, Landmark(request=event.request)))
            if len(waiting) == LARGEST_BATCH:
                flush()
        advance(1)
    flush()
    return Served(np.array(rows, dtype=np.int64), _join(batches))


def forecast_trace(bundle: Bundle, trace: Trace) -> SurvivalBatch:
    """(n,), the forecast at admission of every request by one bundle that observes what finishes in the log."""
    served = serve_trace(OnnxForecaster(bundle), trace, np.ones(len(trace), dtype=bool))
    return served.batch.take(np.argsort(served.rows, kind="stable"))


def _join(batches: list[SurvivalBatch]) -> SurvivalBatch:
    """One batch of all, its curves kept in one table (shared where the forecaster shares them)."""
    first = batches[0].table
    sizes = [len(batch) for batch in batches]
    position, cap = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("position", "cap"))
    if all(batch.table is first for batch in batches):
        return SurvivalBatch(first, np.concatenate([batch.row for batch in batches]), position, cap, 0)
    log_survival: npt.NDArray[np.float64] = np.concatenate([b.table.log_survival[b.row] for b in batches])
    log_tail = np.concatenate([b.table.log_tail[b.row] for b in batches])
    return SurvivalBatch(CurveTable(first.edges, log_survival, log_tail), np.arange(sum(sizes)), position, cap, 0)
