"""The log that ``endcast simulate`` plays: which of its requests, in which order, arriving when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from endcast.cli.logs import read_log
from endcast.datasets.read import Reading
from endcast.datasets.trace import Trace
from endcast.errors import InputError, TraceError
from endcast.router.arrivals import borrowed_arrivals, poisson_arrivals
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray

POISSON = "poisson"


@dataclass(frozen=True, eq=False)
class PlayedLog:
    """``trace`` holds the requests that are played, row by row as ``workload`` names them; ``source`` says which log
    that was and where the arrivals come from, as JSON; ``notes`` say which of its numbers were estimated."""

    trace: Trace
    workload: Workload
    source: dict[str, object]
    notes: tuple[str, ...]


def load(
    log: Path,
    format: str | None,
    columns: list[str] | None,
    *,
    arrivals: str | None,
    arrivals_prompts: bool,
    requests: int | None,
    seed: int,
) -> PlayedLog:
    """Read the log, and draw or borrow arrivals if asked to: ``poisson``, or another log's file.

    With ``arrivals_prompts`` the other log lends its prompts' sizes too, each with its arrival; forecasts still see the
    log's own prompts. A log without arrivals of its own is a collection in no order of time, often sorted by model: it
    is shuffled. The first ``requests`` are played.
    """
    if requests is not None and requests < 1:
        raise InputError("--requests", f"must be at least 1, not {requests}")
    other = None if arrivals in (None, POISSON) else _other(Path(str(arrivals)))
    if arrivals_prompts and other is None:
        raise InputError("--arrivals-prompts", "takes prompt sizes from another log, which --arrivals LOG must name")
    reading = read_log(log, format, columns)
    if arrivals is None:
        _check_arrivals(log, reading.trace)
    rng = np.random.default_rng(seed)
    trace = _ordered(reading.trace, requests, rng)
    times = trace.arrival_s if arrivals is None else _arrivals(len(trace), other, rng)
    prompts = _borrowed_prompts(len(trace), other, str(arrivals)) if other is not None and arrivals_prompts else None
    source = {
        **_source(log, reading),
        "log_columns": None if columns is None else ",".join(columns),
        "first_requests": requests,
        "arrivals": "log" if arrivals is None else Path(arrivals).name,
        "arrivals_prompts": arrivals_prompts,
    }
    notes = tuple(note for note in reading.report.notes if note.startswith("ESTIMATED"))
    return PlayedLog(trace, Workload.from_trace(trace, arrival_s=times, prompt=prompts), source, notes)


def _other(other: Path) -> Trace:
    if not other.is_file():
        raise InputError("--arrivals", f"must be {POISSON} or the file of a log, and {other} is neither")
    trace = read_log(other, None, None).trace
    _check_arrivals(other, trace)
    return trace


def _check_arrivals(log: Path, trace: Trace) -> None:
    if not trace.has_arrivals:
        missing = trace.table.column("arrival_ns").null_count
        raise TraceError(
            f"{log} tells no arrival time for {missing:,} of its {len(trace):,} requests",
            hint="Draw arrivals with --arrivals poisson, or take another log's with --arrivals LOG",
        )


def _ordered(trace: Trace, requests: int | None, rng: np.random.Generator) -> Trace:
    order = np.arange(len(trace)) if trace.has_arrivals else rng.permutation(len(trace))
    return trace.take(order[:requests])


def _arrivals(count: int, other: Trace | None, rng: np.random.Generator) -> FloatArray:
    return poisson_arrivals(count, rng) if other is None else borrowed_arrivals(count, other.arrival_s)


def _borrowed_prompts(count: int, other: Trace, name: str) -> IntArray:
    """(count,), tokens: those that came with the borrowed arrivals, repeated as these are."""
    unknown = int(np.sum(other.prompt_tokens < 0))
    if unknown:
        raise TraceError(
            f"{name} tells no prompt size for {unknown:,} of its {len(other):,} requests",
            hint="Leave --arrivals-prompts out, or take another log's arrivals",
        )
    in_order = other.prompt_tokens[np.argsort(other.arrival_ns, kind="stable")]
    return in_order[np.arange(count) % len(in_order)]


def _source(log: Path, reading: Reading) -> dict[str, object]:
    return {
        "log": log.name,
        "log_digest": reading.trace.digest,
        "log_format": reading.report.format,
        "log_requests": len(reading.trace),
    }
