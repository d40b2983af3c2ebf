"""Forecasts at admission over a whole log, none by a model that saw the request: each half by time is forecast by the other.

History features see the past only: the first half starts with an empty memory, the second with what the first left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from endcast.datasets.trace import BoolArray, Trace
from endcast.errors import TrainingError
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.survival import CurveTable, SurvivalBatch
from endcast.training.curve_room import room
from endcast.training.served import forecast_rows
from endcast.training.train import Settings, train

Tell = Callable[[str], None]
#: Curves moved to another grid in one go.
_ROWS_AT_ONCE = 4096


def crossfit(trace: Trace, settings: Settings, *, tell: Tell = lambda text: None) -> SurvivalBatch:
    """(n,), the forecast at admission of every request of ``trace``, row by row."""
    middle = np.sort(trace.arrival_ns)[len(trace) // 2]
    early = trace.arrival_ns < middle
    if early.all() or not early.any():
        raise TrainingError("all requests arrive at one instant", hint="Give the log other arrivals")
    halves = []
    for name, used in (("first", early), ("second", ~early)):
        tell(f"training on the other half for the {name} half")
        bundle = _bundle(trace.take(~used), settings, tell)
        halves.append(_forecast(bundle, trace, used, remembers=name == "second"))
    return _merge(halves[0], halves[1], early)


def _bundle(half: Trace, settings: Settings, tell: Tell) -> Bundle:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        train(half, replace(settings, split="all", read_outputs=False), out, tell=tell)
        return read_bundle(out)


def _forecast(bundle: Bundle, trace: Trace, used: BoolArray, *, remembers: bool) -> SurvivalBatch:
    """Forecasts of the ``used`` rows, in the trace's order."""
    return forecast_rows(OnnxForecaster(bundle, remembers=remembers), trace.take(np.flatnonzero(used)))


def _merge(first: SurvivalBatch, second: SurvivalBatch, early: BoolArray) -> SurvivalBatch:
    """Both halves in one table on the union of their edges, rows in the order of the trace."""
    edges = np.union1d(first.table.edges, second.table.edges)
    log_survival, log_tail = room(len(early), len(edges)), np.empty(len(early))
    position, cap = (np.empty(len(early), dtype=np.int64) for _ in range(2))
    for batch, rows in ((first, np.flatnonzero(early)), (second, np.flatnonzero(~early))):
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            own, curve = rows[start : start + _ROWS_AT_ONCE], batch.row[start : start + _ROWS_AT_ONCE]
            log_survival[own] = batch.table.log_survival_at(
                curve[:, None], np.broadcast_to(edges, (len(own), len(edges)))
            )
        log_tail[rows], position[rows], cap[rows] = batch.table.log_tail[batch.row], batch.position, batch.cap
    table = CurveTable(edges, log_survival, log_tail)
    return SurvivalBatch(table, np.arange(len(early)), position, cap, 0)
