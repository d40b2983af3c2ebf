"""The figures of a run, as the reference semantics define them (docs/routing.md lists them all)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from endcast.compiled import njit
from endcast.router import record as sums_of
from endcast.router.record import RunRecord
from endcast.survival import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Of one time over all requests, in seconds."""

    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: FloatArray) -> Distribution:
        """Of ``values`` (n,), n ≥ 1; percentiles interpolate linearly."""
        p50, p99 = np.percentile(values, [50.0, 99.0])
        return cls(mean=float(values.mean()), p50=float(p50), p99=float(p99), max=float(values.max()))


#: Of a time that is not simulated.
NONE = Distribution(mean=0.0, p50=0.0, p99=0.0, max=0.0)


@dataclass(frozen=True, kw_only=True)
class DecisionTime:
    """CPU milliseconds of a routing round."""

    p50: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run. The first block is taken over the steps that start by the last arrival (at the decode
    workers), the times over all requests."""

    throughput: float  #: tokens/s
    efficiency: float  #: share of the time that perfect balance of the same batches would have needed, in (0, 1]
    imbalance: float  #: Σ I / (G·Σ M), in [0, 1)
    kv_per_slot: float  #: KV tokens of a busy slot over L̄₁; 1 = nothing heavy was left waiting
    backlog: float  #: requests that waited when the last one arrived at the decode workers
    overtakings_max: float  #: most later arrivals that started in an earlier step than one request
    e2e_s: Distribution
    wait_s: Distribution  #: for a prefill worker and for a slot
    prefill_s: Distribution = NONE  #: being prefilled; 0 where that is not simulated
    ttft_s: Distribution  #: wait, prefill and the first step
    tpot_s: Distribution
    preemptions: float
    preempted_share: float = 0.0  #: of the requests served, those that were thrown out at least once
    requeued: float = 0.0  #: how often a request went back because its worker was lost
    recomputed_tokens: float = 0.0  #: prefilled anew, after either
    rejected: float
    prefix_hit_share: float = (
        0.0  #: of the prompt tokens, those that the worker had seen; 0 where the log has no blocks
    )
    decision_ms: DecisionTime


def figures(record: RunRecord, *, kv_per_slot: float) -> Figures:
    """The figures of a run; ``kv_per_slot`` is L̄₁ in tokens."""
    sums, last_reached = record.sums, record.reached_s.max()
    ideal, busy = sums[sums_of.IDEAL], sums[sums_of.BUSY]
    p50, p99 = np.percentile(record.decision_ns / 1e6, [50.0, 99.0])
    in_decode = record.admission_step[np.argsort(record.reached_s, kind="stable")]
    return Figures(
        throughput=float(sums[sums_of.TOKENS] / (sums[sums_of.END_S] - record.arrival_s[0])),
        efficiency=float(sums[sums_of.BALANCED_S] / sums[sums_of.STEP_S]),
        imbalance=float((ideal - sums[sums_of.LOAD]) / ideal) if ideal > 0 else 0.0,
        kv_per_slot=float(sums[sums_of.LOAD] / busy / kv_per_slot) if kv_per_slot > 0 else 0.0,
        backlog=float(np.sum(record.admission_s > last_reached)),
        overtakings_max=float(overtakings(in_decode).max()),
        e2e_s=Distribution.of(record.finish_s - record.arrival_s),
        wait_s=Distribution.of(record.admission_s - record.arrival_s - record.prefill_s),
        prefill_s=Distribution.of(record.prefill_s),
        ttft_s=Distribution.of(record.first_token_s - record.arrival_s),
        tpot_s=Distribution.of((record.finish_s - record.admission_s) / record.output),
        preemptions=float(record.preempted.sum()),
        preempted_share=float(np.mean(record.preempted > 0)),
        requeued=float(record.requeued.sum()),
        recomputed_tokens=float(record.recomputed_tokens),
        rejected=float(record.rejected),
        prefix_hit_share=float(record.prefix_hits / max(int(record.prompt.sum()), 1)),
        decision_ms=DecisionTime(p50=float(p50), p99=float(p99)),
    )


def overtakings(admission_step: IntArray) -> IntArray:
    """(n,): how many later arrivals started in an earlier step than each request, which are in order of arrival."""
    counts: IntArray = _overtakings(admission_step, np.argsort(admission_step, kind="stable"))
    return counts


@njit(cache=True)
def _overtakings(step: IntArray, by_step: IntArray) -> IntArray:
    """Counts through a binary indexed tree over arrival numbers: O(n log n)."""
    n = step.shape[0]
    tree, passed = np.zeros(n + 1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    begin = 0
    while begin < n:
        end = begin
        while end < n and step[by_step[end]] == step[by_step[begin]]:
            end += 1
        for i in range(begin, end):
            older, node = 0, by_step[i] + 1
            while node > 0:
                older += tree[node]
                node -= node & -node
            passed[by_step[i]] = begin - older
        for i in range(begin, end):
            node = by_step[i] + 1
            while node <= n:
                tree[node] += 1
                node += node & -node
        begin = end
    return passed
