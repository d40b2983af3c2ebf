"""Softening: a sharp forecast blended towards a blunt one, so that a router does not trust it too far.

BalanceRoute plugs expected loads into its score as if they were certain, and so overrates what it believes to know.
A softened forecast is the mixture of two survival curves, each *conditioned on the tokens generated so far*:

    P(R > h) = (1 − w)·S_model(e + h)/S_model(e) + w·S_reference(e + h)/S_reference(e).

Made once, at admission, such a mixture sharpens by itself: when conditioned on tokens without an end, its weights follow
Bayes' rule and move to whoever expected the request to last. A true length mixed with Kaplan-Meier is nearly the true
length again after a while. So the mixture is made anew, with the weights that were asked for, each
``Softened.refresh_every`` tokens; in between it is conditioned as every curve is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.forecasts import ForecastSource
from endcast.survival import CurveTable, FloatArray, IntArray, SurvivalBatch

#: A blend is exact at each of so many further tokens: a horizon of 128 and the tokens until it is made anew.
_EXACT_TOKENS = 160
#: Beyond, its edges lie so much further apart each time, to the longest outputs.
_GROWTH, _LONGEST = 1.2, 1_000_000
#: Survival is not read below this; its logarithm stays finite.
_LEAST = 1e-300


def _edges() -> IntArray:
    far = _EXACT_TOKENS * _GROWTH ** np.arange(1, np.ceil(np.log(_LONGEST / _EXACT_TOKENS) / np.log(_GROWTH)) + 1)
    edges: IntArray = np.concatenate([np.arange(_EXACT_TOKENS + 1), far.astype(np.int64)])
    edges.flags.writeable = False
    return edges


#: (K+1,), further tokens: the grid of every blend.
EDGES = _edges()


def blend(model: SurvivalBatch, reference: SurvivalBatch, weight: float) -> SurvivalBatch:
    """(1 − ``weight``)·``model`` + ``weight``·``reference``, forecast by forecast (n of each), both as they stand now.

    Exact at each of the next 160 tokens and at the grid's edges beyond; between those the hazard is constant. What
    either's cap rules out has the other's share only. An exhausted cap counts as one more token: the request is there.
    """
    if not 0.0 <= weight <= 1.0:
        raise InputError("soften", f"must lie in [0, 1], not {weight!r:.60}")
    if len(model) != len(reference):
        raise InputError("soften", f"{len(model)} forecasts cannot be blended with {len(reference)}")
    count = len(model)
    survival = np.zeros((count, len(EDGES)))
    for batch, share in ((model, 1.0 - weight), (reference, weight)):
        if share == 0.0:
            continue
        table, where = batch.table, (batch.row, batch.position, batch.cap)
        _add_survival(survival, EDGES, share, table.edges, table.log_survival, table.log_tail, *where)
    _take_logarithms(survival)
    table = CurveTable.from_log_survival(EDGES, survival)
    cap = np.maximum(np.maximum(model.cap, reference.cap), 1)
    return SurvivalBatch(table, np.arange(count), np.zeros(count, dtype=np.int64), cap, model.horizon)


@njit(cache=True)
def _add_survival(
    out: FloatArray, further: IntArray, share: float, edges: IntArray, log_survival: FloatArray, log_tail: FloatArray,
    row: IntArray, position: IntArray, cap: IntArray,
) -> None:  # fmt: skip
    """out (n, m) += ``share``·P(R > further), ``further`` (m,) rising from 0; the request is there now, so 1 at 0."""
    last = edges.shape[0] - 1
    for i in range(out.shape[0]):
        curve, k, now = log_survival[row[i]], np.searchsorted(edges, position[i], side="right") - 1, 0.0
        out[i, 0] += share
        for j in range(out.shape[1]):
            at = position[i] + further[j]
            while k < last and edges[k + 1] <= at:
                k += 1
            slope = log_tail[row[i]] if k == last else (curve[k + 1] - curve[k]) / (edges[k + 1] - edges[k])
            log = curve[k] + slope * (at - edges[k])
            if j == 0:
                now = log
            elif further[j] >= cap[i]:
                break
            else:
                out[i, j] += share * np.exp(log - now)


@njit(cache=True)
def _take_logarithms(survival: FloatArray) -> None:
    """In place, row by row (n, m): the logarithm, from 0 and non-increasing whatever was rounded."""
    for i in range(survival.shape[0]):
        least = 0.0
        for j in range(survival.shape[1]):
            least = min(least, np.log(max(survival[i, j], _LEAST)))
            survival[i, j] = least


@dataclass(frozen=True, eq=False)
class Softened:
    """``source`` blended towards ``reference`` with ``weight`` in [0, 1] (this module says how); named as the source is.

    Made anew whenever the source is, else each ``every`` tokens; ``None`` leaves it to Bayes' rule.
    """

    source: ForecastSource
    reference: ForecastSource
    weight: float
    every: int | None = 32
    shared: None = None

    @property
    def name(self) -> str | None:
        """The source's."""
        return self.source.name

    @property
    def refresh_every(self) -> int | None:
        """The source's own, else ``every``."""
        return self.source.refresh_every or self.every

    def curves(self, row: IntArray, generated: IntArray) -> SurvivalBatch:
        """Both, conditioned on what was generated, and mixed."""
        return blend(self.source.curves(row, generated), self.reference.curves(row, generated), self.weight)
