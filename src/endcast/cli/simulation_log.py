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
from endcast.survival import FloatArray

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
    log: Path, format: str | None, columns: list[str] | None, *, arrivals: str | None, requests: int | None, seed: int
) -> PlayedLog:
    """Read the log, and draw or borrow arrivals if asked to: ``poisson``, or another log's file.

    A log without arrivals of its own is a collection in no order of time, often sorted by model: it is shuffled.
    The first ``requests`` are played.
    """
    if requests is not None and requests < 1:
        raise InputError("--requests", f"must be at least 1, not {requests}")
    pattern = None if arrivals in (None, POISSON) else _pattern(Path(str(arrivals)))
    reading = read_log(log, format, columns)
    if arrivals is None:
        _check_arrivals(log, reading.trace)
    rng = np.random.default_rng(seed)
    trace = _ordered(reading.trace, requests, rng)
    times = trace.arrival_s if arrivals is None else _arrivals(len(trace), pattern, rng)
    source = {
        **_source(log, reading),
        "log_columns": None if columns is None else ",".join(columns),
        "first_requests": requests,
        "arrivals": "log" if arrivals is None else Path(arrivals).name,
    }
    notes = tuple(note for note in reading.report.notes if note.startswith("ESTIMATED"))
    return PlayedLog(trace, Workload.from_trace(trace, arrival_s=times), source, notes)


def _pattern(other: Path) -> FloatArray:
    if not other.is_file():
        raise InputError("--arrivals", f"must be {POISSON} or the file of a log, and {other} is neither")
    trace = read_log(other, None, None).trace
    _check_arrivals(other, trace)
    return trace.arrival_s


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


def _arrivals(count: int, pattern: FloatArray | None, rng: np.random.Generator) -> FloatArray:
    return poisson_arrivals(count, rng) if pattern is None else borrowed_arrivals(count, pattern)


def _source(log: Path, reading: Reading) -> dict[str, object]:
    return {
        "log": log.name,
        "log_digest": reading.trace.digest,
        "log_format": reading.report.format,
        "log_requests": len(reading.trace),
    }
