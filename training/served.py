"""What a forecaster would have said while a log happened: a curve for each request when it arrived, and along its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.forecaster import Forecaster, ForecastStream
from endcast.predictors.bundle import Bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.survival import CurveTable, SurvivalBatch
from endcast.training.alignment import written
from endcast.training.curve_room import CurveRoom
from endcast.training.replay import events
from endcast.types import Landmark

#: Requests whose curves are made in one call where nothing finished between them.
LARGEST_BATCH = 256


@dataclass(frozen=True, eq=False)
class Served:
    """``rows`` (n,) of the trace, in order of arrival, and the ``batch`` of their n forecasts at admission."""

    rows: IntArray
    batch: SurvivalBatch


def served_batches(
    forecaster: Forecaster,
    trace: Trace,
    wanted: BoolArray,
    *,
    observed: BoolArray | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Iterator[tuple[IntArray, SurvivalBatch]]:
    """Live through ``trace``: forecast each ``wanted`` (n,) request at its arrival, observe each ``observed`` (n,) end
    (all by default) when it happened. Rows (k,) of the trace and their forecasts, batch by batch in order of arrival."""
    waiting: list[tuple[int, Landmark]] = []

    def made() -> Iterator[tuple[IntArray, SurvivalBatch]]:
        if waiting:
            rows = np.array([row for row, _ in waiting], dtype=np.int64)
            yield rows, forecaster.forecast_batch([landmark for _, landmark in waiting], 0)
            waiting.clear()

    for event in events(trace, seed):
        if event.completion is not None:
            if observed is None or observed[event.row]:
                yield from made()
                forecaster.observe([event.completion])
            continue
        if wanted[event.row]:
            waiting.append((event.row, Landmark(request=event.request)))
            if len(waiting) == LARGEST_BATCH:
                yield from made()
        advance(1)
    yield from made()


def serve_trace(
    forecaster: Forecaster,
    trace: Trace,
    wanted: BoolArray,
    *,
    observed: BoolArray | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Served:
    """All of ``served_batches`` at once."""
    made = list(served_batches(forecaster, trace, wanted, observed=observed, seed=seed, advance=advance))
    return Served(np.concatenate([rows for rows, _ in made]), _join([batch for _, batch in made]))


def forecast_rows(forecaster: Forecaster, trace: Trace) -> SurvivalBatch:
    """(n,), the forecast at admission of every request, row by row, by one that observes what finishes in the log; in
    bounded memory, however long that is (``endcast.training.curve_room``)."""
    kept = CurveRoom(len(trace))
    for rows, batch in served_batches(forecaster, trace, np.ones(len(trace), dtype=bool)):
        kept.put(rows, batch)
    return kept.batch()


@dataclass(frozen=True, eq=False)
class AlongOutputs:
    """Forecasts made anew along outputs: request i has rows ``first[i]`` … ``first[i] + count[i] − 1`` of ``batch``, made
    at 0, ``every``, 2·``every`` … generated tokens, each reading from its landmark on, as far as was asked."""

    batch: SurvivalBatch
    first: IntArray
    count: IntArray
    every: int

    def at(self, request: IntArray, elapsed: IntArray) -> SurvivalBatch:
        """Forecasts of requests (r,) after ``elapsed`` (r,) tokens: the latest made by then, conditioned."""
        landmark = np.minimum(elapsed // self.every, self.count[request] - 1)
        return self.batch.take(self.first[request] + landmark).advance(elapsed - landmark * self.every)


def serve_outputs(
    forecaster: Forecaster,
    trace: Trace,
    wanted: BoolArray,
    *,
    every: int,
    reach: int,
    observed: BoolArray | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> tuple[Served, AlongOutputs]:
    """Live through ``trace`` as ``serve_trace`` does, and read each wanted request's output as it was written, the way a
    router does: through streams. Curves along outputs reach ``reach`` tokens ahead of the latest one."""
    rows: list[int] = []
    streams: list[ForecastStream] = []
    admissions: list[SurvivalBatch] = []
    along = _Walk(trace, every, reach)

    def flush() -> None:
        if streams:
            admissions.append(forecaster.forecast_batch(streams, 0))
            along.walk(forecaster, streams, rows[-len(streams) :])
            streams.clear()

    for event in events(trace, seed):
        if event.completion is not None:
            if observed is None or observed[event.row]:
                forecaster.observe([event.completion])
            continue
        if wanted[event.row]:
            rows.append(event.row)
            streams.append(forecaster.open(event.request))
            if len(streams) == LARGEST_BATCH:
                flush()
        advance(1)
    flush()
    return Served(np.array(rows, dtype=np.int64), _join(admissions)), along.finish()


class _Walk:
    """Streams that read their outputs side by side, from landmark to landmark."""

    def __init__(self, trace: Trace, every: int, reach: int) -> None:
        self._outputs = trace.table.column("output")
        self._lengths = trace.output_tokens
        self._every, self._reach = every, reach
        self._count: list[IntArray] = []
        self._order: list[IntArray] = []  # (rows made,), request · 2^32 + landmark
        self._made: list[SurvivalBatch] = []
        self._requests = 0

    def walk(self, forecaster: Forecaster, streams: list[ForecastStream], rows: list[int]) -> None:
        """Take fresh streams, opened for these rows of the trace, through their outputs."""
        lengths = self._lengths[rows]
        texts = [self._outputs[row].as_py() or "" for row in rows]
        count = 1 + (np.maximum(lengths, 1) - 1) // self._every
        so_far = [0] * len(rows)
        for landmark in range(int(count.max())):
            running = np.flatnonzero(count > landmark)
            tokens = landmark * self._every
            for i in running.tolist() if landmark else ():
                upto = written(len(texts[i]), tokens, int(lengths[i]))
                streams[i].append(texts[i][so_far[i] : upto], tokens)
                so_far[i] = upto
            batch = forecaster.forecast_batch([streams[i] for i in running.tolist()], 0)
            self._made.append(_rebased(batch, self._reach + self._every))
            self._order.append(((self._requests + running) << 32) + landmark)
        self._count.append(count)
        self._requests += len(rows)

    def finish(self) -> AlongOutputs:
        """All of them, request by request."""
        count = np.concatenate(self._count)
        order = np.argsort(np.concatenate(self._order))
        return AlongOutputs(_join(self._made).take(order), np.cumsum(count) - count, count, self._every)


def _rebased(batch: SurvivalBatch, reach: int) -> SurvivalBatch:
    """The same forecasts on a table whose curves begin where each stands, and are exact up to ``reach`` tokens further."""
    edges = np.unique(np.append(batch.table.edges[batch.table.edges < reach], reach))
    rows = np.arange(len(batch))
    log = batch.table.log_survival_at(batch.row[:, None], batch.position[:, None] + edges)
    table = CurveTable.from_log_survival(edges, log - log[:, :1])
    return SurvivalBatch(table, rows, np.zeros_like(rows), batch.cap, 0)


def forecast_trace(bundle: Bundle, trace: Trace) -> SurvivalBatch:
    """``forecast_rows`` of a bundle."""
    return forecast_rows(OnnxForecaster(bundle), trace)


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
