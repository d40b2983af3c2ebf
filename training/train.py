"""From a trace to a bundle: split, features, fit, calibrate, refit, export, check, write."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

import endcast
from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError
from endcast.predictors.bundle import SCHEMA_VERSION, Manifest, array_bytes, write_bundle
from endcast.predictors.features.encoder_score import EncoderScore
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Columns
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.learned import encode_learned
from endcast.predictors.models import MODELS
from endcast.predictors.models.protocol import (
    FittedModel,
    ModelFamily,
    TrainingData,
    check_options,
    own_groups,
    reads_outputs,
)
from endcast.predictors.product_limit import product_limit
from endcast.training.calibrate import calibrate
from endcast.training.choose import AUTO, candidates, choose
from endcast.training.dropout import forget_names
from endcast.training.export import Exported, export
from endcast.training.fingerprints import sample
from endcast.training.learned_groups import in_place, teach
from endcast.training.output_part import has_outputs, train_output_part
from endcast.training.replay import replay
from endcast.training.select import Parts, active_groups, drawn_rows, split_trace, usable, validation_part
from endcast.types import EndReason

if TYPE_CHECKING:
    from endcast.predictors.text.text_encoder import TextEncoder
    from endcast.training.encoder_part import EncoderPart


@dataclass(frozen=True)
class Settings:
    """How to train. ``most_rows`` bounds the person-period rows that are held in memory; requests are drawn at random
    where a log makes more. ``read_outputs``: whether a second model is trained to read outputs, where the log has them.
    ``options`` go to the model family; networks train on ``device``, and an interrupted training goes on from what
    lies in the folder ``checkpoint``, if one is named. ``encoder``: a folder with a text encoder's weights, for ``text`` to begin
    with, and for the score of prompts that other families are shown then. ``model`` may be ``auto``: the best on the
    validation part that takes at most ``budget_us`` microseconds a landmark, > 0."""

    model: str = "lightgbm"
    split: str = "last:0.3"
    validation: float = 0.2
    intervals: int = 48
    features: list[str] | None = None
    most_rows: int = 1_000_000
    read_outputs: bool = True
    seed: int = 0
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    checkpoint: Path | None = None
    encoder: Path | None = None
    budget_us: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.validation < 1.0:
            raise InputError("validation", f"must be a share between 0 and 1, not {self.validation}")
        for name, least in (("intervals", 2), ("most_rows", 1), ("seed", 0), ("threads", 1)):
            if getattr(self, name) < least:
                raise InputError(name, f"must be at least {least}, not {getattr(self, name)}")
        if self.budget_us is not None and not self.budget_us > 0.0:
            raise InputError("budget", f"must be a number of microseconds above 0, not {self.budget_us}")


@dataclass(frozen=True)
class Trained:
    """What training did: the bundle's id and folder, and its manifest."""

    id: str
    path: Path
    manifest: Manifest


Tell = Callable[[str], None]


def train(
    trace: Trace,
    settings: Settings,
    out: Path,
    *,
    replace: bool = False,
    tell: Tell = lambda text: None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Trained:
    """Train on the training part of ``trace`` and write the bundle to the folder ``out``."""
    # Threads of linear algebra that wait for each other cost more than they bring: twenty times the CPU on a busy machine.
    with threadpool_limits(limits=settings.threads):
        return _train(trace, settings, out, replace, tell, advance)


def _train(
    trace: Trace, settings: Settings, out: Path, replace: bool, tell: Tell, advance: Callable[[int], None]
) -> Trained:
    names = candidates() if settings.model == AUTO else (settings.model,)
    families = [MODELS.get(name)() for name in names]
    if settings.model != AUTO:
        check_options(families[0], settings.options)
    elif settings.options:
        raise InputError("options", f"{AUTO} takes none", hint="Name the family to set its options")
    parts = split_trace(trace, settings.split, settings.seed)
    part = trace.take(parts.train)
    can_learn = usable(part, np.arange(len(part)))
    lengths, ended = part.output_tokens[can_learn], part.is_event[can_learn]
    grid = IntervalGrid.fit(lengths, ended, settings.intervals)
    groups = _groups(part, families, settings)
    tell(f"{can_learn.sum()} requests train, {len(grid)} intervals, features: {', '.join(groups) or 'none'}")
    pipeline = FeaturePipeline(groups, grid)
    rows, data, encoder = _training_data(part, can_learn, pipeline, settings, tell, advance)
    family, fitted, slope, validation, why = _fit(data, families, settings)
    final = family.refit(data, fitted)
    exported = export(data, final, slope)
    tell(f"graph and native model differ by at most {exported.difference:.1e}")
    drawn = part.take(rows)
    output = None
    if settings.read_outputs and reads_outputs(family) and has_outputs(drawn):
        pieces = encoder.pieces if encoder is not None and own_groups(family) else None
        output = train_output_part(drawn, data, family, fitted, settings.most_rows, pieces)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        model=family.name,
        feature_groups=groups,
        columns=list(pipeline.columns),
        interval_columns=list(pipeline.interval_columns),
        intervals=len(grid),
        abort_hazard=_abort_hazard(part),
        slope=slope,
        output=None if output is None else output.manifest,
        training=_provenance(trace, parts, can_learn, data, settings),
        metrics={"validation": validation, "parity": exported.difference},
        card={**final.card, **why},
        versions=_versions(),
        files={},
        encoder=[] if encoder is None else list(encoder.files),
    )
    contents = {
        **_graph_files("", grid, exported),
        **({} if output is None else _graph_files("output_", output.grid, output.exported)),
        "kaplan_meier.npy": array_bytes(product_limit(lengths, ended)),
        "history.msgpack": pipeline.dump(),
        "learned.msgpack": encode_learned({**pipeline.dump_learned(), **({} if output is None else output.learned)}),
        "fingerprints.npy": array_bytes(sample(part, settings.seed)),
        **({} if encoder is None else encoder.files),
    }
    return Trained(write_bundle(out, manifest, contents, replace=replace), out, manifest)


def _groups(part: Trace, families: Sequence[ModelFamily], settings: Settings) -> list[str]:
    """Feature groups: those that the log can feed, a family's own, and the encoder's score where there is an encoder."""
    if not any(family.uses_features for family in families):
        return []
    own = [name for family in families for name in own_groups(family)]
    if settings.encoder is not None and settings.features is None and not own:
        own = [EncoderScore.name]
    found = active_groups(part, settings.features)
    return found + [name for name in (active_groups(part, own) if own else []) if name not in found]


def _fit(
    data: TrainingData, families: Sequence[ModelFamily], settings: Settings
) -> tuple[ModelFamily, FittedModel, float, Mapping[str, Any], dict[str, Any]]:
    """The family, what it learned of the fit part, its calibration and figures of the validation part; why it, if chosen."""
    if settings.model == AUTO:
        choice = choose(data, [family.name for family in families], settings.budget_us)
        data.tell(choice.why)
        taken = choice.taken
        return taken.family, taken.fitted, taken.slope, taken.validation, {"chosen": choice.figures}
    fitted = families[0].fit(data)
    slope, validation = calibrate(data, fitted)
    return families[0], fitted, slope, validation, {}


def _graph_files(prefix: str, grid: IntervalGrid, exported: Exported) -> dict[str, bytes]:
    return {
        f"{prefix}model.onnx": exported.model,
        f"{prefix}edges.npy": array_bytes(grid.edges),
        f"{prefix}base.npy": array_bytes(grid.base),
        f"{prefix}golden_features.npy": array_bytes(exported.golden_features),
        f"{prefix}golden_hazards.npy": array_bytes(exported.golden_hazards),
    }


def _training_data(
    part: Trace,
    can_learn: BoolArray,
    pipeline: FeaturePipeline,
    settings: Settings,
    tell: Tell,
    advance: Callable[[int], None],
) -> tuple[IntArray, TrainingData, TextEncoder | None]:
    """Features of (a draw of) the training part, and its fit and validation rows; which rows of ``part`` they are; the text
    encoder, if a group reads with one."""
    candidates = np.flatnonzero(can_learn)
    drawn = candidates[drawn_rows(part.output_tokens[candidates], pipeline.grid, settings.most_rows, settings.seed)]
    if len(drawn) < len(candidates):
        tell(f"{len(drawn)} of {len(candidates)} requests are drawn to fit; history is kept of all")
    wanted = np.zeros(len(part), dtype=bool)
    wanted[drawn] = True
    out_of_fold = teach(part, drawn, pipeline, settings.seed, tell)
    encoder = _encoder_part(part, drawn, pipeline, settings, tell) if pipeline.encoded_groups else None
    if encoder is not None:
        pipeline.set_encoder(encoder.encoder)
        out_of_fold |= encoder.out_of_fold
    rows, collected = replay(part, pipeline, wanted, seed=settings.seed, advance=advance)
    raw = in_place(collected, pipeline, out_of_fold, np.searchsorted(drawn, rows)) if collected else []
    raw = forget_names(raw, pipeline, settings.seed)
    fit, validation, block = validation_part(part, rows, settings.validation, settings.seed)
    data = TrainingData(
        grid=pipeline.grid,
        columns=pipeline.columns,
        interval_columns=pipeline.interval_columns,
        features=pipeline.transform(raw) if raw else _no_columns(len(rows), pipeline.grid),
        lengths=part.output_tokens[rows],
        ended=part.is_event[rows],
        fit=fit,
        validation=validation,
        block=block,
        seed=settings.seed,
        threads=settings.threads,
        options=settings.options,
        tell=tell,
        device=settings.device,
        checkpoint=settings.checkpoint,
        encoder=None if encoder is None else encoder.source,
    )
    return rows, data, None if encoder is None else encoder.encoder


def _encoder_part(
    part: Trace, rows: IntArray, pipeline: FeaturePipeline, settings: Settings, tell: Tell
) -> EncoderPart:
    from endcast.training.encoder_part import EncoderSettings, make_encoder_part  # loads torch

    own = EncoderSettings(
        folder=settings.encoder,
        seed=settings.seed,
        threads=settings.threads,
        device=settings.device,
        checkpoint=settings.checkpoint,
        tell=tell,
    )
    return make_encoder_part(part, rows, pipeline, own)


def _no_columns(rows: int, grid: IntervalGrid) -> Columns:
    return Columns(np.empty((rows, 0), np.float32), np.empty((rows, len(grid), 0), np.float32))


def _abort_hazard(part: Trace) -> float:
    """Chance a token that the client leaves: aborts over tokens at risk."""
    aborts = int((part.end == EndReason.ABORT.value).sum())
    return aborts / max(int(part.output_tokens.sum()), 1)


def _provenance(
    trace: Trace, parts: Parts, can_learn: BoolArray, data: TrainingData, settings: Settings
) -> dict[str, Any]:
    part = trace.take(parts.train)
    ends, counts = np.unique(part.end, return_counts=True)
    window = [int(part.arrival_ns.min()), int(part.arrival_ns.max())] if trace.has_arrivals else None
    return {
        "trace": trace.digest,
        "split": settings.split,
        "split_by": parts.kind,
        "cut_ns": parts.cut_ns,
        "window_ns": window,
        "requests": len(part),
        "left_out": int((~can_learn).sum()),
        "unfinished_at_the_cut": len(parts.rest),
        "drawn_to_fit": len(data.lengths),
        "ends": {str(end): int(count) for end, count in zip(ends, counts, strict=True)},
        "validation": settings.validation,
        "intervals": settings.intervals,
        "seed": settings.seed,
        "options": dict(settings.options),
    }


def _versions() -> dict[str, str]:
    found = {"endcast": endcast.__version__, "python": platform.python_version()}
    for package in ("numpy", "pyarrow", "lightgbm", "scikit-learn", "torch", "onnx", "onnxruntime"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
