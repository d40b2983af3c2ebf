"""From the curves of an answer to arrays that a router reads. Pure.

An answer gives survival at some further tokens, to 7 decimals, from where the generation stands now. Between two points
the hazard is taken as constant, as everywhere in endcast. The first survival that is rounded to 0 is taken for half of
what would have been seen, and the curve goes on falling as it did to there; where it is 0 because of a cap, which the
batch knows itself, the curve goes on as it fell before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from endcast.serving.api.schema import Curve
from endcast.survival import NO_CAP, CurveTable, FloatArray, Forecast, IntArray, SurvivalBatch
from endcast.types import Landmark, Request

#: What a survival that is told as 0 is taken for: half of what rounds to 1e-7.
_UNSEEN = 2.5e-8
#: Below this, two neighbouring survivals are too coarse for a slope.
_COARSE = 1e-5


def batch_of(curves: Sequence[Curve], landmarks: Sequence[Landmark], horizon: int) -> SurvivalBatch:
    """The forecasts (n) of one answer, whose ``curves`` share a grid; caps are those of the landmarks."""
    edges = np.asarray(curves[0].further_tokens if curves else [0, 1], dtype=np.int64)
    n = len(curves)
    survival = np.array([curve.survival for curve in curves], dtype=np.float64).reshape(n, len(edges))
    cap = np.array([_left(each.request, each.generated_tokens) for each in landmarks], dtype=np.int64)
    log_survival = log_survival_of(edges, survival, cap)
    return SurvivalBatch(
        table=CurveTable.from_log_survival(edges, log_survival, tail_of(edges, log_survival)),
        row=np.arange(n, dtype=np.int64),
        position=np.zeros(n, dtype=np.int64),
        cap=np.where(survival[:, 0] > 0.0, cap, 0),
        horizon=horizon,
    )


def log_survival_of(edges: IntArray, survival: FloatArray, cap: IntArray) -> FloatArray:
    """Log of ``survival`` (n, K+1), non-increasing, at ``edges``, as if there were no ``cap`` (n,): finite, 0 at first."""
    falling = np.minimum.accumulate(survival, axis=1)
    seen = falling > _UNSEEN
    log = np.log(np.where(seen, falling, _UNSEEN))
    log[:, 0] = 0.0
    zero = np.maximum(np.count_nonzero(seen, axis=1), 1)[:, None]  # where zeros begin; they are the end
    at = np.minimum(zero, len(edges) - 1)
    capped = (cap[:, None] <= edges[at]) & (at >= 2)
    told = at - capped  # the last point that says how the curve falls
    here, before = np.take_along_axis(log, told, 1), np.take_along_axis(log, told - 1, 1)
    slope = (here - before) / (edges[told] - edges[told - 1])
    return np.where(np.arange(len(edges)) > told, here + slope * (edges - edges[told]), log)


def tail_of(edges: IntArray, log_survival: FloatArray) -> FloatArray:
    """(n,), log of the chance to survive one more token beyond the last edge: as in the last interval, or as on the mean
    of the whole curve where what is left is too small for a slope."""
    last = (log_survival[:, -1] - log_survival[:, -2]) / float(edges[-1] - edges[-2])
    mean = log_survival[:, -1] / float(edges[-1])
    return np.where(log_survival[:, -1] < np.log(_COARSE), np.minimum(last, mean), last)


def joined_batch(forecasts: Sequence[Forecast], horizon: int) -> SurvivalBatch:
    """Forecasts (n) that were made in several batches, on whatever grids, as one batch in their order."""
    batches = {id(each.batch): each.batch for each in forecasts}
    if not batches:
        return batch_of([], [], horizon)
    if len(batches) == 1:
        (only,) = batches.values()
        return only.take(np.array([each.row for each in forecasts], dtype=np.int64)).with_horizon(horizon)
    edges = np.unique(np.concatenate([batch.table.edges for batch in batches.values()]))
    first: dict[int, int] = {}
    logs: list[FloatArray] = []
    tails: list[FloatArray] = []
    for key, batch in batches.items():
        table = batch.table
        first[key] = sum(len(tail) for tail in tails)
        logs.append(table.log_survival_at(np.arange(len(table.log_tail))[:, None], edges[None, :]))
        tails.append(table.log_tail)
    return SurvivalBatch(
        table=CurveTable.from_log_survival(edges, np.concatenate(logs), np.concatenate(tails)),
        row=np.array([first[id(each.batch)] + each.batch.row[each.row] for each in forecasts], dtype=np.int64),
        position=np.array([each.batch.position[each.row] for each in forecasts], dtype=np.int64),
        cap=np.array([each.batch.cap[each.row] for each in forecasts], dtype=np.int64),
        horizon=horizon,
    )


def _left(request: Request, generated_tokens: int) -> int:
    return NO_CAP if request.cap is None else max(request.cap - generated_tokens, 0)
