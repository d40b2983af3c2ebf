"""What ``/metrics`` tells of a gateway. Counts are kept as plain numbers where they arise and read when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from endcast.router.gateway.exchange import Outcome
    from endcast.router.gateway.gateway import Gateway
    from endcast.router.gateway.pools import PoolAtWork

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_Metric = GaugeMetricFamily | CounterMetricFamily


class Metrics:
    """Prometheus metrics of one gateway, in a registry of their own."""

    def __init__(self, gateway: Gateway) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "endcast_router_requests",
            "Requests that ended, by pool, HTTP status (0: none was sent) and end.",
            ["pool", "status", "end"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "endcast_router_output_tokens", "Output tokens of ended requests.", ["pool"], registry=self.registry
        )
        self._wait = Histogram(
            "endcast_router_wait_seconds",
            "From arrival to placement.",
            ["pool"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._ttft = Histogram(
            "endcast_router_first_byte_seconds",
            "From arrival to the response's first byte.",
            ["pool"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "endcast_router_request_seconds",
            "From arrival to the response's end.",
            ["pool"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._children: dict[tuple[str, int, str], Counter] = {}
        self._of_pool: dict[str, tuple[Counter, Histogram, Histogram, Histogram]] = {}
        self.registry.register(_Books(gateway))

    def finished(self, pool: PoolAtWork, outcome: Outcome, tokens: int) -> None:
        """A request ended."""
        name = pool.name
        key = name, outcome.status, outcome.end.value
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._requests.labels(name, str(outcome.status), outcome.end.value)
        child.inc()
        found = self._of_pool.get(name)
        if found is None:
            of_pool = [metric.labels(name) for metric in (self._wait, self._ttft, self._duration)]
            found = self._of_pool[name] = (self._tokens.labels(name), of_pool[0], of_pool[1], of_pool[2])
        counter, wait, ttft, duration = found
        counter.inc(tokens)
        wait.observe(outcome.wait_s)
        duration.observe(outcome.duration_s)
        if outcome.ttft_s is not None:
            ttft.observe(outcome.ttft_s)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Books(Collector):
    """Loads, slots, queues and health, as the books have them at the moment of the scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[_Metric]:
        pools = self._gateway.pools
        yield from self._of_workers(pools)
        for name, help_text, read in _OF_POOLS:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"endcast_router_{name}", help_text, labels=["pool"])
            for pool in pools:
                value = read(pool)
                if value is not None:
                    family.add_metric([pool.name], value)
            yield family
        turned = CounterMetricFamily("endcast_router_turned_away", "Requests not served.", labels=["pool", "reason"])
        for pool in pools:
            for reason, count in pool.dispatcher.turned_away.items():
                turned.add_metric([pool.name, reason], count)
        yield turned

    @staticmethod
    def _of_workers(pools: list[PoolAtWork]) -> Iterator[_Metric]:
        labels = ["pool", "worker"]
        load = GaugeMetricFamily("endcast_router_worker_kv_tokens", "KV tokens of what runs there.", labels=labels)
        active = GaugeMetricFamily("endcast_router_worker_running", "Slots taken.", labels=labels)
        slots = GaugeMetricFamily("endcast_router_worker_slots", "Slots.", labels=labels)
        up = GaugeMetricFamily("endcast_router_worker_up", "1 if it may be given requests.", labels=labels)
        for pool in pools:
            loads, actives = pool.core.load(), pool.core.active()
            for worker in pool.workers:
                where = [pool.name, worker.name]
                load.add_metric(where, float(loads[worker.index]))
                active.add_metric(where, float(actives[worker.index]))
                slots.add_metric(where, worker.slots)
                up.add_metric(where, float(pool.dispatcher.is_up(worker.index)))
        yield from (load, active, slots, up)


_OF_POOLS = (
    ("waiting", "Requests that wait for a slot.", lambda pool: pool.core.waiting),
    ("running", "Requests that run.", lambda pool: pool.core.running),
    ("imbalance_tokens", "KV tokens that workers lack to the heaviest one.", lambda pool: pool.imbalance()),
    ("rounds_total", "Routing rounds.", lambda pool: pool.core.rounds),
    ("failed_rounds_total", "Rounds as BR-0 since the policy decided the impossible.", lambda pool: pool.core.failed_rounds),
    ("steps_total", "Decode steps seen in streams.", lambda pool: pool.core.beats.count),
    ("step_seconds", "Mean decode step.", lambda pool: pool.core.beats.step_s),
    ("tokens_per_step", "Mean tokens of a request in a step.", lambda pool: pool.core.beats.tokens_per_step),
    ("forecasts_up", "1 if forecasts come in time.", lambda pool: None if pool.desk is None else float(pool.desk.healthy)),
    ("forecast_failures_total", "Forecast jobs that failed.", lambda pool: pool.desk and pool.desk.failures),
    ("forecast_late_total", "Forecast jobs that were late.", lambda pool: pool.desk and pool.desk.late),
    ("forecast_priors_total", "Requests admitted with the prior.", lambda pool: pool.desk and pool.desk.priors),
    ("rounds_without_forecasts_total", "Rounds as BR-0 for want of forecasts.", lambda pool: pool.core.late_forecasts),
)  # fmt: skip
