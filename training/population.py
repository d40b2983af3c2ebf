"""The pairs (request, elapsed tokens) over which accuracy is measured.

A router sees a length-biased population: requests in proportion to their length, elapsed uniform within each. A pair's
outcome is known if its request ended by itself or at a cap that was known, or if it was censored only after the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError, TrainingError
from endcast.types import EndReason

POPULATIONS = ("decode_steps", "checkpoints")
#: Pairs drawn at most; checkpoints every so many tokens, up to so many.
MOST_DRAWS, CHECKPOINT_EVERY, CHECKPOINT_LAST = 400_000, 32, 4096
#: Stretches of time that the bootstrap draws.
TIME_BLOCKS = 60


@dataclass(frozen=True, eq=False)
class Pairs:
    """``request`` (r,) index into the requests measured, ``elapsed`` (r,), ``remaining`` (r,) tokens."""

    request: IntArray
    elapsed: IntArray
    remaining: IntArray


def measurable(trace: Trace, rows: IntArray) -> BoolArray:
    """(n,), whether each request's end is an end to forecast: by itself, or at a cap that was known. Others (aborts, errors,
    unfinished, unrecorded caps, no output) are left out and counted."""
    at_cap = (trace.end[rows] == EndReason.LENGTH.value) & (trace.cap[rows] == trace.output_tokens[rows])
    measured: BoolArray = (trace.output_tokens[rows] > 0) & (trace.is_event[rows] | at_cap)
    if not measured.any():
        raise TrainingError("no request of the test part ended by itself or at a known cap", hint="Nothing to measure")
    return measured


def draw_pairs(lengths: IntArray, population: str, rng: np.random.Generator) -> Pairs:
    """Pairs of requests of these ``lengths`` (n,) ≥ 1. ``decode_steps``: all of them where there are few enough, else
    ``MOST_DRAWS`` at random with replacement. ``checkpoints``: elapsed 0, 32, … below min(length, 4096)."""
    if population == "checkpoints":
        each = -(-np.minimum(lengths, CHECKPOINT_LAST) // CHECKPOINT_EVERY)
        request, place = _each(each)
        elapsed = place * CHECKPOINT_EVERY
    elif population != "decode_steps":
        raise InputError("population", f"must be one of {', '.join(POPULATIONS)}, not {population!r:.40}")
    elif lengths.sum() <= MOST_DRAWS:
        request, elapsed = _each(lengths)
    else:
        steps = np.cumsum(lengths)
        drawn = np.sort(rng.integers(steps[-1], size=MOST_DRAWS))
        request = np.searchsorted(steps, drawn, side="right")
        elapsed = drawn - (steps[request] - lengths[request])
    return Pairs(request, elapsed, lengths[request] - elapsed)


def _each(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Row i ``counts[i]`` times, and 0 … counts[i] − 1 beside it."""
    request = np.repeat(np.arange(len(counts)), counts)
    return request, np.arange(len(request)) - (np.cumsum(counts) - counts)[request]


def clusters(trace: Trace, rows: IntArray, groups: npt.NDArray[np.int64] | None) -> IntArray:
    """(n,), the bootstrap cluster of each request: its prompt (``groups``), its session, or a stretch of time."""
    if groups is not None:
        return np.unique(groups[rows], return_inverse=True)[1].astype(np.int64)
    sessions = trace.table.column("session")
    if sessions.null_count == 0:
        names = np.asarray(sessions.to_pylist(), dtype=object)[rows].astype(str)
        return np.unique(names, return_inverse=True)[1].astype(np.int64)
    arrivals = trace.arrival_s[rows]
    spread = (arrivals - arrivals.min()) / max(float(np.ptp(arrivals)), 1e-9)
    block: IntArray = np.minimum(spread * TIME_BLOCKS, TIME_BLOCKS - 1).astype(np.int64)
    return block
