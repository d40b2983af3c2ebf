"""What ``/metrics`` tells. Each app has a registry of its own, so that two in one process do not mix.

Names follow Prometheus' conventions: base units, ``_total`` on counters, one meaning a name. Label values come from fixed
sets, or from the first 32 names of models and tenants (the others share one), so that no caller can make series.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

import endcast
from endcast.serving.metrics.of_outcomes import OutcomeCollector
from endcast.serving.metrics.shared import SharedMetrics

if TYPE_CHECKING:
    from endcast.serving.outcomes.figures import BookFigures

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LANDMARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CALLS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Prometheus metrics of one service. Whoever knows an event counts it on the attribute; gauges may be functions."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = self._histogram(
            "endcast_request_seconds",
            "Seconds from a call's first byte to its answer, by route and status.",
            _SECONDS,
            "route",
            "status",
        )
        self.landmarks = self._histogram("endcast_batch_landmarks", "Forecasts in one call.", _LANDMARKS)
        self.errors = self._counter("endcast_errors", "Calls that were refused or failed, by code.", "code")
        self.wait_seconds = self._histogram(
            "endcast_wait_seconds", "Seconds that a call waited for its turn at the forecaster.", _SECONDS
        )
        self.merged_calls = self._histogram(
            "endcast_merged_calls", "Calls that one evaluation of the model answered together.", _CALLS
        )
        self.open_streams = self._gauge("endcast_open_streams", "Streams that are open now.")
        self.stream_bytes = self._gauge("endcast_stream_bytes", "Bytes that the texts of open streams hold.")
        self.streams_ended = self._counter(
            "endcast_streams_ended", "Streams that ended, by how: closed, idle, dropped.", "how"
        )
        self.degraded_forecasts = self._counter(
            "endcast_degraded_forecasts", "Forecasts answered by Kaplan-Meier because the model failed."
        )
        self.degraded = self._gauge("endcast_degraded", "1 while the model fails and Kaplan-Meier answers, else 0.")
        self.reloads = self._counter(
            "endcast_bundle_reloads",
            "Attempts to load another bundle, by result: served, unchanged, refused.",
            "result",
        )
        self.shared: SharedMetrics | None = None  #: set where several processes are one service
        self._fails = False
        self._bundle = Info("endcast_bundle", "The bundle that is served.", registry=self.registry)
        self._build = Info("endcast_build", "The software that serves it.", registry=self.registry)
        self._build.info({"version": endcast.__version__})
        self._state = self._gauge("endcast_state_version", "Version of the history: completions taken in.")
        self._outcomes = OutcomeCollector()
        self.registry.register(self._outcomes)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def read_outcomes(self, figures: Callable[[], BookFigures | None]) -> None:
        """Where to read what outcomes told, at each exposition."""
        self._outcomes.figures = figures

    def model_failed(self, forecasts: int) -> bool:
        """Count forecasts that were made without the model; whether that is news."""
        news, self._fails = not self._fails, True
        self.degraded.set(1)
        self.degraded_forecasts.inc(forecasts)
        return news

    def model_answered(self) -> bool:
        """The model made forecasts; whether that is news."""
        news, self._fails = self._fails, False
        if news:
            self.degraded.set(0)
        return news

    def exposition(self, bundle: str, state_version: int) -> bytes:
        """All metrics in Prometheus' text format."""
        self._bundle.clear()
        self._bundle.info({"bundle": bundle})
        self._state.set(state_version)
        return generate_latest(self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self.registry)
