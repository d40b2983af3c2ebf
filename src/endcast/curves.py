"""Tables of survival curves: log survival on a grid of edges, constant hazards between them, read at any token in O(1).

Time is discrete: one step is one token. ``S(t) = P(o > t)`` with ``S(0) = 1`` and ``S(t) = Π_{u≤t} (1 − λ(u))``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

#: Hazards are kept in [HAZARD_MIN, HAZARD_MAX] where a curve must end some day, so that no figure is ever infinite.
HAZARD_MIN = 1e-9
HAZARD_MAX = 1.0 - 1e-12
#: Logarithms that lie no further apart can be exponentiated together without underflow.
LOG_RANGE = 500.0
#: A slope above this is no slope: sums over it count their terms.
FLAT = -1e-12


def log_survival_from_hazard(hazard: npt.ArrayLike) -> FloatArray:
    """Log survival (m, K+1), first column 0, from the hazards (m, K) of K successive intervals, in [0, 1]."""
    clipped = np.clip(np.asarray(hazard, dtype=np.float64), 0.0, HAZARD_MAX)
    log_survival = np.zeros((clipped.shape[0], clipped.shape[1] + 1))
    np.cumsum(np.log1p(-clipped), axis=1, out=log_survival[:, 1:])
    return log_survival


def _geometric_sum(log_ratio: FloatArray, terms: FloatArray) -> FloatArray:
    """Σ_{i < terms} exp(i · log_ratio), elementwise; log_ratio ≤ 0."""
    flat = log_ratio > FLAT
    if not flat.any():
        return np.expm1(terms * log_ratio) / np.expm1(log_ratio)
    safe = np.where(flat, -1.0, log_ratio)
    return np.where(flat, terms, np.expm1(terms * safe) / np.expm1(safe))


@lru_cache(maxsize=32)
def _intervals(edges: bytes) -> npt.NDArray[np.int32]:
    """``CurveTable.interval_of``, made once for all tables on the same grid."""
    grid = np.frombuffer(edges, dtype=np.int64)
    interval = (np.searchsorted(grid, np.arange(grid[-1] + 1), side="right") - 1).astype(np.int32)
    interval.flags.writeable = False
    return interval


@dataclass(frozen=True)
class CurveTable:
    """m survival curves on one grid.

    ``edges`` (K+1,) tokens, strictly increasing from 0; ``log_survival`` (m, K+1), non-increasing from 0, finite;
    ``log_tail`` (m,) log of the chance to survive one more token beyond the last edge, < 0.
    """

    edges: IntArray
    log_survival: FloatArray
    log_tail: FloatArray

    @classmethod
    def from_log_survival(
        cls, edges: IntArray, log_survival: FloatArray, log_tail: FloatArray | None = None
    ) -> CurveTable:
        """A table; by default the tail goes on with the hazard of the last interval."""
        width = float(edges[-1] - edges[-2])
        last = (log_survival[:, -1] - log_survival[:, -2]) / width
        tail = last if log_tail is None else log_tail
        return cls(edges, log_survival, np.clip(tail, np.log1p(-HAZARD_MAX), np.log1p(-HAZARD_MIN)))

    @cached_property
    def interval_of(self) -> npt.NDArray[np.int32]:
        """(last edge + 1,): the interval that a position lies in, as a table so that finding it costs O(1)."""
        return _intervals(np.asarray(self.edges, dtype=np.int64).tobytes())

    @cached_property
    def widths(self) -> FloatArray:
        """(K+1,), tokens in each interval; 1 for the tail."""
        return np.append(np.diff(self.edges), 1).astype(np.float64)

    @cached_property
    def flat(self) -> FloatArray:
        """``log_survival``, row after row: one index finds a number faster than two."""
        return self.log_survival.ravel()

    @cached_property
    def remaining_at_edges(self) -> FloatArray:
        """(m, K+1): expected remaining tokens for one that has reached each edge, backwards from the tail.

        R_k = Σ_{j ≥ k} S_j/S_k·G_j, G_j the mean tokens inside interval j: a running sum, by blocks in which no S
        falls so far that it is lost.
        """
        log_survival, last = self.log_survival, len(self.edges) - 1
        wide, inside = self._mean_inside
        out = np.empty_like(log_survival)
        out[:, -1] = -1.0 / np.expm1(self.log_tail)
        fall = -log_survival.min(axis=0, initial=0.0)
        starts = np.flatnonzero(np.diff(fall // LOG_RANGE, prepend=-1.0))
        for start, stop in reversed(list(itertools.pairwise([*starts[starts < last], last]))):
            reached = np.exp(log_survival[:, start : stop + 1] - log_survival[:, start, None])
            sums = out[:, start:stop]
            np.copyto(sums, reached[:, :-1])
            first = max(wide, start)
            if first < stop:  # else each interval of the block is one token wide
                sums[:, first - start :] *= inside[:, first - wide : stop - wide]
            sums[:, -1] += reached[:, -1] * out[:, stop]
            np.cumsum(sums[:, ::-1], axis=1, out=sums[:, ::-1])
            sums /= reached[:, :-1]
        return out

    @property
    def _mean_inside(self) -> tuple[int, FloatArray]:
        """The first interval of more than one token, and mean tokens inside each from there on for one that has reached
        it: (m, K − first)."""
        many = np.flatnonzero(self.widths > 1.0)
        first = int(many[0]) if many.size else len(self.edges) - 1
        widths, log_survival = self.widths[first:-1], self.log_survival[:, first:]
        return first, _geometric_sum((log_survival[:, 1:] - log_survival[:, :-1]) / widths, widths)

    def log_survival_at(self, row: IntArray, position: IntArray) -> FloatArray:
        """log S(position) of the given rows, elementwise (``row`` and ``position`` broadcast)."""
        return Places(self, row, position).log_survival

    def remaining_at(self, row: IntArray, position: IntArray) -> FloatArray:
        """Expected remaining tokens of one that has reached ``position``, elementwise."""
        return Places(self, row, position).remaining


class Places:
    """Points on the curves of one table: ``position`` tokens on the curves ``row``, elementwise (they broadcast)."""

    def __init__(self, table: CurveTable, row: IntArray, position: IntArray) -> None:
        self._table, self._row, self._position = table, row, position
        top = int(position.max(initial=0))
        # edges are whole and ascend from 0, so that if edge k lies at token k, all before do
        self._on_edges = top < len(table.edges) and int(table.edges[top]) == top
        self.interval = position if self._on_edges else table.interval_of.take(position, mode="clip")
        self._at = row * len(table.edges) + self.interval  # the edge before, among all numbers of the table

    @cached_property
    def _past(self) -> IntArray:
        """Tokens since the edge before."""
        return self._position - self._table.edges.take(self.interval)

    @cached_property
    def _log_at_edge(self) -> FloatArray:
        return self._table.flat.take(self._at)

    @cached_property
    def _tail(self) -> npt.NDArray[np.bool_]:
        tail: npt.NDArray[np.bool_] = self.interval == len(self._table.edges) - 1
        return tail

    @cached_property
    def slope(self) -> FloatArray:
        """Log of the chance to survive one more token."""
        inside = self._table.flat.take(self._at + 1, mode="clip") - self._log_at_edge
        inside /= self._table.widths.take(self.interval)
        return np.where(self._tail, self._table.log_tail.take(self._row), inside) if self._tail.any() else inside

    @cached_property
    def log_survival(self) -> FloatArray:
        """log S."""
        if self._on_edges or not self._past.any():
            return self._log_at_edge
        return self._log_at_edge + self.slope * self._past

    @cached_property
    def remaining(self) -> FloatArray:
        """Expected remaining tokens."""
        to_edge = np.where(self._tail, 0.0, self._table.widths.take(self.interval) - self._past)
        beyond = self._table.remaining_at_edges.ravel().take(self._at + (to_edge > 0.0))
        fall = np.expm1(self.slope * to_edge)
        inside = to_edge if to_edge.max(initial=0.0) <= 1.0 else _geometric_sum(self.slope, to_edge)
        here: FloatArray = inside + (1.0 + fall) * beyond
        return here
