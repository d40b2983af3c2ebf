"""Curves of a whole log, kept as they are made: in memory, or where that would be too much in a file.

A million requests have a million curves, a gigabyte. They are written once, in order of arrival, and read again a few at a
time in that order, so the system may keep as little of them in memory as it likes: it pages them in and out of a
temporary file, which is gone when nothing uses it any more.
"""

from __future__ import annotations

import math
import tempfile

import numpy as np

from endcast.datasets.trace import IntArray
from endcast.survival import CurveTable, FloatArray, SurvivalBatch

#: Bytes of a table that is held in memory.
IN_MEMORY = 64 << 20


def room(*shape: int) -> FloatArray:
    """Room for a table, to be filled. In a file of the system's folder for temporary files (``TMPDIR``) if it is large."""
    if 8 * math.prod(shape) <= IN_MEMORY:
        return np.empty(shape)
    with tempfile.TemporaryFile() as file:
        return np.asarray(np.memmap(file, np.float64, "w+", shape=shape))


class CurveRoom:
    """Takes in forecasts of ``count`` requests batch by batch, in any order, each once; all must lie on one grid."""

    def __init__(self, count: int) -> None:
        self._row, self._position, self._cap = (np.zeros(count, dtype=np.int64) for _ in range(3))
        self._first: CurveTable | None = None
        self._own: tuple[FloatArray, FloatArray] | None = None  # once batches bring tables of their own
        self._filled = np.zeros(count, dtype=np.bool_)

    def put(self, rows: IntArray, batch: SurvivalBatch) -> None:
        """Forecasts (k,) of these requests (k,)."""
        self._first = self._first or batch.table
        if self._own is None and batch.table is not self._first:
            self._part_with(self._first)
        self._row[rows], self._position[rows], self._cap[rows] = batch.row, batch.position, batch.cap
        self._filled[rows] = True
        if self._own is not None:
            self._write(rows, batch.table, batch.row)

    def batch(self) -> SurvivalBatch:
        """All of them, request by request, read from where they stood; one table, the forecaster's own if it shares one."""
        assert self._first is not None and self._filled.all()
        if self._own is None:
            return SurvivalBatch(self._first, self._row, self._position, self._cap, 0)
        table = CurveTable(self._first.edges, *self._own)
        return SurvivalBatch(table, np.arange(len(self._row)), self._position, self._cap, 0)

    def _part_with(self, shared: CurveTable) -> None:
        count = len(self._row)
        self._own = room(count, len(shared.edges)), np.empty(count)
        known = np.flatnonzero(self._filled)
        self._write(known, shared, self._row[known])

    def _write(self, rows: IntArray, table: CurveTable, curve: IntArray) -> None:
        assert self._own is not None
        log_survival, log_tail = self._own
        log_survival[rows], log_tail[rows] = table.log_survival[curve], table.log_tail[curve]
