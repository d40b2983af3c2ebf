"""A log lived through again: each request is seen with what had finished when it came.

Features of training rows and of evaluation come from here and nowhere else, so that neither can look ahead. Where a log has
no arrival times, prompts come in a random order, one after the other: no request sees an answer to its own prompt.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.predictors.features.pipeline import FeaturePipeline
from endcast.predictors.features.protocol import Float32Array
from endcast.types import Completion, Request

#: Rows of which stateless groups are collected at once.
CHUNK = 4096


@dataclass(frozen=True)
class Event:
    """``row`` of the trace arrives (``request``) or finishes (``completion``)."""

    kind: Literal["arrives", "finishes"]
    row: int
    request: Request
    completion: Completion | None = None


def events(trace: Trace, seed: int = 0) -> Iterator[Event]:
    """Arrivals and ends in the order in which they happened; an end at an arrival's instant comes first."""
    return _timed(trace) if trace.has_arrivals else _by_prompt(trace, seed)


def _timed(trace: Trace) -> Iterator[Event]:
    finished, arrivals = trace.finished_s, trace.arrival_s
    running: list[tuple[float, int, Completion]] = []
    order = np.argsort(arrivals, kind="stable")
    in_order = trace if np.array_equal(order, np.arange(len(trace))) else trace.take(order)
    for row, completion in zip(order.tolist(), in_order.completions(), strict=True):
        while running and running[0][0] <= arrivals[row]:
            _, other, done = heapq.heappop(running)
            yield Event("finishes", other, done.request, done)
        yield Event("arrives", row, completion.request)
        heapq.heappush(running, (float(finished[row]), row, completion))
    while running:
        _, other, done = heapq.heappop(running)
        yield Event("finishes", other, done.request, done)


def prompt_groups(trace: Trace) -> IntArray:
    """(n,), a number for each distinct prompt (text or messages; the row itself where there is neither)."""
    texts = zip(*(trace.table.column(name).to_pylist() for name in ("prompt", "messages")), strict=True)
    numbers: dict[object, int] = {}
    keys = ((prompt or messages or ("row", i)) for i, (prompt, messages) in enumerate(texts))
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), dtype=np.int64, count=len(trace))


def _by_prompt(trace: Trace, seed: int) -> Iterator[Event]:
    groups = prompt_groups(trace)
    place = np.random.default_rng(seed).permutation(int(groups.max()) + 1)
    order = np.argsort(place[groups], kind="stable")
    waiting: list[Event] = []
    current = -1
    for row, completion in zip(order.tolist(), trace.take(order).completions(), strict=True):
        if groups[row] != current:
            yield from waiting
            waiting, current = [], int(groups[row])
        yield Event("arrives", row, completion.request)
        waiting.append(Event("finishes", row, completion.request, completion))
    yield from waiting


class RawCollector:
    """Collects raw numbers of wanted requests: stateful groups at once, stateless ones some rows at a time."""

    def __init__(self, pipeline: FeaturePipeline) -> None:
        self._pipeline = pipeline
        self._parts: list[list[Float32Array]] = [[] for _ in pipeline.groups]
        self._waiting: list[Request] = []

    def add(self, request: Request) -> None:
        """Collect one request as of now."""
        for group, part in zip(self._pipeline.groups, self._parts, strict=True):
            if group.stateful:
                part.append(group.collect([request]))
        self._waiting.append(request)
        if len(self._waiting) == CHUNK:
            self._flush()

    def _flush(self) -> None:
        for group, part in zip(self._pipeline.groups, self._parts, strict=True):
            if not group.stateful and self._waiting:
                part.append(group.collect(self._waiting))
        self._waiting = []

    def finish(self) -> Sequence[Float32Array]:
        """(n, w) of each group, rows in the order of ``add``."""
        self._flush()
        return [np.concatenate(part) for part in self._parts]


def replay(
    trace: Trace,
    pipeline: FeaturePipeline,
    wanted: BoolArray,
    *,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> tuple[IntArray, Sequence[Float32Array]]:
    """Live through ``trace``; rows that are ``wanted`` (n,), in order of arrival, and their raw numbers.

    Afterwards ``pipeline`` remembers every completion of the trace.
    """
    collector, rows = RawCollector(pipeline), []
    for event in events(trace, seed):
        if event.completion is not None:
            pipeline.observe([event.completion])
            continue
        if wanted[event.row]:
            collector.add(event.request)
            rows.append(event.row)
        advance(1)
    return np.array(rows, dtype=np.int64), collector.finish() if rows else []
