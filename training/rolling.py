"""Accuracy over time: a log is lived through twice, with online recalibration and without, and measured window by window.

Beside each calibration error stands what a perfectly calibrated forecaster shows on as many draws: chances are kept, and
what happens is drawn from them. Draws of one request within H tokens share one fate, so that they are no more independent
than in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError, TrainingError
from endcast.predictors.bundle import Bundle
from endcast.predictors.drift import LEAST, DriftMonitor, DriftReport
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.predictors.product_limit import table_of
from endcast.survival import FloatArray, SurvivalBatch
from endcast.training import metrics
from endcast.training.fingerprints import BY_CHANCE, overlap
from endcast.training.population import Pairs, draw_pairs, measurable
from endcast.training.select import split_trace, usable
from endcast.training.served import Served, serve_outputs, serve_trace
from endcast.types import EndReason

DEFAULT_WINDOWS = 10
#: Requests that a window must hold.
LEAST_REQUESTS = 20
#: Times that a perfectly calibrated forecaster is drawn, and pairs whose survival is read at once.
CALIBRATED_DRAWS, CHUNK = 20, 65_536
#: Requests measured at most, drawn at random from a longer log.
MOST_REQUESTS = 50_000

#: Forecasts of requests (r,) after ``elapsed`` (r,) tokens.
At = Callable[[IntArray, IntArray], SurvivalBatch]


@dataclass(frozen=True)
class Accuracy:
    """Of one kind of forecast, at one horizon, in one window; ``ratio`` is happened/forecast."""

    brier_skill: float
    auc: float
    ece: float
    mean_forecast: float
    ratio: float


@dataclass(frozen=True)
class HorizonWindow:
    """One horizon in one window: share that ended (``base_rate``), forecasts with online recalibration and of the
    ``frozen`` model, and the calibration error of a perfectly calibrated forecaster (mean of ``CALIBRATED_DRAWS``)."""

    base_rate: float
    online: Accuracy
    frozen: Accuracy
    ece_if_calibrated: float


@dataclass(frozen=True)
class TimeWindow:
    """Requests that arrived from ``from_s`` to ``until_s`` (seconds after the log's first), ``draws`` of (request,
    elapsed), and the drift of their outcomes, those included that were cut."""

    from_s: float
    until_s: float
    requests: int
    draws: int
    horizons: dict[str, HorizonWindow]
    drift: DriftReport


@dataclass(frozen=True)
class Rolling:
    """All windows, and the same over all of them ``pooled``; ``cut`` requests ended by neither themselves nor a known cap:
    they count for drift only."""

    bundle: str
    population: str
    cut: int
    windows: list[TimeWindow]
    pooled: TimeWindow


@dataclass(frozen=True, eq=False)
class _Lived:
    """``served`` (n) requests in order of arrival, and forecasts of them at any time of their generation."""

    served: Served
    at: At


@dataclass(frozen=True, eq=False)
class _Chances:
    """At one horizon, p of each draw (r,): with recalibration, without, by Kaplan-Meier; and ``y``, whether it ended."""

    online: FloatArray
    frozen: FloatArray
    pooled: FloatArray
    y: FloatArray
    calibrated: FloatArray  #: (CALIBRATED_DRAWS, r), y of a perfectly calibrated forecaster

    def window(self, mask: BoolArray) -> HorizonWindow:
        """Figures of some of the draws."""
        y, reference = self.y[mask], metrics.brier(self.pooled[mask], self.y[mask])
        p = self.online[mask]
        return HorizonWindow(
            base_rate=float(y.mean()),
            online=_accuracy(p, y, reference),
            frozen=_accuracy(self.frozen[mask], y, reference),
            ece_if_calibrated=float(np.mean([metrics.ece(p, drawn[mask]) for drawn in self.calibrated])),
        )


def rolling(
    bundle: Bundle,
    trace: Trace,
    *,
    horizons: Sequence[int],
    windows: int = DEFAULT_WINDOWS,
    split: str | None = None,
    population: str = "decode_steps",
    allow_overlap: bool = False,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Rolling:
    """Accuracy over time on the part of ``trace`` that the bundle did not train on, in ``windows`` of equally many requests
    by arrival. ``split``, ``population`` and ``allow_overlap`` as in ``evaluate``."""
    if not trace.has_arrivals:
        raise TrainingError(
            "the log has no arrival times, so nothing can be told over time",
            hint="Evaluate it without --rolling, or name its time column with --columns arrival_ns=COLUMN",
        )
    if not horizons or min(horizons) < 1:
        raise InputError("horizons", "must be whole numbers of tokens ≥ 1")
    rng = np.random.default_rng(seed)
    wanted, observed = _parts(bundle, trace, split, allow_overlap, windows, rng)
    lived = [
        _live(bundle, trace, wanted, observed, horizons, recalibrate, seed, advance) for recalibrate in (True, False)
    ]
    rows = lived[0].served.rows
    measured = np.flatnonzero(measurable(trace, rows))
    pairs = draw_pairs(trace.output_tokens[rows[measured]], population, rng)
    pairs = Pairs(measured[pairs.request], pairs.elapsed, pairs.remaining)
    pooled = _kaplan_meier(bundle, lived[0].served.batch)
    chances = {str(horizon): _chances(lived, pooled, pairs, horizon, rng) for horizon in horizons}
    number = np.arange(len(rows)) * windows // len(rows)

    def window(some: BoolArray) -> TimeWindow:
        arrivals, drawn = trace.arrival_s[rows[some]], some[pairs.request]
        return TimeWindow(
            from_s=float(arrivals.min()),
            until_s=float(arrivals.max()),
            requests=int(some[measured].sum()),
            draws=int(drawn.sum()),
            horizons={name: chance.window(drawn) for name, chance in chances.items()},
            drift=_drift(bundle, trace, lived, np.flatnonzero(some), horizons),
        )

    return Rolling(
        bundle=bundle.id,
        population=population,
        cut=len(rows) - len(measured),
        windows=[window(number == i) for i in range(windows)],
        pooled=window(np.ones(len(rows), dtype=bool)),
    )


def _parts(
    bundle: Bundle, trace: Trace, split: str | None, allow_overlap: bool, windows: int, rng: np.random.Generator
) -> tuple[BoolArray, BoolArray]:
    """Requests to forecast and requests whose end is told, as masks (n,)."""
    provenance = bundle.manifest.training
    own = provenance["split"] if provenance["trace"] == trace.digest else "all"
    parts = split_trace(trace, split or own, provenance["seed"])
    tested = parts.test if parts.kind != "all" else parts.train
    share = overlap(bundle.fingerprints, trace.take(tested))
    if share > BY_CHANCE and not allow_overlap:
        raise TrainingError(
            f"{share:.1%} of the bundle's training requests are in the part to measure",
            hint="Measure another part or log, or pass --allow-overlap and call the figures what they are",
        )
    rows = tested[usable(trace, tested)]
    if not 1 <= windows <= len(rows) // LEAST_REQUESTS:
        most = len(rows) // LEAST_REQUESTS
        raise InputError(
            "windows", f"must be from 1 to {most}: {len(rows):,} requests, {LEAST_REQUESTS} a window at least"
        )
    if len(rows) > MOST_REQUESTS:
        rows = rng.permutation(rows)[:MOST_REQUESTS]
    wanted, observed = np.zeros(len(trace), dtype=bool), np.zeros(len(trace), dtype=bool)
    wanted[rows] = True
    observed[tested] = observed[parts.rest] = True
    return wanted, observed


def _live(
    bundle: Bundle,
    trace: Trace,
    wanted: BoolArray,
    observed: BoolArray,
    horizons: Sequence[int],
    recalibrate: bool,
    seed: int,
    advance: Callable[[int], None],
) -> _Lived:
    """Live through the log; outputs are read where the bundle can and the log has them."""
    forecaster = OnnxForecaster(bundle, aborts=False, recalibrate=recalibrate)
    every = forecaster.refresh_every
    if every is None or trace.table.column("output").null_count == len(trace):
        served = serve_trace(forecaster, trace, wanted, observed=observed, seed=seed, advance=advance)
        return _Lived(served, lambda request, elapsed: served.batch.take(request).advance(elapsed))
    reach = max(*horizons, int(np.diff(bundle.admission.grid.edges).max()))
    served, along = serve_outputs(
        forecaster, trace, wanted, every=every, reach=reach, observed=observed, seed=seed, advance=advance
    )
    return _Lived(served, along.at)


def _kaplan_meier(bundle: Bundle, batch: SurvivalBatch) -> At:
    """The training part's product-limit curve for the same requests."""
    zeros = np.zeros(len(batch), dtype=np.int64)
    pooled = SurvivalBatch(table_of(bundle.kaplan_meier), zeros, zeros, batch.cap, 0)
    return lambda request, elapsed: pooled.take(request).advance(elapsed)


def _chances(lived: Sequence[_Lived], pooled: At, pairs: Pairs, horizon: int, rng: np.random.Generator) -> _Chances:
    online, frozen, reference = (_read(at, pairs, horizon) for at in (lived[0].at, lived[1].at, pooled))
    calibrated = [fates(online, pairs, horizon, rng) for _ in range(CALIBRATED_DRAWS)]
    y = (pairs.remaining <= horizon).astype(np.float64)
    return _Chances(online, frozen, reference, y, np.stack(calibrated))


def _read(at: At, pairs: Pairs, horizon: int) -> FloatArray:
    """(r,), p_end of each pair."""
    p = np.empty(len(pairs.request))
    for start in range(0, len(p), CHUNK):
        part = slice(start, start + CHUNK)
        p[part] = 1.0 - at(pairs.request[part], pairs.elapsed[part]).survival_at(horizon)
    return p


def fates(p: FloatArray, pairs: Pairs, horizon: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """(r,), ends within the horizon that come with chance ``p``; one draw for each request and ``horizon`` tokens of it,
    counted from an offset of its own."""
    offset = rng.integers(horizon, size=int(pairs.request.max()) + 1)
    block = (pairs.elapsed + offset[pairs.request]) // horizon
    _, number = np.unique(pairs.request * (int(block.max()) + 1) + block, return_inverse=True)
    fate: npt.NDArray[np.bool_] = rng.random(int(number.max()) + 1)[number] < p
    return fate


def _accuracy(p: FloatArray, y: FloatArray, reference: float) -> Accuracy:
    mean = float(p.mean())
    return Accuracy(
        brier_skill=metrics.skill(metrics.brier(p, y), reference),
        auc=metrics.auc(p, y),
        ece=metrics.ece(p, y),
        mean_forecast=mean,
        ratio=float(y.mean()) / mean if mean > 0.0 else float("nan"),
    )


def _drift(
    bundle: Bundle, trace: Trace, lived: Sequence[_Lived], some: IntArray, horizons: Sequence[int]
) -> DriftReport:
    """Over all outcomes of these requests."""
    monitor = DriftMonitor(bundle.admission.grid, window=max(len(some), LEAST), horizons=horizons)
    for request in some.tolist():
        row = int(lived[0].served.rows[request])
        served, frozen = (_curve(one.at, request) for one in lived)
        ended = trace.end[row] == EndReason.STOP.value
        monitor.observe(int(trace.output_tokens[row]), bool(ended), served, frozen)
    return monitor.report()


def _curve(at: At, request: int) -> Callable[[IntArray, IntArray], FloatArray]:
    def survival(elapsed: IntArray, further: IntArray) -> FloatArray:
        return at(np.full(len(elapsed), request), elapsed).survival_at(further)

    return survival
