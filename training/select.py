"""Which rows and feature groups of a log a model may learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from endcast.datasets import splits
from endcast.datasets.person_period import rows_each
from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError, TrainingError
from endcast.predictors.features import FEATURES
from endcast.predictors.grid import IntervalGrid
from endcast.training.replay import prompt_groups
from endcast.types import EndReason

#: A group is left out where fewer than this share of requests have any of its inputs.
LEAST_KNOWN = 0.01
#: Days that a log must span before the time of day can be told from a trend.
LEAST_DAYS = 3.0
#: Groups that mean something only where the order of requests does, and those that stand in for them elsewhere. A log
#: without arrivals is split by prompt: what tells a prompt from others tells nothing of those that are met later.
ORDERED_GROUPS = (
    "earlier_turn",
    "clock",
    "prompt_size",
    "same_size",
    "near_size",
    "same_prompt",
    "same_prefix",
    "first_block",
    "first_two_blocks",
)
UNORDERED_GROUPS = ("rough_size",)
#: Groups that read with a text encoder: only where one is asked for.
ENCODED_GROUPS = ("prompt_pieces", "encoder_score")
#: Blocks of time within which validation requests are not independent.
BLOCKS = 60


@dataclass(frozen=True, eq=False)
class Parts:
    """Row indices into the trace: ``train``, ``test``, and ``rest`` in neither; ``kind`` says how they were told apart."""

    train: IntArray
    test: IntArray
    rest: IntArray
    kind: str
    cut_ns: int | None


def split_trace(trace: Trace, split: str, seed: int) -> Parts:
    """``last:S`` keeps the last share S of arrivals for testing (of prompts where there are no arrivals); ``all`` keeps
    nothing."""
    everything = np.arange(len(trace))
    none = np.empty(0, dtype=np.int64)
    if split == "all":
        return Parts(everything, none, none, "all", None)
    kind, _, share = split.partition(":")
    if kind != "last" or not _is_share(share):
        raise InputError("split", f"must be all or last:SHARE with 0 < SHARE < 1, not {split!r:.40}")
    if trace.has_arrivals:
        found = splits.by_time(trace, 1.0 - float(share))
        kind = "time"
    else:
        found = splits.by_hash([str(group) for group in prompt_groups(trace)], float(share), seed)
        kind = "prompt"
    rest = np.setdiff1d(everything, np.concatenate([found.train, found.test]))
    return Parts(found.train, found.test, rest, kind, found.cut_ns)


def _is_share(text: str) -> bool:
    try:
        return 0.0 < float(text) < 1.0
    except ValueError:
        return False


def active_groups(trace: Trace, names: list[str] | None = None) -> list[str]:
    """The registered groups that this log can feed and that mean something on it, or those named that it can feed."""
    known = {name: 1.0 - trace.table.column(name).null_count / len(trace) for name in trace.table.schema.names}
    blocks = trace.table.column("prefix_blocks")
    known["prefix_blocks"] = float(pc.sum(pc.greater(pc.fill_null(pc.list_value_length(blocks), 0), 0)).as_py()) / len(
        trace
    )
    known["arrival_s"] = float(trace.has_arrivals)
    days = float(trace.arrival_s.max()) / 86_400 if trace.has_arrivals else 0.0
    chosen = []
    for name in names or FEATURES:
        inputs = _inputs(name)
        fed = not inputs or max(known[field] for field in inputs) >= LEAST_KNOWN
        unfit = (*ENCODED_GROUPS, *(UNORDERED_GROUPS if trace.has_arrivals else ORDERED_GROUPS))
        meant = names is not None or name not in unfit
        if fed and meant and (name != "clock" or days >= LEAST_DAYS):
            chosen.append(name)
    return chosen


def _inputs(name: str) -> tuple[str, ...]:
    smallest = IntervalGrid(np.array([0, 1]), np.array([0.0, -1.0]))
    return FEATURES.get(name)(smallest).inputs


def usable(trace: Trace, index: IntArray) -> BoolArray:
    """(len(index),), whether each can be learned from: some output, and no error from the engine."""
    usable: BoolArray = (trace.output_tokens[index] > 0) & (trace.end[index] != EndReason.ERROR.value)
    if not usable.any():
        raise TrainingError("no request of the training part has output tokens", hint="Check the log's columns")
    return usable


def drawn_rows(lengths: IntArray, grid: IntervalGrid, most_rows: int, seed: int) -> IntArray:
    """Indices (ascending) of requests drawn at random, whose person-period rows number about ``most_rows`` at most."""
    each = rows_each(lengths, grid.edges)
    if each.sum() <= most_rows:
        return np.arange(len(lengths))
    count = max(int(len(lengths) * most_rows / each.sum()), 1)
    return np.sort(np.random.default_rng(seed).permutation(len(lengths))[:count])


def validation_part(trace: Trace, rows: IntArray, share: float, seed: int) -> tuple[IntArray, IntArray, IntArray]:
    """Positions in ``rows`` to fit on and to validate on, and a block number for each row.

    By arrival the last ``share`` validates, and what was still running when it began is left out; without arrivals the
    prompts of a hashed share validate.
    """
    if not trace.has_arrivals:
        groups = prompt_groups(trace)[rows]
        held = splits.by_hash([f"v{group}" for group in groups], share, seed)
        return held.train, held.test, groups
    arrivals, finished = trace.arrival_s[rows], trace.finished_s[rows]
    cut = np.quantile(arrivals, 1.0 - share)
    fit, validation = np.flatnonzero((arrivals < cut) & (finished <= cut)), np.flatnonzero(arrivals >= cut)
    if fit.size == 0 or validation.size == 0:
        raise TrainingError("the log is too short to hold a validation part", hint="Train on more requests")
    spread = (arrivals - arrivals.min()) / max(float(np.ptp(arrivals)), 1e-9)
    return fit, validation, np.minimum(spread * BLOCKS / share, BLOCKS / share - 1).astype(np.int64)
