"""Live calibration: what was served against what happened, over the latest forecasts, in constant memory; for all of them
and apart by model and tenant, whose names are bounded in number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from endcast.curves import Float32Array, FloatArray
from endcast.serving.outcomes.record import Record
from endcast.serving.outcomes.scoring import (
    UNKNOWN,
    Happened,
    calibration_error,
    counted,
    happened,
    is_end,
    log_score,
    matrix,
)

#: Forecasts that are looked at: of all, and of one model or tenant.
WINDOW, NAMED_WINDOW = 8_192, 1_024
#: Names of models, and of tenants, that are told apart; and what the others, and those without a name, are called.
MOST_NAMES = 32
OTHER, NAMELESS = "other", "none"


@dataclass(frozen=True, kw_only=True)
class HorizonFigures:
    """P(R ≤ horizon) of ``forecasts`` whose answer is known; NaN where there are none."""

    forecasts: int
    happened: float  #: share
    forecast: float  #: mean chance
    brier: float
    log_loss: float  #: nats
    ece: float


@dataclass(frozen=True, kw_only=True)
class QuantileFigures:
    """A quantile r of R: the share of R ≤ r, and what was said of it (more than q where lengths come in lumps)."""

    forecasts: int
    coverage: float
    stated: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Over the latest ``forecasts`` of one window, of ``generations`` generations in all."""

    generations: int
    forecasts: int
    horizons: Mapping[int, HorizonFigures] = field(default_factory=dict)
    quantiles: Mapping[float, QuantileFigures] = field(default_factory=dict)


class Window:
    """The latest ``size`` forecasts, with what happened."""

    def __init__(self, size: int, horizons: Sequence[int], quantiles: Sequence[float]) -> None:
        self._horizons, self._quantiles = tuple(horizons), tuple(quantiles)
        self._p = np.zeros((size, len(horizons)), dtype=np.float32)
        self._y = np.full((size, len(horizons)), UNKNOWN, dtype=np.int8)
        self._stated = np.zeros((size, len(quantiles)), dtype=np.float32)
        self._covered = np.full((size, len(quantiles)), UNKNOWN, dtype=np.int8)
        self._forecasts = 0
        self._generations = 0

    def add(self, p: FloatArray, y: Happened, stated: FloatArray, covered: Happened) -> None:
        """Take in the forecasts (n, ·) of one generation."""
        at = (self._forecasts + np.arange(len(p))) % len(self._p)
        self._p[at], self._y[at], self._stated[at], self._covered[at] = p, y, stated, covered
        self._forecasts += len(p)
        self._generations += 1

    def figures(self) -> Calibration:
        """What they say."""
        size = min(self._forecasts, len(self._p))
        return Calibration(
            generations=self._generations,
            forecasts=size,
            horizons={h: _horizon(self._p[:size, i], self._y[:size, i]) for i, h in enumerate(self._horizons)},
            quantiles={
                q: _quantile(self._stated[:size, i], self._covered[:size, i]) for i, q in enumerate(self._quantiles)
            },
        )


def _horizon(chances: Float32Array, answers: Happened) -> HorizonFigures:
    known = answers != UNKNOWN
    p, y = chances[known].astype(np.float64), answers[known].astype(np.float64)
    return HorizonFigures(
        forecasts=len(p),
        happened=_mean(y),
        forecast=_mean(p),
        brier=_mean((p - y) ** 2),
        log_loss=_mean(log_score(p, answers[known])),
        ece=calibration_error(p, y),
    )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _quantile(stated: Float32Array, answers: Happened) -> QuantileFigures:
    known = answers != UNKNOWN
    said, covered = stated[known].astype(np.float64), answers[known].astype(np.float64)
    return QuantileFigures(forecasts=len(said), coverage=_mean(covered), stated=_mean(said))


class Names:
    """The first ``most`` names have one each, all later ones share ``OTHER``."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str | None) -> str:
        """What ``name`` is filed under."""
        if not name:
            return NAMELESS
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class LiveCalibration:
    """Windows of all forecasts, and of each model's and tenant's."""

    def __init__(self, horizons: Sequence[int], quantiles: Sequence[float], most_names: int = MOST_NAMES) -> None:
        self._horizons, self._quantiles = tuple(horizons), tuple(quantiles)
        self._all = Window(WINDOW, horizons, quantiles)
        self._names = {"model": Names(most_names), "tenant": Names(most_names)}
        self._named: dict[str, dict[str, Window]] = {"model": {}, "tenant": {}}
        self.contradicted = 0  #: forecasts of generations that, as is told now, had ended before

    def take(self, record: Record) -> None:
        """Take in an outcome with what was served; of another kind of figures than these, nothing."""
        served = record.served
        if served is None or (served.horizons, served.quantiles) != (self._horizons, self._quantiles):
            return
        tokens = record.outcome.output_tokens
        before = counted(served, tokens)
        self.contradicted += int((~before).sum())
        if not before.any():
            return
        ended = is_end(record, aborts=served.aborts)
        remaining = (tokens - np.asarray(served.landmarks, dtype=np.int64))[before, None]
        p = matrix(served.p_end, len(self._horizons))[before]
        reached = matrix(served.reached, len(self._quantiles))[before]
        stated = matrix(served.stated, len(self._quantiles))[before]
        y, covered = happened(remaining, self._horizons, ended), happened(remaining, reached, ended)
        for window in (self._all, *self._windows(record)):
            window.add(p, y, stated, covered)

    def _windows(self, record: Record) -> list[Window]:
        request = record.request
        told = {"model": request and request.model, "tenant": request and request.tenant}
        found = []
        for kind, name in told.items():
            label = self._names[kind].of(name or None)
            if label not in self._named[kind]:
                self._named[kind][label] = Window(NAMED_WINDOW, self._horizons, self._quantiles)
            found.append(self._named[kind][label])
        return found

    def figures(self) -> Calibration:
        """Of all forecasts."""
        return self._all.figures()

    def by(self, kind: str) -> dict[str, Calibration]:
        """By ``model`` or ``tenant``."""
        return {name: window.figures() for name, window in self._named[kind].items()}
