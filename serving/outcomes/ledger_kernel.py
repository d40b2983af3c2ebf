"""The figures that the ledger keeps of a call, compiled: row by row what ``SurvivalBatch`` says of the whole batch, a test
compares the two."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from endcast.compiled import njit
from endcast.curves import Float32Array, FloatArray, IntArray
from endcast.serving.quantile_kernel import interval_that_falls_to


@njit(cache=True, nogil=True)
def _slope(k: int, log: FloatArray, edges: IntArray, tail: float) -> float:
    if k == edges.shape[0] - 1:
        return tail
    inside: float = (log[k + 1] - log[k]) / (edges[k + 1] - edges[k])
    return inside


@njit(cache=True, nogil=True)
def _log_at(at: int, log: FloatArray, edges: IntArray, tail: float, interval_of: npt.NDArray[np.int32]) -> float:
    k = interval_of[min(at, edges[-1])]
    there: float = log[k] + _slope(k, log, edges, tail) * (at - edges[k])
    return there


@njit(cache=True, nogil=True)
def figures(
    out: Float32Array,
    edges: IntArray,
    log_survival: FloatArray,
    log_tail: FloatArray,
    interval_of: npt.NDArray[np.int32],
    row: IntArray,
    position: IntArray,
    cap: IntArray,
    horizons: IntArray,
    quantiles: FloatArray,
) -> None:
    """Fill ``out`` (n, H + 2·Q): P(R ≤ h) for each of ``horizons`` (H,), the ``quantiles`` (Q,) of R, and P(R ≤ r) for each
    of those; curves, rows, positions and caps as in a ``SurvivalBatch``."""
    ends, said = horizons.shape[0], horizons.shape[0] + quantiles.shape[0]
    for i in range(row.shape[0]):
        log, tail, at, most = log_survival[row[i]], log_tail[row[i]], position[i], cap[i]
        here = _log_at(at, log, edges, tail, interval_of)
        for j in range(ends):
            out[i, j] = 1.0
            if horizons[j] < most:
                out[i, j] = 1.0 - np.exp(_log_at(at + horizons[j], log, edges, tail, interval_of) - here)
        for j in range(quantiles.shape[0]):
            target = here + np.log1p(-quantiles[j])
            k = interval_that_falls_to(target, log)
            steps = np.ceil((target - log[k]) / _slope(k, log, edges, tail) - 1e-9)
            further = min(max(edges[k] + steps - at, min(1.0, np.float64(most))), np.float64(most))
            out[i, ends + j] = further
            out[i, said + j] = 1.0
            if further < most:
                out[i, said + j] = 1.0 - np.exp(_log_at(at + np.int64(further), log, edges, tail, interval_of) - here)
