"""The prefill stage before decode: a few workers that read prompts, one after the other, in order of arrival.

A request of s tokens takes the prefill worker that is free first for s / rate seconds, and then reaches the decode
workers. Nothing flows back, so the whole stage is worked out before decode begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """``workers``, ≥ 1, that read ``rate`` prompt tokens a second each, > 0."""

    rate: float
    workers: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rate) and self.rate > 0.0):
            raise InputError("prefill_rate", f"must be a finite number above 0, not {self.rate!r:.60}")
        if type(self.workers) is not int or self.workers < 1:
            raise InputError("prefill_workers", f"must be a whole number from 1 on, not {self.workers!r:.60}")


@dataclass(frozen=True, eq=False)
class Prefilled:
    """A workload in the order in which it reaches decode, ``workload.arrival_s`` being when it does.

    ``order`` (n,) each one's place in order of arrival, ``arrival_s`` (n,) when it arrived and ``prefill_s`` (n,) how
    long it was read, seconds, all in the workload's order.
    """

    workload: Workload
    order: IntArray
    arrival_s: FloatArray
    prefill_s: FloatArray


def prefilled(workload: Workload, prefill: Prefill | None) -> Prefilled:
    """The workload behind the stage; without one each request reaches decode when it arrives."""
    count = len(workload)
    if prefill is None:
        return Prefilled(workload, np.arange(count), workload.arrival_s, np.zeros(count))
    took = workload.prompt / prefill.rate
    ready = _ready(workload.arrival_s, took, prefill.workers)
    order = np.argsort(ready, kind="stable")
    return Prefilled(workload.reordered(order, ready[order]), order, workload.arrival_s[order], took[order])


@njit(cache=True)
def _ready(arrival_s: FloatArray, took: FloatArray, workers: int) -> FloatArray:
    """(n,) seconds at which each has been read; ``arrival_s`` and ``took`` (n,), in order of arrival."""
    free_at, ready = np.zeros(workers), np.empty_like(arrival_s)
    for i in range(arrival_s.shape[0]):
        first = np.argmin(free_at)
        ready[i] = max(arrival_s[i], free_at[first]) + took[i]
        free_at[first] = ready[i]
    return ready
