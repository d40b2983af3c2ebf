"""Forecasts made anew while a request runs: its curve at admission, corrected by what the output so far tells.

At a landmark, e tokens generated, the admission curve conditioned on e says how the next tokens would end if nothing had
been read. A second model, on a grid of *further* tokens, gives corrected hazards for its intervals. Inside an interval
the conditioned curve keeps its shape: the cumulative hazard is scaled, so that a model that adds nothing to the
admission curve *is* that curve, token by token. Landmarking: van Houwelingen 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from endcast.predictors.grid import Q_MAX, Q_MIN, IntervalGrid, logit
from endcast.survival import HAZARD_MIN, CurveTable, FloatArray, IntArray

#: Tokens between two landmarks of one output, in training, in evaluation and for a router.
EVERY = 32
#: Where the further grid has its edges, as far as the longest output goes: fine where windows are read.
EDGES = (0, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 224, 320, 512, 1024, 2048, 8192)


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
        position = elapsed[:, None] + fine[None, :]
        log = table.log_survival_at(row[:, None], position)
        log -= log[:, :1]
        log += np.log1p(-HAZARD_MIN) * fine  # so that every interval has a shape to scale
        return cls(log, table.log_tail[row])

    def logits(self, at: IntArray) -> FloatArray:
        """(n, K) log-odds to end in each interval for one who reached it; ``at`` (K+1,) indexes the fine edges."""
        return logit(-np.expm1(np.diff(self.log_survival[:, at], axis=1)))


@dataclass(frozen=True, eq=False)
class FurtherGrid:
    """The grid of further tokens, on the ``fine`` edges (J+1,) that all curves of a bundle share."""

    intervals: IntervalGrid  #: edges of further tokens, pooled over landmarks
    fine: IntArray

    @cached_property
    def at(self) -> IntArray:
        """(K+1,), where each edge is among the fine ones."""
        return np.searchsorted(self.fine, self.intervals.edges).astype(np.int64)

    @cached_property
    def _interval_of_fine(self) -> IntArray:
        return self.intervals.interval_of(self.fine[1:])

    def curves(self, base: Conditioned, hazard: FloatArray) -> CurveTable:
        """Curves of further tokens from hazards (n, K): P(end in interval k | reached it)."""
        corrected = np.log1p(-np.clip(hazard, Q_MIN, Q_MAX))
        given = np.diff(base.log_survival[:, self.at], axis=1)
        scale = corrected / given
        log_survival = np.zeros_like(base.log_survival)
        steps = np.diff(base.log_survival, axis=1) * scale[:, self._interval_of_fine]
        np.cumsum(steps, axis=1, out=log_survival[:, 1:])
        return CurveTable.from_log_survival(self.fine, log_survival, base.log_tail * scale[:, -1])
