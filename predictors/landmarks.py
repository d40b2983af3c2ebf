"""Forecasts made anew while a request runs: its curve at admission, corrected by what the output so far tells.

At a landmark, e tokens generated, the admission curve conditioned on e says how the next tokens would end if nothing had
been read. A second model, on a grid of *further* tokens, gives corrected hazards for its intervals. Inside an interval
the conditioned curve keeps its shape: the cumulative hazard is scaled, so that a model that adds nothing to the
admission curve *is* that curve, token by token where the fine edges lie at each token, edge by edge beyond.
Landmarking: van Houwelingen 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid
from endcast.predictors.landmark_kernels import condition_rows, log_odds, scale_hazards
from endcast.survival import HAZARD_MAX, HAZARD_MIN, CurveTable, FloatArray, IntArray

#: Tokens between two landmarks of one output, in training, in evaluation and for a router.
EVERY = 32
#: Where the further grid has its edges, as far as the longest output goes: fine where windows are read.
EDGES = (0, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 224, 320, 512, 1024, 2048, 8192)
#: Logs of the chance to stay: at the least and largest hazard of an interval, and at those of a token.
_LOG_Q_MIN, _LOG_Q_MAX, _LOG_STAYS, _LOG_ENDS = (
    float(np.log1p(-hazard)) for hazard in (Q_MIN, Q_MAX, HAZARD_MIN, HAZARD_MAX)
)


def further_edges(fine: IntArray) -> IntArray:
    """(K+1,) edges of the further grid, each one of the admission curves' ``fine`` edges, the last edge being theirs."""
    top = int(fine[-1])
    wanted = np.array([edge for edge in EDGES if edge < top] + [top])
    return np.unique(fine[np.abs(fine[None, :] - wanted[:, None]).argmin(axis=1)])


@dataclass(frozen=True, eq=False)
class Conditioned:
    """n admission curves from their landmarks on: ``log_survival`` (n, J+1) log P(R > f) at the ``fine`` further tokens f,
    strictly falling from 0; ``log_tail`` (n,) beyond them."""

    log_survival: FloatArray
    log_tail: FloatArray

    @classmethod
    def of(cls, table: CurveTable, row: IntArray, elapsed: IntArray, fine: IntArray) -> Conditioned:
        """Rows ``row`` (n,) of ``table`` given that ``elapsed`` (n,) tokens came without an end."""
        log_survival = np.empty((len(row), len(fine)))
        condition_rows(log_survival, table.edges, table.log_survival, table.log_tail, row, elapsed, fine, _LOG_STAYS)
        return cls(log_survival, table.log_tail.take(row))

    def logits(self, at: IntArray) -> FloatArray:
        """(n, K) log-odds to end in each interval for one who reached it; ``at`` (K+1,) indexes the fine edges."""
        out = np.empty((len(self.log_survival), len(at) - 1))
        log_odds(out, self.log_survival, at, _LOG_Q_MAX, _LOG_Q_MIN)
        return out


@dataclass(frozen=True, eq=False)
class FurtherGrid:
    """The grid of further tokens, on the ``fine`` edges (J+1,) that all curves of a bundle share."""

    intervals: IntervalGrid  #: edges of further tokens, pooled over landmarks
    fine: IntArray

    @cached_property
    def at(self) -> IntArray:
        """(K+1,), where each edge is among the fine ones."""
        return np.searchsorted(self.fine, self.intervals.edges).astype(np.int64)

    def curves(self, base: Conditioned, hazard: npt.NDArray[np.floating]) -> CurveTable:
        """Curves of further tokens from hazards (n, K): P(end in interval k | reached it)."""
        curves = CurveTable(self.fine, np.empty_like(base.log_survival), np.empty_like(base.log_tail))
        bounds = (Q_MIN, Q_MAX, _LOG_ENDS, _LOG_STAYS)
        scale_hazards(curves.log_survival, curves.log_tail, base.log_survival, base.log_tail, self.at, hazard, *bounds)
        return curves
