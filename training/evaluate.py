"""Measure a forecaster on a log as if it had been serving it: every figure with Kaplan-Meier beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError, TrainingError
from endcast.predictors.bundle import Bundle
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.predictors.product_limit import table_of
from endcast.survival import FloatArray, SurvivalBatch
from endcast.training import metrics
from endcast.training.fingerprints import BY_CHANCE, overlap
from endcast.training.population import Pairs, clusters, draw_pairs, measurable
from endcast.training.replay import prompt_groups
from endcast.training.select import split_trace
from endcast.training.served import AlongOutputs, Served, serve_outputs, serve_trace

DEFAULT_HORIZONS = (16, 32, 64, 80, 128)
#: Bootstrap draws, and the mass that an interval covers.
BOOTSTRAPS, COVERAGE = 200, 0.95
#: Pairs whose survival is read at once.
CHUNK = 65_536
#: Elapsed tokens at which figures are parted.
ELAPSED = (0, 32, 64, 128, 256, 512, 1024)
#: Test requests measured at most, drawn at random from a longer log.
MOST_REQUESTS = 50_000


@dataclass(frozen=True)
class Reliability:
    """Forecast against what happened, bin by bin (equal mass)."""

    forecast: list[float]
    happened: list[float]
    mass: list[float]


@dataclass(frozen=True)
class HorizonFigures:
    """Figures of one horizon; intervals are 95 % by bootstrap over clusters."""

    base_rate: float
    log_loss: float
    brier: float
    brier_skill: float
    auc: float
    ece: float
    rmse_within: float
    mae_within: float
    intervals: dict[str, tuple[float, float]]
    reliability: Reliability


@dataclass(frozen=True)
class ElapsedFigures:
    """Skill at one horizon of the pairs whose elapsed tokens lie in [``least``, ``below``); ``unread``: of the forecast at
    admission alone, where outputs were read."""

    least: int
    below: int
    pairs: int
    base_rate: float
    brier_skill: float
    unread: float | None


@dataclass(frozen=True)
class Admission:
    """Figures of the forecast at admission, a request each."""

    c_index: float
    mae_mean: float
    mae_median: float


@dataclass(frozen=True)
class Survival:
    """Share of test requests that ran longer than t tokens, as it happened, as the model forecast (mean over requests at
    admission), and as Kaplan-Meier of the training part has it."""

    tokens: list[int]
    happened: list[float]
    model: list[float]
    kaplan_meier: list[float]


@dataclass(frozen=True)
class Evaluation:
    """All figures; ``baselines`` hold the same for Kaplan-Meier and, where outputs were read, for the forecast at
    admission, conditioned on the tokens since but not on the text."""

    bundle: str
    population: str
    n_requests: int
    n_draws: int
    excluded: dict[str, int]
    horizons: dict[str, HorizonFigures]
    admission: Admission
    elapsed_horizon: int  #: of the figures by elapsed tokens: 64 if it was asked for, else the middle one
    elapsed: list[ElapsedFigures]
    baselines: dict[str, Any]
    survival: Survival = field(repr=False)


def evaluate(
    bundle: Bundle,
    trace: Trace,
    *,
    horizons: Sequence[int] = DEFAULT_HORIZONS,
    split: str | None = None,
    population: str = "decode_steps",
    recalibrate: bool = True,
    observe: bool = True,
    allow_overlap: bool = False,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Evaluation:
    """Figures on the part of ``trace`` that the bundle did not train on.

    ``split`` is the bundle's own for the log it was trained on (so that its test part is measured), else ``all``. An
    overlap with the training part is refused unless ``allow_overlap``. The forecaster starts from the bundle's state and
    observes what finishes, unless ``observe`` is false, as in a service that is told no outcomes; its curves leave
    aborts out, which are no ends to forecast.
    """
    for horizon in horizons:
        if horizon < 1:
            raise InputError("horizons", f"must be whole numbers of tokens ≥ 1, not {horizon}")
    provenance = bundle.manifest.training
    same_log = provenance["trace"] == trace.digest
    parts = split_trace(trace, split or (provenance["split"] if same_log else "all"), provenance["seed"])
    tested = parts.test if parts.kind != "all" else parts.train
    _refuse_overlap(bundle, trace.take(tested), allow_overlap)
    rng = np.random.default_rng(seed)
    measured = measurable(trace, tested)
    rows = tested[measured]
    if len(rows) > MOST_REQUESTS:
        rows = np.sort(rows[rng.permutation(len(rows))[:MOST_REQUESTS]])
    wanted = np.zeros(len(trace), dtype=bool)
    wanted[rows] = True
    observed = np.zeros(len(trace), dtype=bool)
    if observe and trace.has_arrivals:
        observed[tested] = observed[parts.rest] = True
    forecaster = OnnxForecaster(bundle, aborts=False, recalibrate=recalibrate)
    served, along = _serve(forecaster, trace, wanted, observed, max(horizons), seed, advance)
    lengths = trace.output_tokens[served.rows]
    pairs = draw_pairs(lengths, population, rng)
    groups = None if trace.has_arrivals else prompt_groups(trace)
    cluster = clusters(trace, served.rows, groups)
    pooled = _kaplan_meier(bundle, served.batch)
    figures: dict[str, HorizonFigures] = {}
    baseline: dict[str, dict[str, HorizonFigures]] = {name: {} for name in ("kaplan_meier", "admission")}
    middle = 64 if 64 in horizons else sorted(horizons)[len(horizons) // 2]
    elapsed: list[ElapsedFigures] = []
    for horizon in horizons:
        km = _read(_at(pooled), pairs, horizon)
        admission = _read(_at(served.batch), pairs, horizon)
        model = admission if along is None else _read(along.at, pairs, horizon)
        figures[str(horizon)] = _figures(model, km, pairs, horizon, cluster, rng)
        baseline["kaplan_meier"][str(horizon)] = _figures(km, km, pairs, horizon, cluster, None)
        if along is not None:
            baseline["admission"][str(horizon)] = _figures(admission, km, pairs, horizon, cluster, rng)
        if horizon == middle:
            elapsed = _by_elapsed(model, None if along is None else admission, km, pairs, horizon)
    baselines = {"kaplan_meier": {"horizons": baseline["kaplan_meier"], "admission": _admission(pooled, lengths, rng)}}
    if along is not None:
        baselines["admission"] = {"horizons": baseline["admission"]}
    return Evaluation(
        bundle=bundle.id,
        population=population,
        n_requests=len(served.rows),
        n_draws=len(pairs.request),
        excluded=_excluded(trace, tested[~measured], len(tested[measured]) - len(rows)),
        horizons=figures,
        admission=_admission(served.batch, lengths, rng),
        elapsed_horizon=middle,
        elapsed=elapsed,
        baselines=baselines,
        survival=_survival(served.batch, pooled, lengths),
    )


def _serve(
    forecaster: OnnxForecaster,
    trace: Trace,
    wanted: BoolArray,
    observed: BoolArray,
    horizon: int,
    seed: int,
    advance: Callable[[int], None],
) -> tuple[Served, AlongOutputs | None]:
    """Forecasts at admission, and along outputs where the bundle reads and the log has them."""
    every = forecaster.refresh_every
    if every is None or trace.table.column("output").null_count == len(trace):
        return serve_trace(forecaster, trace, wanted, observed=observed, seed=seed, advance=advance), None
    return serve_outputs(
        forecaster, trace, wanted, every=every, reach=horizon, observed=observed, seed=seed, advance=advance
    )


def _refuse_overlap(bundle: Bundle, part: Trace, allowed: bool) -> None:
    share = overlap(bundle.fingerprints, part)
    if share > BY_CHANCE and not allowed:
        raise TrainingError(
            f"{share:.1%} of the bundle's training requests are in the part to measure",
            hint="Measure another part or log, or pass --allow-overlap and call the figures what they are",
        )


def _kaplan_meier(bundle: Bundle, batch: SurvivalBatch) -> SurvivalBatch:
    """The training part's product-limit curve for the same requests."""
    zeros = np.zeros(len(batch), dtype=np.int64)
    return SurvivalBatch(table_of(bundle.kaplan_meier), zeros, zeros, batch.cap, 0)


@dataclass(frozen=True, eq=False)
class _Readings:
    p: FloatArray
    within: FloatArray


_At = Callable[[IntArray, IntArray], SurvivalBatch]


def _at(batch: SurvivalBatch) -> _At:
    """Forecasts at admission, conditioned on the tokens elapsed since."""
    return lambda request, elapsed: batch.take(request).advance(elapsed)


def _read(at: _At, pairs: Pairs, horizon: int) -> _Readings:
    """p_end and expected_within of each pair."""
    p, within = np.empty(len(pairs.request)), np.empty(len(pairs.request))
    for start in range(0, len(p), CHUNK):
        part = slice(start, start + CHUNK)
        here = at(pairs.request[part], pairs.elapsed[part])
        p[part] = 1.0 - here.survival_at(horizon)
        within[part] = here.within(horizon)
    return _Readings(p, within)


def _figures(
    model: _Readings,
    km: _Readings,
    pairs: Pairs,
    horizon: int,
    cluster: IntArray,
    rng: np.random.Generator | None,
) -> HorizonFigures:
    y = (pairs.remaining <= horizon).astype(np.float64)
    error = model.within - np.minimum(pairs.remaining, horizon)
    forecast, happened, mass = metrics.reliability(model.p, y)
    return HorizonFigures(
        base_rate=float(y.mean()),
        log_loss=metrics.binary_log_loss(model.p, y),
        brier=metrics.brier(model.p, y),
        brier_skill=metrics.skill(metrics.brier(model.p, y), metrics.brier(km.p, y)),
        auc=metrics.auc(model.p, y),
        ece=metrics.ece(model.p, y),
        rmse_within=float(np.sqrt(np.mean(error**2))),
        mae_within=float(np.mean(np.abs(error))),
        intervals={} if rng is None else _intervals(model.p, km.p, y, cluster[pairs.request], rng),
        reliability=Reliability(forecast.tolist(), happened.tolist(), mass.tolist()),
    )


def _by_elapsed(
    model: _Readings, unread: _Readings | None, km: _Readings, pairs: Pairs, horizon: int
) -> list[ElapsedFigures]:
    y = (pairs.remaining <= horizon).astype(np.float64)
    found = []
    for least, below in itertools.pairwise((*ELAPSED, int(pairs.elapsed.max()) + 1)):
        mine = (pairs.elapsed >= least) & (pairs.elapsed < below)
        if not mine.any():
            continue
        pooled = metrics.brier(km.p[mine], y[mine])
        skills = [
            None if one is None else metrics.skill(metrics.brier(one.p[mine], y[mine]), pooled)
            for one in (model, unread)
        ]
        assert skills[0] is not None
        found.append(ElapsedFigures(least, below, int(mine.sum()), float(y[mine].mean()), skills[0], skills[1]))
    return found


def _intervals(
    p: FloatArray, km: FloatArray, y: FloatArray, cluster: IntArray, rng: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of Brier skill: squared errors summed by cluster, clusters drawn anew."""
    count = int(cluster.max()) + 1
    model = np.bincount(cluster, weights=(p - y) ** 2, minlength=count)
    pooled = np.bincount(cluster, weights=(km - y) ** 2, minlength=count)
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=BOOTSTRAPS)
    skills = 1.0 - (drawn @ model) / np.maximum(drawn @ pooled, 1e-300)
    tail = (1.0 - COVERAGE) / 2.0
    low, high = np.quantile(skills, [tail, 1.0 - tail])
    return {"brier_skill": (float(low), float(high))}


def _admission(batch: SurvivalBatch, lengths: IntArray, rng: np.random.Generator) -> Admission:
    mean = batch.expected_remaining
    return Admission(
        c_index=metrics.concordance(mean, lengths, rng),
        mae_mean=float(np.abs(mean - lengths).mean()),
        mae_median=float(np.abs(batch.quantile(0.5) - lengths).mean()),
    )


def _survival(batch: SurvivalBatch, pooled: SurvivalBatch, lengths: IntArray) -> Survival:
    top = int(np.quantile(lengths, 0.995)) + 1
    tokens: npt.NDArray[np.int64] = np.unique(np.linspace(0, top, 120).astype(np.int64))
    return Survival(
        tokens=tokens.tolist(),
        happened=[float((lengths > t).mean()) for t in tokens],
        model=[float(batch.survival_at(int(t)).mean()) for t in tokens],
        kaplan_meier=[float(pooled.survival_at(int(t)).mean()) for t in tokens],
    )


def _excluded(trace: Trace, rows: IntArray, not_drawn: int) -> dict[str, int]:
    """Why requests of the part were not measured."""
    reasons = np.where(trace.output_tokens[rows] == 0, "no output", trace.end[rows])
    names, counts = np.unique(reasons, return_counts=True)
    found = {str(name): int(count) for name, count in zip(names, counts, strict=True)}
    return {**found, "not drawn": not_drawn} if not_drawn else found
