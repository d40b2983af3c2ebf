"""How busy a service has been lately: rates between samples of its counters."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from endcast.serving.metrics.instruments import Metrics
from endcast.serving.status.schema import Rate

#: Seconds between two looks at the counters, and how many are kept: ten minutes.
SAMPLE_S, SAMPLES = 5.0, 120
#: The route whose calls count here.
ROUTE = "/v1/forecasts"


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The counters at one moment (``at``, Unix time); ``no_slower``: calls by the bound of seconds that they kept."""

    at: float
    forecasts: float
    errors: float
    no_slower: Mapping[float, float]

    @property
    def calls(self) -> float:
        """All calls."""
        return max(self.no_slower.values(), default=0.0)


def count(metrics: Metrics, at: float) -> Counted:
    """The counters as they are now."""
    no_slower: defaultdict[float, float] = defaultdict(float)
    for sample in _samples(metrics.seconds):
        if sample.name.endswith("_bucket") and sample.labels["route"] == ROUTE:
            no_slower[float(sample.labels["le"])] += sample.value
    return Counted(
        at=at,
        forecasts=metrics.registry.get_sample_value("endcast_batch_landmarks_sum") or 0.0,
        errors=sum(sample.value for sample in _samples(metrics.errors) if sample.name.endswith("_total")),
        no_slower=no_slower,
    )


def rate_between(before: Counted, after: Counted) -> Rate:
    """What happened between two moments."""
    seconds = after.at - before.at
    new = {bound: calls - before.no_slower.get(bound, 0.0) for bound, calls in after.no_slower.items()}
    return Rate(
        at=after.at,
        calls_per_s=(after.calls - before.calls) / seconds,
        forecasts_per_s=(after.forecasts - before.forecasts) / seconds,
        errors_per_s=(after.errors - before.errors) / seconds,
        p50_s=quantile(new, 0.5),
        p99_s=quantile(new, 0.99),
    )


def quantile(no_slower: Mapping[float, float], q: float) -> float | None:
    """The q-quantile of a histogram, linear inside a bucket; its last finite bound where it lies beyond; None of nothing."""
    calls = max(no_slower.values(), default=0.0)
    if calls <= 0.0:
        return None
    low, below = 0.0, 0.0
    for bound, upto in sorted(no_slower.items()):
        if bound == float("inf"):
            break
        if upto >= q * calls:
            return low + (bound - low) * (q * calls - below) / max(upto - below, 1e-12)
        low, below = bound, upto
    return low


class Activity:
    """Samples of one service's counters."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._clock = clock
        self._samples = deque([count(metrics, clock())], maxlen=SAMPLES + 1)

    def sample(self) -> None:
        """Look at the counters."""
        self._samples.append(count(self._metrics, self._clock()))

    def rates(self) -> list[Rate]:
        """Between each two samples, and from the last one until now; a clock that was set back leaves one out."""
        moments = [*self._samples, count(self._metrics, self._clock())]
        return [rate_between(before, after) for before, after in pairwise(moments) if after.at > before.at]


def _samples(metric: Collector) -> list[Sample]:
    return [sample for family in metric.collect() for sample in family.samples]
