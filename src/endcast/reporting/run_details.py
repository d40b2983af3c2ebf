"""What plots need of a run beyond its figures: who waited how long, where time went, loads over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from endcast.router import record as sums_of
from endcast.router.record import RunRecord
from endcast.router.simulator import PlayedRun
from endcast.survival import FloatArray, IntArray

#: Stretches of time that loads are shown over, and instants that are averaged in each.
BINS, INSTANTS = 160, 12
#: KV tokens below which a sum is what rounding left of nothing.
_NOTHING = 1e-3


@dataclass(frozen=True)
class TimeShares:
    """Where decode time goes, shares of 1: what any step costs, reading KV that a balanced fleet would read too, and
    waiting for the heaviest worker. ``occupancy`` is the share of slots that were busy."""

    fixed: float
    reading: float
    imbalance: float
    occupancy: float


@dataclass(frozen=True)
class WaitOfClass:
    """Waits of the requests of one size: ``label`` says which, seconds."""

    label: str
    requests: int
    mean: float
    p99: float
    max: float


@dataclass(frozen=True, eq=False)
class LoadOverTime:
    """Over T stretches from the first arrival to the last, ``until_s``: ``load`` (G, T) mean KV tokens of each worker,
    ``heaviest`` (T,) of whichever was the heaviest, ``waiting`` (T,) requests that wait."""

    until_s: float
    load: FloatArray
    heaviest: FloatArray
    waiting: FloatArray

    @property
    def fullness(self) -> FloatArray:
        """(G, T), each worker's load as a share of the heaviest's; 0 where nothing ran."""
        empty = np.zeros_like(self.load)
        return np.divide(self.load, self.heaviest, out=empty, where=self.heaviest > 0.0)

    @property
    def idle(self) -> FloatArray:
        """(T,), share of KV work that workers idle because of the heaviest; 0 where nothing ran."""
        share: FloatArray = np.where(self.heaviest > 0.0, 1.0 - self.fullness.mean(axis=0), 0.0)
        return share


@dataclass(frozen=True, eq=False)
class RunDetails:
    """Of one run, or several averaged: mean seconds that a request waits and decodes, and what else plots show."""

    shares: TimeShares
    wait_s: float
    decode_s: float
    by_prompt: tuple[WaitOfClass, ...]
    by_output: tuple[WaitOfClass, ...]
    over_time: LoadOverTime

    @classmethod
    def of(cls, run: PlayedRun, *, workers: int, slots: int) -> RunDetails:
        """From a run on so many workers with so many slots in all."""
        record = run.record
        wait = record.admission_s - record.arrival_s - record.prefill_s
        return cls(
            shares=time_shares(record, slots=slots),
            wait_s=float(wait.mean()),
            decode_s=float((record.finish_s - record.admission_s).mean()),
            by_prompt=waits_by_size(record.prompt, wait),
            by_output=waits_by_size(record.output, wait),
            over_time=load_over_time(record, workers),
        )

    @classmethod
    def averaged(cls, runs: Sequence[RunDetails]) -> RunDetails:
        """Means over runs of the same requests; loads over time are the first run's."""
        return cls(
            shares=TimeShares(*np.mean([astuple(run.shares) for run in runs], axis=0).tolist()),
            wait_s=float(np.mean([run.wait_s for run in runs])),
            decode_s=float(np.mean([run.decode_s for run in runs])),
            by_prompt=_averaged([run.by_prompt for run in runs]),
            by_output=_averaged([run.by_output for run in runs]),
            over_time=runs[0].over_time,
        )


def _averaged(runs: Sequence[tuple[WaitOfClass, ...]]) -> tuple[WaitOfClass, ...]:
    return tuple(
        replace(
            same[0],
            mean=float(np.mean([size.mean for size in same])),
            p99=float(np.mean([size.p99 for size in same])),
            max=float(np.mean([size.max for size in same])),
        )
        for same in zip(*runs, strict=True)
    )


def time_shares(record: RunRecord, *, slots: int) -> TimeShares:
    """Where a run's decode time went, up to the last arrival, on so many slots in all."""
    sums = record.sums
    total, base = float(sums[sums_of.STEP_S]), float(sums[sums_of.BASE_S])
    balanced = float(sums[sums_of.BALANCED_S])
    return TimeShares(
        fixed=base / total,
        reading=(balanced - base) / total,
        imbalance=(total - balanced) / total,
        occupancy=float(sums[sums_of.BUSY] / (sums[sums_of.STEPS] * slots)),
    )


def waits_by_size(tokens: IntArray, wait_s: FloatArray) -> tuple[WaitOfClass, ...]:
    """Waits (n,) by quarters of size (n,), the smallest first; fewer classes where sizes repeat."""
    edges = np.unique(np.quantile(tokens, [0.25, 0.5, 0.75], method="inverted_cdf"))
    edges = edges[edges < tokens.max()]
    place = np.searchsorted(edges, tokens, side="left")
    return tuple(
        WaitOfClass(
            label=_class_label(edges, i),
            requests=int((place == i).sum()),
            mean=float(wait_s[place == i].mean()),
            p99=float(np.percentile(wait_s[place == i], 99.0)),
            max=float(wait_s[place == i].max()),
        )
        for i in range(len(edges) + 1)
    )


def _class_label(edges: IntArray, i: int) -> str:
    if len(edges) == 0:
        return "all"
    if i == len(edges):
        return f"over {edges[-1]:,}"
    low = int(edges[i - 1]) + 1 if i else 0
    return f"up to {edges[i]:,}" if i == 0 else f"{low:,} to {edges[i]:,}"


def load_over_time(record: RunRecord, workers: int) -> LoadOverTime:
    """Loads at ``BINS`` × ``INSTANTS`` instants, averaged bin by bin.

    A running request's tokens are taken to grow evenly from its admission to its end.
    """
    until = float(record.arrival_s[-1]) or float(record.finish_s.max())  # all at one instant: until everything ended
    count = BINS * INSTANTS
    at = (np.arange(count) + 0.5) * until / count
    first, last = (np.searchsorted(at, times) for times in (record.admission_s, record.finish_s))
    rate = record.output / (record.finish_s - record.admission_s)
    base = record.prompt - rate * record.admission_s
    load = _running_sum(base, record.worker, first, last, (workers, count))
    load += at * _running_sum(rate, record.worker, first, last, (workers, count))
    load[load < _NOTHING] = 0.0
    waiting = np.searchsorted(record.arrival_s, at, side="right") - np.searchsorted(
        np.sort(record.admission_s), at, side="right"
    )
    return LoadOverTime(
        until_s=until,
        load=load.reshape(workers, BINS, INSTANTS).mean(axis=2),
        heaviest=load.max(axis=0).reshape(BINS, INSTANTS).mean(axis=1),
        waiting=waiting.reshape(BINS, INSTANTS).mean(axis=1),
    )


def _running_sum(
    value: FloatArray, row: IntArray, first: IntArray, last: IntArray, shape: tuple[int, int]
) -> FloatArray:
    """``shape``: sums of ``value`` (n,) in their rows over the columns first ≤ i < last."""
    steps = np.zeros((shape[0], shape[1] + 1))
    np.add.at(steps, (row, first), value)
    np.add.at(steps, (row, last), -value)
    sums: FloatArray = np.cumsum(steps[:, :-1], axis=1)
    return sums
