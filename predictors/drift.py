"""Drift: whether generations end as often as was forecast, with a threshold that follows from chance alone.

A *window* is a stretch of tokens (a, b] that a generation had reached the start of; its forecast p = P(end in it | reached
a) was made no later than a. Then y − p (y: ended in it) has mean 0 and variance p(1 − p) if forecasts are calibrated, and
is uncorrelated with that of every other window that does not overlap it, in the same generation or another: a martingale
difference. Over the latest outcomes

    happened O = Σ y,   forecast E = Σ p,   variance V = Σ p(1 − p)
    z = sign(O − E) · √( 2·(O·ln(O/E) − (O − E)) · E/V )

is standard normal: the signed root of the Poisson deviance, which is (O − E)/√V but has no skew where few ends are
expected. A generation that was cut after c tokens, inside a window, counts there with x = P(end in it | reached c) for y,
and with p(1 − p) − x(1 − x) for its variance: the same martingale, stopped.

Measured are windows of H tokens end to end from an offset that the outcome cannot know (which meets requests in proportion
to their length, as a router does), the intervals of the grid by stretch, and all intervals together.

The z of a sliding window of n outcomes passes ±c once in n/(2·c·φ(c)) outcomes by chance (Pickands, "Upcrossing
probabilities for stationary Gaussian processes", 1969; its correlation falls linearly). ``threshold`` solves that for a rate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError, InputError
from endcast.predictors.calibration import STRETCHES, stretches
from endcast.predictors.grid import IntervalGrid
from endcast.survival import Float32Array, FloatArray, IntArray

#: Outcomes that are looked at, and outcomes before anything is said.
WINDOW, LEAST = 1_000, 100
#: False alarms for each ``WINDOW`` outcomes of a calibrated forecaster that is looked at after every one.
FALSE_ALARMS = 1e-3
#: Alarm only where happened/forecast lies outside [1/LEAST_RATIO, LEAST_RATIO]: less is not worth anyone's time.
LEAST_RATIO = 1.15
#: Horizons that are watched, in tokens.
HORIZONS = (16, 64, 128)
#: What is kept of an outcome for each measure: y, p and variance.
_KEPT = 3
#: The golden ratio's fractional part: its multiples are spread evenly.
_SPREAD = (math.sqrt(5.0) - 1.0) / 2.0

#: ``curve(elapsed, further)`` (r,): P(R > further) of one generation as forecast by ``elapsed`` (r,) tokens.
Curve = Callable[[IntArray, IntArray], FloatArray]


@dataclass(frozen=True)
class Deviation:
    """One measure: ends that ``happened`` and that were ``forecast``, their ``ratio``, how unlikely that is (``z``, standard
    deviations), and whether it is an ``alarm``. NaN where nothing was expected."""

    happened: float
    forecast: float
    ratio: float
    z: float
    alarm: bool


@dataclass(frozen=True)
class DriftReport:
    """Over the latest ``outcomes``: each measure of the forecasts as ``served`` and as the ``frozen`` model alone has them;
    ``z``, ``ratio`` and ``measure`` of the served one that deviates most; ``alarm`` for what was served, ``model_alarm``
    for the frozen model; and an ``explanation`` in one sentence."""

    outcomes: int
    threshold: float
    measure: str
    z: float
    ratio: float
    alarm: bool
    model_alarm: bool
    explanation: str
    served: dict[str, Deviation]
    frozen: dict[str, Deviation]


def threshold(measures: int, rate: float = FALSE_ALARMS) -> float:
    """c ≥ 1 with 2·c·φ(c)·measures = rate: the |z| that so many measures pass together at most ``rate`` times in as many
    outcomes as the window holds."""
    density = NormalDist().pdf
    low, high = 1.0, 40.0  # c·φ(c) falls from 1 on
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (middle, high) if 2.0 * measures * middle * density(middle) > rate else (low, middle)
    return high


def signed_deviance(happened: FloatArray, forecast: FloatArray, variance: FloatArray) -> FloatArray:
    """(m,), z of ends that happened against those forecast; NaN where the variance is nothing."""
    known = (variance > 1e-9) & (forecast > 1e-9)
    y, p = np.where(known, happened, 1.0), np.where(known, forecast, 1.0)
    deviance = 2.0 * (np.where(y > 0.0, y * np.log(np.maximum(y, 1e-300) / p), 0.0) - (y - p))
    root = np.sqrt(np.maximum(deviance, 0.0) * p / np.where(known, variance, 1.0))
    return np.where(known, np.sign(y - p) * root, np.nan)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows (r,) of one outcome: of which ``measure``, from ``start`` to ``stop`` tokens, whether it ``ended`` in it; and
    how much of it was ``seen``, less than stop − start only where the generation was cut in it."""

    measure: IntArray
    start: IntArray
    stop: IntArray
    ended: npt.NDArray[np.bool_]
    seen: IntArray

    def sums(self, curve: Curve, measures: int) -> FloatArray:
        """(3, measures): happened, forecast and variance under ``curve``."""
        width = self.stop - self.start
        chance = 1.0 - curve(self.start, width)
        cut = np.flatnonzero(self.seen < width)
        happened, variance = self.ended.astype(np.float64), chance * (1.0 - chance)
        if cut.size:
            reached = self.start[cut] + self.seen[cut]
            rest = 1.0 - curve(reached, self.stop[cut] - reached)
            happened[cut] = rest
            variance[cut] -= rest * (1.0 - rest)
        return np.stack([np.bincount(self.measure, w, minlength=measures) for w in (happened, chance, variance)])


class DriftMonitor:
    """Watches what was served, and what the frozen model says, in bounded memory; O(K + o/H) an outcome."""

    def __init__(self, grid: IntervalGrid, *, window: int = WINDOW, horizons: Sequence[int] = HORIZONS) -> None:
        if window < LEAST:
            raise InputError("window", f"must be at least {LEAST} outcomes, not {window}")
        if any(horizon < 1 for horizon in horizons):
            raise InputError("horizons", "must be whole numbers of tokens ≥ 1")
        self._edges = grid.edges
        self._horizons = tuple(horizons)
        self._stretch = len(self._horizons) + stretches(grid.base_hazard)
        self._names = [*(f"H = {horizon}" for horizon in self._horizons), *_stretch_names(grid), "all tokens"]
        self._kept: deque[Float32Array] = deque(maxlen=window)
        self._observed = 0
        self.threshold = threshold(len(self._names))

    def observe(self, tokens: int, ended: bool, served: Curve, frozen: Curve) -> None:
        """Take in one outcome: ``tokens`` ≥ 1 generated, an event or censored, and what was forecast of it."""
        self.take(self.measure(tokens, ended, served, frozen))

    def measure(self, tokens: int, ended: bool, served: Curve, frozen: Curve, *, entered: int = 0) -> Float32Array:
        """(2, 3, measures): what ``take`` needs of such an outcome; only windows from ``entered`` ≥ 0 tokens on count,
        where it was first forecast. Changes nothing."""
        windows = self._windows(tokens, ended, entered)
        measured = len(self._names) - 1  # the last is the sum of all stretches
        sums = np.stack([windows.sums(curve, measured) for curve in (served, frozen)])
        whole = sums[:, :, len(self._horizons) :].sum(axis=2, keepdims=True)
        return np.concatenate([sums, whole], axis=2).astype(np.float32)

    def take(self, measured: Float32Array) -> None:
        """Take in what ``measure`` of a monitor of the same grid and horizons found."""
        expected = (2, _KEPT, len(self._names))
        if measured.shape != expected:
            raise InputError("measured", f"must have the shape {expected}, not {measured.shape}")
        self._kept.append(measured)
        self._observed += 1

    def _windows(self, tokens: int, ended: bool, entered: int) -> Windows:
        """All windows whose start this outcome reached, up to the last edge: beyond, no forecast is the model's own."""
        reached = min(tokens, int(self._edges[-1]))
        intervals = np.searchsorted(self._edges[:-1], reached, side="left")
        first = np.searchsorted(self._edges[:-1], entered, side="left")
        starts, stops, measures = (
            [self._edges[first:intervals]],
            [self._edges[first + 1 : intervals + 1]],
            [self._stretch[first:intervals]],
        )
        for i, horizon in enumerate(self._horizons):
            offset = int(horizon * (self._observed * _SPREAD % 1.0))
            start = np.arange(entered + offset, reached, horizon)
            starts.append(start)
            stops.append(start + horizon)
            measures.append(np.full(len(start), i))
        start, stop, measure = (np.concatenate(parts) for parts in (starts, stops, measures))
        inside = tokens <= stop
        seen = np.where(inside & (not ended), tokens - start, stop - start)
        return Windows(measure, start, stop, inside & ended, seen)

    def report(self) -> DriftReport:
        """What the outcomes in memory say."""
        empty = np.zeros((1, 2, _KEPT, len(self._names)))
        served, frozen = (np.stack(list(self._kept)) if self._kept else empty).sum(axis=0, dtype=np.float64)
        enough = len(self._kept) >= LEAST
        found = [self._deviations(sums, enough) for sums in (served, frozen)]
        worst, most = _worst(found[0])
        alarms = [any(one.alarm for one in deviations.values()) for deviations in found]
        return DriftReport(
            outcomes=len(self._kept),
            threshold=self.threshold,
            measure=worst,
            z=most.z,
            ratio=most.ratio,
            alarm=alarms[0],
            model_alarm=alarms[1],
            explanation=self._explanation(found, alarms),
            served=found[0],
            frozen=found[1],
        )

    def _deviations(self, sums: FloatArray, enough: bool) -> dict[str, Deviation]:
        happened, forecast, variance = sums
        z = signed_deviance(happened, forecast, variance)
        ratio = np.divide(happened, forecast, out=np.full_like(forecast, np.nan), where=forecast > 0.0)
        large = (ratio > LEAST_RATIO) | (ratio < 1.0 / LEAST_RATIO)
        alarm = enough & (np.abs(z) > self.threshold) & large
        columns = zip(happened.tolist(), forecast.tolist(), ratio.tolist(), z.tolist(), alarm.tolist(), strict=True)
        return {name: Deviation(*values) for name, values in zip(self._names, columns, strict=True)}

    def _explanation(self, found: Sequence[dict[str, Deviation]], alarms: Sequence[bool]) -> str:
        if len(self._kept) < LEAST:
            return f"Too early to tell: {len(self._kept)} of at least {LEAST} outcomes."
        served, model = (_told(*_worst(deviations)) for deviations in found)
        span = f"over the last {len(self._kept):,} outcomes"
        if alarms[0]:
            return f"The forecasts as served have drifted {span}: {served}; train anew on recent requests."
        if alarms[1]:
            return f"The model has drifted {span} ({model}), and recalibration makes it good (as served, {served})."
        return (
            f"No drift {span}: at most, {served}; an alarm needs |z| > {self.threshold:.1f} and {LEAST_RATIO - 1:.0%}."
        )

    def dump(self) -> object:
        """Its memory as plain values."""
        kept = np.stack(list(self._kept)) if self._kept else np.empty(0, np.float32)
        return [self._observed, len(self._kept), kept.tobytes()]

    def load(self, memory: object) -> None:
        """Take over a dumped memory of a monitor of the same grid, window and horizons."""
        try:
            observed, count, data = msgspec.convert(memory, tuple[int, int, bytes])
            kept = np.frombuffer(data, dtype=np.float32).reshape(count, 2, _KEPT, len(self._names))
        except (msgspec.ValidationError, ValueError) as error:
            raise BundleError(f"the drift state is damaged: {error}") from None
        if not np.isfinite(kept).all() or not 0 <= count <= min(observed, self._kept.maxlen or 0):
            raise BundleError("the drift state is damaged")
        self._observed, self._kept = observed, deque(kept, maxlen=self._kept.maxlen)


def _stretch_names(grid: IntervalGrid) -> list[str]:
    """``tokens 1 to 23`` and so on, one for each stretch; one that holds no interval is named so."""
    of = stretches(grid.base_hazard)
    inside = [np.flatnonzero(of == stretch) for stretch in range(STRETCHES)]
    return [
        f"tokens {grid.edges[k[0]] + 1} to {grid.edges[k[-1] + 1]}" if k.size else f"stretch {i + 1}, empty"
        for i, k in enumerate(inside)
    ]


def _worst(deviations: dict[str, Deviation]) -> tuple[str, Deviation]:
    """The measure to name: the alarm of the largest |z|, else the largest |z|."""
    return max(deviations.items(), key=lambda item: (item[1].alarm, abs(item[1].z) if item[1].z == item[1].z else -1.0))


def _told(name: str, one: Deviation) -> str:
    return f"{name}: {one.happened:,.0f} ends happened, {one.forecast:,.0f} were forecast, z = {one.z:.1f}"
