"""The grid of a bundle: on which intervals of further tokens a model gives hazards, and how curves run inside them.

A model gives one hazard an interval: P(end in it | reached it). Inside an interval the pooled curve's shape is kept
(hazards proportional to the pooled ones), so that few intervals suffice and a model that adds nothing to the pooled
curve *is* the pooled curve, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from endcast.errors import TrainingError
from endcast.predictors.grid_kernel import fill_curves
from endcast.predictors.product_limit import product_limit
from endcast.survival import CurveTable, FloatArray, IntArray

#: A length that ends more than this share of all requests gets an interval of its own (unrecorded caps, stock replies).
POINT_MASS = 0.004
#: Curves are read off at every token up to here, then at steps that grow by ``FINE_GROWTH``.
FINE_DENSE, FINE_GROWTH = 256, 1.02
#: Hazards of an interval are kept in these bounds, so that logits are finite.
Q_MIN, Q_MAX = 1e-6, 1.0 - 1e-6


def logit(q: npt.ArrayLike) -> FloatArray:
    """log(q/(1−q)), q clipped to [Q_MIN, Q_MAX]."""
    clipped = np.clip(np.asarray(q, dtype=np.float64), Q_MIN, Q_MAX)
    out: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return out


def choose_edges(lengths: IntArray, ended: npt.NDArray[np.bool_], intervals: int) -> IntArray:
    """(K+1,) edges from 0 to the longest event, about ``intervals`` of them: half by quantiles of the events, half
    log-spaced, and every point mass alone."""
    events = lengths[ended]
    if events.size == 0:
        raise TrainingError("no generation in the training part ended by itself", hint="Nothing can be learned of ends")
    top = int(events.max())
    quantiles = np.quantile(events, np.linspace(0.0, 1.0, max(intervals // 2, 2) + 1)).astype(np.int64)
    spaced = np.geomspace(min(8, top), top, max(intervals // 2, 2)).astype(np.int64)
    tokens, counts = np.unique(events, return_counts=True)
    heavy = tokens[(counts > POINT_MASS * events.size) & _stands_out(tokens, counts)]
    return np.unique(np.concatenate([[0], quantiles, spaced, heavy, heavy - 1]))


def _stands_out(tokens: IntArray, counts: IntArray) -> npt.NDArray[np.bool_]:
    """Whether a length is at least three times as frequent as the ones around it."""
    dense = np.zeros(int(tokens.max()) + 4, dtype=np.int64)
    dense[tokens] = counts
    around = np.stack([dense[np.maximum(tokens + d, 0)] for d in (-3, -2, -1, 1, 2, 3)]).mean(axis=0)
    stands_out: npt.NDArray[np.bool_] = counts >= 3.0 * (around + 1.0)
    return stands_out


@dataclass(frozen=True, eq=False)
class IntervalGrid:
    """``edges`` (K+1,) tokens, strictly increasing from 0: interval k is (edges[k], edges[k+1]]; ``base`` (T+1,) the
    pooled log survival at every token, T = edges[-1]."""

    edges: IntArray
    base: FloatArray

    @classmethod
    def fit(cls, lengths: IntArray, ended: npt.NDArray[np.bool_], intervals: int) -> IntervalGrid:
        """The grid and pooled curve of these lengths (n,), tokens ≥ 1."""
        edges = choose_edges(lengths, ended, intervals)
        base = product_limit(lengths, ended, shrink=0.5)[: int(edges[-1]) + 1]
        return cls(edges, base)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @cached_property
    def log_middle(self) -> npt.NDArray[np.float32]:
        """(K,), log of each interval's middle in tokens."""
        middle: npt.NDArray[np.float32] = np.log((self.edges[:-1] + self.edges[1:]) / 2 + 0.5).astype(np.float32)
        return middle

    @cached_property
    def base_hazard(self) -> FloatArray:
        """(K,), pooled hazard of each interval, in [Q_MIN, Q_MAX]."""
        hazard: FloatArray = np.clip(-np.expm1(np.diff(self.base[self.edges])), Q_MIN, Q_MAX)
        return hazard

    @cached_property
    def base_logit(self) -> FloatArray:
        """(K,), log-odds of ``base_hazard``."""
        return logit(self.base_hazard)

    @cached_property
    def _interval_table(self) -> IntArray:
        return np.searchsorted(self.edges, np.arange(self.edges[-1] + 1), side="left").astype(np.int64) - 1

    def interval_of(self, tokens: IntArray) -> IntArray:
        """(n,), the interval that each length ≥ 1 lies in; lengths beyond the last edge lie in the last one."""
        inside = np.clip(tokens, 1, self.edges[-1])
        found: IntArray = self._interval_table[inside]
        return found

    @cached_property
    def fine(self) -> IntArray:
        """(J+1,), the edges on which curves are read: all of ``edges`` and enough between them."""
        top = int(self.edges[-1])
        dense = np.arange(min(FINE_DENSE, top) + 1)
        steps = max(int(np.log(max(top / FINE_DENSE, 1.0)) / np.log(FINE_GROWTH)), 1)
        spaced = np.geomspace(min(FINE_DENSE, top), top, steps + 1).astype(np.int64)
        return np.unique(np.concatenate([dense, spaced, self.edges]))

    @cached_property
    def _fine_shape(self) -> tuple[IntArray, FloatArray]:
        """For each fine edge after the first: its interval, and what share of that interval's pooled log survival is
        lost up to it."""
        interval = self.interval_of(self.fine[1:])
        start, stop = self.base[self.edges[interval]], self.base[self.edges[interval + 1]]
        width = (self.edges[interval + 1] - self.edges[interval]).astype(np.float64)
        even = (self.fine[1:] - self.edges[interval]) / width
        lost = start - stop
        flat = lost < 1e-12
        share = np.where(flat, even, (start - self.base[self.fine[1:]]) / np.where(flat, 1.0, lost))
        return interval, share

    @cached_property
    def _tail_width(self) -> float:
        return float(self.edges[-1] - self.edges[-2])

    @cached_property
    def _at(self) -> IntArray:
        """(K+1,), where each of ``edges`` lies among the fine ones."""
        return np.searchsorted(self.fine, self.edges).astype(np.int64)

    def curves(self, hazard: npt.NDArray[np.floating], first: IntArray | None = None) -> CurveTable:
        """Survival curves from hazards (n, K): P(end in interval k | reached it), in [0, 1].

        Beyond the last edge the last interval's mean hazard per token goes on. Before the intervals ``first`` (n,), in
        [0, K), hazards are not looked at, and curves lose nothing.
        """
        n = len(hazard)
        log_survival, last = np.empty((n, len(self.fine))), np.empty(n)
        start = np.zeros(n, dtype=np.int64) if first is None else first
        whole = np.ascontiguousarray(hazard, dtype=np.float64)
        fill_curves(log_survival, last, whole, start, self._at, self._fine_shape[1], Q_MIN, Q_MAX)
        return CurveTable.from_log_survival(self.fine, log_survival, last / self._tail_width)
