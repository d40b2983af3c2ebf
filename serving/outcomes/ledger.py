"""What was forecast and has not ended yet, so that an outcome can be joined with it: bounded in number and age.

Kept of a generation are its request (no texts, unless wanted), the hazards of its first forecast, and of some of its
forecasts the figures that calibration needs. Cost: a microsecond a forecast, and some array operations a call for figures;
those are made for at most ``scored_per_s`` forecasts a second, so that a busy service measures a sample.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from endcast.curves import CurveTable, Float32Array
from endcast.serving.outcomes.ledger_kernel import figures
from endcast.serving.outcomes.record import light
from endcast.survival import NO_CAP, Forecast, SurvivalBatch
from endcast.types import Landmark, Request

_ZERO = np.zeros(1, dtype=np.int64)
_ANY = SurvivalBatch(
    CurveTable.from_log_survival(np.array([0, 1]), np.array([[0.0, -1.0]])), _ZERO, _ZERO, _ZERO + NO_CAP, 0
)


@dataclass(frozen=True)
class Figures:
    """What is kept of a call's forecasts: P(R ≤ h), quantiles of R, and the chance not to exceed each: (n, H + 2·Q)."""

    numbers: Float32Array

    def row(self, i: int, horizons: int, quantiles: int) -> tuple[tuple[float, ...], ...]:
        """``p_end`` (H), ``reached`` (Q) and ``stated`` (Q) of one forecast."""
        row: list[float] = self.numbers[i].tolist()
        stop = horizons + quantiles
        return tuple(row[:horizons]), tuple(row[horizons:stop]), tuple(row[stop:])


@dataclass(eq=False, slots=True)
class Scored:
    """A forecast whose figures are kept: row ``row`` of ``figures``, made at ``generated`` tokens; ``shadow`` (H,)."""

    generation: Generation
    generated: int
    figures: Figures
    row: int
    shadow_bundle: str | None = None
    shadow: tuple[float, ...] = ()


@dataclass(eq=False, slots=True)
class Generation:
    """One generation that was forecast: ``entered`` tokens when it was first, ``first_s`` (Unix time), ``seen_s`` (steady
    clock) when it last was."""

    key: str
    request: Request  #: light
    bundle: str
    entered: int
    first_s: float
    seen_s: float
    hazards: Float32Array | None  #: (2, K)
    forecast_ids: list[str] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    figured: int = 0  #: forecasts that had figures
    every: int = 1  #: which of them are kept
    shadow_hazards: tuple[str, int, Float32Array] | None = None  #: a shadow bundle's first: its id, tokens, (K,)

    def keep(self, scored: Scored, most: int) -> None:
        """Keep at most ``most`` forecasts with figures, evenly spread over the generation."""
        if self.figured % self.every == 0:
            if len(self.scored) == most:
                del self.scored[1::2]
                self.every *= 2
            if self.figured % self.every == 0:
                self.scored.append(scored)
        self.figured += 1


@dataclass(frozen=True, kw_only=True)
class LedgerLimits:
    """``forecasts``: joinable at once; ``age_s``: since the last forecast of a generation; ``scored``: forecasts of one
    generation whose figures are kept."""

    forecasts: int = 100_000
    age_s: float = 3_600.0
    scored: int = 16
    scored_per_s: float = 2_000.0
    texts: bool = False
    horizons: tuple[int, ...] = (16, 64, 128)
    quantiles: tuple[float, ...] = (0.5, 0.9)


class Ledger:
    """Forecasts that wait for their outcome. Safe in several threads."""

    def __init__(self, limits: LedgerLimits, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self.limits = limits
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._generations: OrderedDict[str, Generation] = OrderedDict()  #: by key, the one seen last at the end
        self._key_of: dict[str, str] = {}  #: forecast id → key
        self._forgotten: OrderedDict[int, None] = OrderedDict()  #: hashes of names that were dropped for want of room
        self._answered: OrderedDict[int, None] = OrderedDict()  #: of those whose outcome is known
        self._numbers: dict[str, int] = {}  #: the highest number of a forecast id, by what precedes it
        self._budget, self._budget_at = limits.scored_per_s, steady()
        self._horizons = np.array(limits.horizons, dtype=np.int64)
        self._quantiles = np.array(limits.quantiles, dtype=np.float64)
        self._numbers_of(_ANY)  # compiles what is not yet, before anybody waits

    def __len__(self) -> int:
        """Forecasts that can be joined."""
        return len(self._key_of)

    def served(self, forecasts: Sequence[Forecast], landmarks: Sequence[Landmark]) -> list[Scored]:
        """Keep forecasts that were just made; the figures of those that have some, in order."""
        if self.limits.forecasts == 0:
            return []
        scored: list[Scored] = []
        for _, together in groupby(zip(forecasts, landmarks, strict=True), key=lambda pair: id(pair[0].batch)):
            scored += self._together(list(together))
        return scored

    def _together(self, made: list[tuple[Forecast, Landmark]]) -> list[Scored]:
        """``served`` for forecasts that are rows of one batch."""
        forecasts = [forecast for forecast, _ in made]
        made_figures = self._figures(forecasts)
        wall, now = self._wall(), self._steady()
        scored: list[Scored] = []
        with self._lock:
            self._count_up(forecasts[-1].forecast_id)
            for i, (forecast, landmark) in enumerate(made):
                generation = self._generation(forecast, landmark.request, wall, now)
                generation.forecast_ids.append(forecast.forecast_id)
                self._key_of[forecast.forecast_id] = generation.key
                if made_figures is not None:
                    one = Scored(generation, forecast.generated_tokens, made_figures, i)
                    scored.append(one)
                    generation.keep(one, self.limits.scored)
            self._forget(now)
        return scored

    def _count_up(self, forecast_id: str) -> None:
        series, _, number = forecast_id.rpartition("-")
        if number.isdecimal():
            self._numbers[series] = max(int(number), self._numbers.get(series, 0))

    def _generation(self, forecast: Forecast, request: Request, wall: float, now: float) -> Generation:
        key = key_of(request.request_id, forecast.forecast_id)
        found = self._generations.get(key)
        if found is None or found.bundle != forecast.bundle:  # after a reload, what counts is the new bundle's
            hazards = None if forecast.hazards is None else forecast.hazards.astype(np.float32)
            kept = (request if self.limits.texts else light(request)) if found is None else found.request
            ids, first_s = ([], wall) if found is None else (found.forecast_ids, found.first_s)
            entered = forecast.generated_tokens
            found = Generation(key, kept, forecast.bundle, entered, first_s, now, hazards, ids)
            self._generations[key] = found
        found.seen_s = now
        self._generations.move_to_end(key)
        return found

    def _figures(self, forecasts: Sequence[Forecast]) -> Figures | None:
        """Figures of a call, if there is time for so many now."""
        now = self._steady()
        most = self.limits.scored_per_s
        self._budget = min(self._budget + (now - self._budget_at) * most, most)
        self._budget_at = now
        if self._budget < min(len(forecasts), most):
            return None
        self._budget -= len(forecasts)
        return Figures(self._numbers_of(batch_of(forecasts)))

    def _numbers_of(self, batch: SurvivalBatch) -> Float32Array:
        table = batch.table
        out = np.empty((len(batch), len(self._horizons) + 2 * len(self._quantiles)), dtype=np.float32)
        figures(
            *(out, table.edges, table.log_survival, table.log_tail, table.interval_of),
            *(batch.row, batch.position, batch.cap, self._horizons, self._quantiles),
        )
        return out

    def _forget(self, now: float) -> None:
        """Drop the generations that were not asked about for longest, beyond the limits."""
        while self._generations:
            oldest = next(iter(self._generations.values()))
            if len(self._key_of) <= self.limits.forecasts and now - oldest.seen_s <= self.limits.age_s:
                return
            self._drop(oldest, self._forgotten)

    def _drop(self, generation: Generation, remembered: OrderedDict[int, None]) -> None:
        del self._generations[generation.key]
        generation.scored = []  # each refers back to the generation: so nothing waits for the collector of cycles
        for name in (generation.key, *generation.forecast_ids):
            self._key_of.pop(name, None)
            remembered[hash(name)] = None
        while len(remembered) > 2 * self.limits.forecasts:  # a generation has two names at least
            remembered.popitem(last=False)

    def find(self, forecast_id: str | None, request_id: str | None) -> Generation | None:
        """The generation that an outcome tells of; it stays until ``take``."""
        with self._lock:
            key = None if forecast_id is None else self._key_of.get(forecast_id)
            if key is None and request_id is not None:
                key = key_of(request_id, "")
            return None if key is None else self._generations.get(key)

    def take(self, key: str) -> None:
        """Forget a generation whose outcome is on disk."""
        with self._lock:
            found = self._generations.get(key)
            if found is not None:
                self._drop(found, self._answered)

    def was_answered(self, forecast_id: str | None) -> bool:
        """Whether the outcome of that forecast's generation has been taken."""
        with self._lock:
            return forecast_id is not None and hash(forecast_id) in self._answered

    def was_here(self, forecast_id: str | None, request_id: str | None) -> bool:
        """Whether it was forecast by this process and has been dropped for its age or want of room."""
        with self._lock:
            if request_id is not None and hash(key_of(request_id, "")) in self._forgotten:
                return True
            if forecast_id is None:
                return False
            return hash(forecast_id) in self._forgotten or self._issued(forecast_id)

    def _issued(self, forecast_id: str) -> bool:
        series, _, number = forecast_id.rpartition("-")
        return number.isdecimal() and len(number) < 19 and 0 < int(number) <= self._numbers.get(series, 0)


def key_of(request_id: str, forecast_id: str) -> str:
    """What a generation is known by: its request's id where it has one."""
    return f"r:{request_id}" if request_id else f"f:{forecast_id}"


def batch_of(forecasts: Sequence[Forecast]) -> SurvivalBatch:
    """The forecasts of one call as a batch; they were made together."""
    batch = forecasts[0].batch
    rows = [forecast.row for forecast in forecasts]
    return batch if rows == list(range(len(batch))) else batch.take(np.array(rows))
