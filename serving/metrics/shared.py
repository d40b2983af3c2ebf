"""One ``/metrics`` for several processes: each leaves its numbers in a folder, and whichever is asked adds them up.

Counters and histograms are summed, those of processes that have ended as well, or a sum would fall and look like a restart;
but what each counts of the outcome log that all read is the same for all. Gauges are those of living processes: amounts are
summed, states (which all share, or of which the worst counts) are the largest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

#: Seconds between two times that a process leaves its numbers.
EVERY_S = 1.0
#: Gauges of amounts: what several processes have together is their sum.
SUMMED = frozenset(
    {
        "endcast_waiting_calls",
        "endcast_waiting_bytes",
        "endcast_open_streams",
        "endcast_stream_bytes",
        "endcast_outcomes_waiting",
        "endcast_outcomes_backlog",
        "endcast_ledger_forecasts",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
#: Counters of what each process reads in the log that they share.
SAME = frozenset({"endcast_outcome_generations", "endcast_outcomes_unresolved", "endcast_outcome_lines_lost"})
_CUMULATIVE = frozenset({"counter", "histogram"})
_SUFFIX = ".metrics"


def shared_folder(copies: Path) -> Path:
    """Where the processes of one supervisor leave their numbers, below the folder that it made for them."""
    folder = copies / "metrics"
    folder.mkdir(exist_ok=True)
    return folder


class SharedMetrics:
    """One process's part of a folder of metrics, made by whoever started the processes."""

    def __init__(self, folder: Path, pid: int | None = None) -> None:
        self._folder = folder
        self._own = folder / f"{os.getpid() if pid is None else pid}{_SUFFIX}"

    def leave(self, text: bytes) -> None:
        """Put this process's numbers where the others find them, whole or not at all."""
        staging = self._own.with_suffix(".new")
        staging.write_bytes(text)
        staging.replace(self._own)

    def merged(self, text: bytes) -> bytes:
        """This process's numbers, now, with those that the others left last."""
        self.leave(text)
        parts = [(text.decode(), True)]
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if file != self._own:
                parts.append((file.read_text(encoding="utf-8"), is_alive(int(file.stem))))
        return merge(parts)

    @asynccontextmanager
    async def life(self, text: Iterator[bytes]) -> AsyncIterator[None]:
        """Leave what ``text`` gives, now and again; for the last time when all calls are answered."""
        task = asyncio.create_task(self._leave_often(text))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.leave(next(text))

    async def _leave_often(self, text: Iterator[bytes]) -> None:
        while True:
            self.leave(next(text))
            await asyncio.sleep(EVERY_S)


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def merge(parts: Iterable[tuple[str, bool]]) -> bytes:
    """One exposition of several, each with whether its process is alive."""
    families: dict[str, Metric] = {}
    numbers: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for text, alive in parts:
        for family in text_string_to_metric_families(text):
            if not alive and family.type not in _CUMULATIVE:
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found = numbers.setdefault(family.name, {})
            for sample in family.samples:
                at = (sample.name, tuple(sample.labels.items()))
                found[at] = _together(family, found.get(at), sample.value)
    for name, family in families.items():
        for (sample_name, labels), value in numbers[name].items():
            family.add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    return generate_latest(registry)


def _together(family: Metric, before: float | None, value: float) -> float:
    if before is None:
        return value
    if (family.type in _CUMULATIVE and family.name not in SAME) or family.name in SUMMED:
        return before + value
    return min(before, value) if family.name.endswith(("_created", "_start_time_seconds")) else max(before, value)


class _Fixed(Collector):
    """Families that are as they are."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._families.values()
