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
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from endcast.curves import (
    HAZARD_MAX,
    HAZARD_MIN,
    CurveTable,
    Float32Array,
    FloatArray,
    IntArray,
    Places,
    log_survival_from_hazard,
)
from endcast.errors import InputError
from endcast.types import MAX_TOKENS, shown

__all__ = [
    "HAZARD_MAX",
    "HAZARD_MIN",
    "NO_CAP",
    "CurveTable",
    "Float32Array",
    "FloatArray",
    "Forecast",
    "IntArray",
    "SurvivalBatch",
    "log_survival_from_hazard",
    "next_forecast_id",
]

#: "no cap": further than any output goes.
NO_CAP = np.iinfo(np.int64).max // 4


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
    (one,) = _forecast_ids(prefix, 1)
    return one


def _forecast_ids(prefix: str, count: int) -> list[str]:
    series = f"{prefix}-{_process_token(os.getpid())}-"
    return [series + str(number) for number in itertools.islice(_forecast_numbers, count)]


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
    #: (2, K) hazards at admission on the bundle's grid, as its model has them and as recalibrated: what online
    #: recalibration learns from once the end is known. They mean nothing before the interval in which the forecast was
    #: made. None of forecasters that have no such thing.
    hazards: FloatArray | None = field(default=None, repr=False)

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
        hazards: Sequence[FloatArray] | None = None,
    ) -> list[Forecast]:
        """One forecast for each row of ``batch``; the arguments have one element a row."""
        ids = _forecast_ids(prefix, len(batch))
        made = []
        for i, (forecast_id, tokens, inputs) in enumerate(zip(ids, generated, known, strict=True)):
            one = object.__new__(cls)
            one.__dict__.update(  # what __init__ of a frozen class does, at a third of its cost
                forecast_id=forecast_id,
                bundle=bundle,
                generated_tokens=tokens,
                batch=batch,
                row=i,
                known=inputs,
                state_version=state_version,
                hazards=None if hazards is None else hazards[i],
            )
            made.append(one)
        return made

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
