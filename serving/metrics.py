"""What ``/metrics`` tells. Each app has a registry of its own, so that two in one process do not mix."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LANDMARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Prometheus metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "endcast_request_seconds",
            "Seconds from a call's first byte to its answer, by route and status.",
            ["route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.landmarks = Histogram(
            "endcast_batch_landmarks", "Forecasts in one call.", buckets=_LANDMARKS, registry=self.registry
        )
        self.errors = Counter(
            "endcast_errors", "Calls that were refused or failed, by code.", ["code"], registry=self.registry
        )
        self._bundle = Info("endcast_bundle", "The bundle that is served.", registry=self.registry)
        self._state = Gauge("endcast_state_version", "Version of the history.", registry=self.registry)

    def exposition(self, bundle: str, state_version: int) -> bytes:
        """All metrics in Prometheus' text format."""
        self._bundle.info({"bundle": bundle})
        self._state.set(state_version)
        return generate_latest(self.registry)
