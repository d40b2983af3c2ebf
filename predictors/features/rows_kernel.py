"""Rows that were made before, put where they belong among the columns of a batch, compiled: array operations would copy
five numbers at a time."""

from __future__ import annotations

from endcast.compiled import njit
from endcast.predictors.features.protocol import Float32Array


@njit(cache=True, nogil=True)
def put_rows(
    out: Float32Array, rows: Float32Array, at: int, values: int, interval_at: int, every: int, each: int
) -> None:  # fmt: skip
    """Of ``rows`` (n, ·) the first ``values`` go to ``out`` (n, F) from column ``at`` on, and those after them, ``each`` an
    interval, from column ``interval_at`` on, those of each interval ``every`` columns after those of the one before."""
    intervals = (rows.shape[1] - values) // each
    for i in range(rows.shape[0]):
        for j in range(values):
            out[i, at + j] = rows[i, j]
        for k in range(intervals):
            for j in range(each):
                out[i, interval_at + k * every + j] = rows[i, values + k * each + j]
