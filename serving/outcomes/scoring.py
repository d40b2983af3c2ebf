"""What a forecast said against what happened: pure functions on arrays.

R is what a generation had still to give when it was forecast. An end that was a *loss* of sight (an error, a cap that
nobody told of) leaves R known only to be larger than what was seen; a chance whose answer is not known is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from endcast.curves import FloatArray, IntArray
from endcast.serving.outcomes.record import Record, ServedPart
from endcast.types import EndReason

#: Not known whether it happened.
UNKNOWN = -1
#: Chances are kept this far from 0 and 1 in log scores.
LEAST_CHANCE = 1e-6
BINS = 15

#: 0, 1 or ``UNKNOWN``.
Happened = npt.NDArray[np.int8]


def is_end(record: Record, *, aborts: bool) -> bool:
    """Whether what was forecast happened when the generation ended: by itself, at a cap that was told, or, where
    forecasts carry ``aborts``, by the client's leaving."""
    end, request = record.outcome.end, record.request
    if end is EndReason.LENGTH and request is not None:
        cap = request.request(record.key).cap
        return cap is not None and record.outcome.output_tokens >= cap
    return end is EndReason.STOP or (aborts and end is EndReason.ABORT)


def happened(remaining: IntArray, reach: npt.ArrayLike, ended: bool) -> Happened:
    """Whether R ≤ ``reach``, elementwise (they broadcast); R is ``remaining`` if it ``ended``, else larger."""
    reach = np.asarray(reach)
    if ended:
        return np.asarray(remaining <= reach).astype(np.int8)
    return np.where(remaining < reach, UNKNOWN, 0).astype(np.int8)


def counted(served: ServedPart, tokens: int) -> npt.NDArray[np.bool_]:
    """(n,), which landmarks were before the end: what was forecast after it says nothing."""
    return np.asarray(served.landmarks) < tokens


def log_score(p: FloatArray, y: Happened) -> FloatArray:
    """−log of the chance that was given to what happened, in nats."""
    kept = np.clip(p, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    return np.where(y == 1, -np.log(kept), -np.log1p(-kept))


def calibration_error(p: FloatArray, y: FloatArray, bins: int = BINS) -> float:
    """ECE: mean over bins of equal mass of |mean chance − share that happened|; NaN of nothing."""
    if not len(p):
        return float("nan")
    order = np.argsort(p, kind="stable")
    parts = np.array_split(order, min(bins, len(p)))
    gaps = [abs(float(p[part].mean()) - float(y[part].mean())) * len(part) for part in parts]
    return sum(gaps) / len(p)


def matrix(rows: Sequence[Sequence[float]], width: int) -> FloatArray:
    """(n, width) of rows; what a row lacks is NaN."""
    out = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        if len(row) == width:
            out[i] = row
    return out
