"""Survival curves of token counts: from hazards to everything that a router or a person asks of them.

Time is discrete: one step is one token. ``S(t) = P(o > t)`` with ``S(0) = 1`` and ``S(t) = Π_{u≤t} (1 − λ(u))``.
A ``CurveTable`` holds m curves by their log survival on one grid of *edges*; between two edges the hazard is constant,
beyond the last edge the tail is geometric. A ``SurvivalBatch`` points n forecasts into such a table: each reads one
curve from a position on (conditioning: ``P(R > h) = S(e + h)/S(e)``) and ends for certain at its cap. So advancing
a running request by a token moves a number and evaluates no model, and all figures have a closed form.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from endcast.errors import InputError
from endcast.types import MAX_TOKENS, shown

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
#: "no cap": further than any output goes.
NO_CAP = np.iinfo(np.int64).max // 4


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


@dataclass(frozen=True)
class SurvivalBatch:
    """n forecasts as arrays.

    ``row`` (n,) into ``table``; ``position`` (n,) tokens ≥ 0, where on that curve each stands now; ``cap`` (n,) most
    tokens that may still come, ≥ 0 (``NO_CAP`` for none); ``horizon`` tokens ≥ 0 that the arrays below reach.
    """

    table: CurveTable
    row: IntArray
    position: IntArray
    cap: IntArray
    horizon: int

    def __post_init__(self) -> None:
        _tokens(self.horizon)

    def __len__(self) -> int:
        return len(self.row)

    def advance(self, tokens: int | IntArray) -> SurvivalBatch:
        """The forecasts after ``tokens`` more (one number or (n,)) without an end: conditioning, no model call."""
        return replace(self, position=self.position + tokens, cap=np.maximum(self.cap - tokens, 0))

    def take(self, index: npt.NDArray[np.integer]) -> SurvivalBatch:
        """Those forecasts only."""
        return replace(self, row=self.row[index], position=self.position[index], cap=self.cap[index])

    def with_horizon(self, horizon: int) -> SurvivalBatch:
        """The same forecasts, read over another window."""
        return replace(self, horizon=horizon)

    @cached_property
    def _start(self) -> Places:
        return Places(self.table, self.row, self.position)

    @cached_property
    def _end(self) -> Places:
        """At the horizon, or the cap before it."""
        return self._after(np.minimum(self.horizon, self.cap))

    @cached_property
    def _survives(self) -> FloatArray:
        """(n,), P(R > that many tokens)."""
        return self._survival_until(self._end, np.minimum(self.horizon, self.cap))

    def _survival_until(self, there: Places, reach: IntArray) -> FloatArray:
        """P(R > reach), ``there`` being the places after ``reach`` tokens."""
        if not self.position.any():
            return np.exp(there.log_survival)  # they stand where curves begin, at 0
        fall = there.log_survival - self._start.log_survival
        near = there.interval == self._start.interval  # where a difference of large numbers would be less exact
        return np.exp(np.where(near, self._start.slope * reach, fall) if near.any() else fall)

    def _after(self, further: IntArray) -> Places:
        return Places(self.table, self.row, self.position + further)

    def survival_at(self, further: int | IntArray) -> FloatArray:
        """P(R > further), (n,); ``further`` tokens ≥ 0: one number, (n,), or (H, 1) for an answer (H, n)."""
        log = self.table.log_survival_at(self.row, self.position + further)
        if self.position.any():  # else they stand where curves begin, at 0
            log = log - self._start.log_survival
        return np.where(further < self.cap, np.exp(log), 0.0)

    @cached_property
    def survival(self) -> Float32Array:
        """(n, horizon + 1), P(R > h) for h = 0 … horizon, non-increasing; column 0 is 1 unless the cap is reached."""
        h = np.arange(self.horizon + 1)
        log = self.table.log_survival_at(self.row[:, None], self.position[:, None] + h)
        log -= self._start.log_survival[:, None]
        return np.where(h < self.cap[:, None], np.exp(log), 0.0).astype(np.float32)

    @cached_property
    def p_end(self) -> FloatArray:
        """(n,), P(R ≤ horizon)."""
        return 1.0 - np.where(self.horizon < self.cap, self._survives, 0.0)

    def within(self, horizon: int | IntArray) -> FloatArray:
        """(n,), E[min(R, horizon)] in tokens; one ``horizon``, (n,), or (H, 1) for an answer (H, n)."""
        reach = np.minimum(horizon, self.cap)
        there = self._after(reach)
        return self._within(reach, there, self._survival_until(there, reach))

    def _within(self, reach: IntArray, there: Places, survives: FloatArray) -> FloatArray:
        """E[min(R, reach)], ``there`` being the places after ``reach`` ≤ cap tokens, which are reached as ``survives`` says."""
        tokens = self._start.remaining - survives * there.remaining
        return np.minimum(np.maximum(tokens, 0.0), reach)

    @cached_property
    def expected_within(self) -> FloatArray:
        """(n,), E[min(R, horizon)] in tokens."""
        return self._within(np.minimum(self.horizon, self.cap), self._end, self._survives)

    @cached_property
    def expected_remaining(self) -> FloatArray:
        """(n,), E[R] in tokens, capped."""
        return self.within(NO_CAP // 2)

    def quantile(self, q: float) -> FloatArray:
        """(n,), the least r with P(R ≤ r) ≥ q, 0 < q < 1, in whole tokens, capped."""
        if not 0.0 < q < 1.0:
            raise InputError("quantile", f"must lie strictly between 0 and 1, not {shown(q)}")
        target = self._start.log_survival + np.log1p(-q)
        interval = np.count_nonzero(self.table.log_survival[self.row] > target[:, None], axis=1) - 1
        edge = self.table.edges[interval]
        reached = Places(
            self.table, self.row, edge
        )  # whose slope is < 0, since the curve falls to the target from here
        further = edge + np.ceil((target - reached.log_survival) / reached.slope - 1e-9) - self.position
        whole: FloatArray = np.clip(further, np.minimum(1.0, self.cap), self.cap)
        return whole


_forecast_numbers = itertools.count(1)


@cache
def _process_token(pid: int) -> str:
    """Eight characters that another process, or the same one after a restart, does not have."""
    return secrets.token_hex(4)


def next_forecast_id(prefix: str = "f") -> str:
    """An id that no process gives out twice, so that what happened can be joined with what was forecast."""
    return f"{prefix}-{_process_token(os.getpid())}-{next(_forecast_numbers)}"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When one generation will end, given what is known of it now. R is its remaining tokens."""

    forecast_id: str
    bundle: str
    generated_tokens: int
    batch: SurvivalBatch = field(repr=False)  #: of all forecasts that were made together
    row: int = 0  #: which of them this is
    known: Mapping[str, bool] = field(default_factory=dict)  #: which inputs it had
    state_version: int = 0

    @classmethod
    def from_batch(
        cls,
        batch: SurvivalBatch,
        *,
        bundle: str,
        generated: Sequence[int],
        known: Sequence[Mapping[str, bool]],
        state_version: int,
        prefix: str = "f",
    ) -> list[Forecast]:
        """One forecast for each row of ``batch``."""
        return [
            cls(
                forecast_id=next_forecast_id(prefix),
                bundle=bundle,
                generated_tokens=generated[i],
                batch=batch,
                row=i,
                known=known[i],
                state_version=state_version,
            )
            for i in range(len(batch))
        ]

    @cached_property
    def _own(self) -> SurvivalBatch:
        return self.batch if len(self.batch) == 1 else self.batch.take(np.array([self.row]))

    def survival(self, h: int) -> float:
        """P(R > h), h ≥ 0 tokens."""
        return float(self._own.survival_at(_tokens(h))[0])

    def p_end(self, h: int) -> float:
        """P(R ≤ h), h ≥ 0 tokens."""
        return 1.0 - self.survival(h)

    def expected_within(self, h: int) -> float:
        """E[min(R, h)], h ≥ 0 tokens."""
        return float(self._own.within(_tokens(h))[0])

    @property
    def expected_remaining(self) -> float:
        """E[R] in tokens."""
        return float(self._own.expected_remaining[0])

    @property
    def expected_output_tokens(self) -> float:
        """Tokens so far plus E[R]."""
        return self.generated_tokens + self.expected_remaining

    def quantile(self, q: float) -> float:
        """The least r with P(R ≤ r) ≥ q, 0 < q < 1."""
        return float(self._own.quantile(q)[0])


def _tokens(h: int) -> int:
    whole = isinstance(h, int | np.integer) and not isinstance(h, bool)
    if not whole or not 0 <= h <= MAX_TOKENS:
        raise InputError("horizon", f"must be a whole number of tokens from 0 to {MAX_TOKENS}, not {shown(h)}")
    return int(h)
