"""What ``/metrics`` tells of a gateway. Counts are kept as plain numbers where they arise and read when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from endcast.router.gateway.books.reconcile import Books, Compared
    from endcast.router.gateway.fleet.pools import PoolAtWork
    from endcast.router.gateway.gateway import Gateway
    from endcast.router.gateway.prefill.prefill import PrefillWorker
    from endcast.router.gateway.seen.outcome import Outcome

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_DURATIONS = (
    ("wait", "From arrival to placement.", "wait"),
    ("first_byte", "From arrival to the response's first byte.", "first_byte"),
    ("request", "From arrival to the response's end.", "duration"),
)


class _Seconds:
    """A histogram of durations, as cheap to add to as can be."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts up to each bound, as Prometheus wants them."""
        bounds = [*(f"{bound:g}" for bound in _SECONDS), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(self.counts), strict=True)]


class _Ended:
    """What ended in one pool."""

    def __init__(self) -> None:
        self.requests: dict[tuple[int, str], int] = {}
        self.tokens = 0
        self.wait, self.first_byte, self.duration = _Seconds(), _Seconds(), _Seconds()


class Metrics:
    """Prometheus metrics of one gateway, in a registry of their own."""

    def __init__(self, gateway: Gateway) -> None:
        self.registry = CollectorRegistry()
        self.ended: dict[str, _Ended] = defaultdict(_Ended, {pool.name: _Ended() for pool in gateway.pools})
        self.registry.register(_Books(gateway))

    def finished(self, pool: PoolAtWork, outcome: Outcome, tokens: int) -> None:
        """A request ended."""
        ended = self.ended[pool.name]
        key = outcome.status, outcome.end.value
        ended.requests[key] = ended.requests.get(key, 0) + 1
        ended.tokens += tokens
        ended.wait.add(outcome.wait_s)
        ended.duration.add(outcome.duration_s)
        if outcome.ttft_s is not None:
            ended.first_byte.add(outcome.ttft_s)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Books(Collector):
    """Loads, slots, queues and health, as the books have them at the moment of the scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        pools = self._gateway.pools
        yield from self._of_requests(self._gateway.metrics.ended)
        yield from self._of_workers(pools)
        yield from self._of_engines(self._gateway.reconciler.books)
        yield from self._of_prefill(pools)
        for name, help_text, read in _OF_POOLS:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"endcast_router_{name}", help_text, labels=["pool"])
            for pool in pools:
                value = read(pool)
                if value is not None:
                    family.add_metric([pool.name], value)
            yield family
        for name, help_text, label, counts in _OF_KINDS:
            kinds = CounterMetricFamily(f"endcast_router_{name}", help_text, labels=["pool", label])
            for pool in pools:
                for kind_of, count in counts(pool).items():
                    kinds.add_metric([pool.name, kind_of], count)
            yield kinds
        reloads = CounterMetricFamily("endcast_router_reloads", "Fleet files read again.", labels=["outcome"])
        for outcome, count in self._gateway.reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads
        lag = self._gateway.watch.lag_s
        yield GaugeMetricFamily(
            "endcast_router_lag_seconds", "How late the router has lately been with what was due.", lag
        )
        if self._gateway.log is not None:
            lost = float(self._gateway.log.lost)
            yield CounterMetricFamily("endcast_router_log_lines_lost", "Log lines that could not be written.", lost)

    @staticmethod
    def _of_requests(pools: dict[str, _Ended]) -> Iterator[Metric]:
        help_text = "Requests that ended, by pool, HTTP status (0: none was sent) and end."
        requests = CounterMetricFamily("endcast_router_requests", help_text, labels=["pool", "status", "end"])
        tokens = CounterMetricFamily(
            "endcast_router_output_tokens", "Output tokens of ended requests.", labels=["pool"]
        )
        for name, ended in pools.items():
            tokens.add_metric([name], ended.tokens)
            for (status, end), count in ended.requests.items():
                requests.add_metric([name, str(status), end], count)
        yield from (requests, tokens)
        for what, help_text, attribute in _DURATIONS:
            family = HistogramMetricFamily(f"endcast_router_{what}_seconds", help_text, labels=["pool"])
            for name, ended in pools.items():
                seconds: _Seconds = getattr(ended, attribute)
                family.add_metric([name], seconds.buckets(), seconds.total)
            yield family

    @staticmethod
    def _of_workers(pools: list[PoolAtWork]) -> Iterator[Metric]:
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

    @staticmethod
    def _of_prefill(pools: list[PoolAtWork]) -> Iterator[Metric]:
        for name, help_text, read in _OF_PREFILL:
            family = GaugeMetricFamily(f"endcast_router_prefill_{name}", help_text, labels=["pool", "worker"])
            for pool in pools:
                for worker in pool.prefill.workers:
                    family.add_metric([pool.name, worker.url], float(read(worker)))
            yield family
        counts = CounterMetricFamily(
            "endcast_router_prefills", "Prompts, by what became of them.", labels=["pool", "outcome"]
        )
        for pool in pools:
            for outcome in (
                ("done", "failed", "without_transfer", "handoffs", "stranded") if pool.prefill.workers else ()
            ):
                counts.add_metric([pool.name, outcome], float(getattr(pool.prefill, outcome)))
        yield counts

    @staticmethod
    def _of_engines(pools: list[Books]) -> Iterator[Metric]:
        families = [
            GaugeMetricFamily(f"endcast_router_{name}", help_text, labels=["pool", "worker"])
            for name, help_text, _ in _OF_ENGINES
        ]
        for books in pools:
            for worker in books.pool.workers:
                for family, (_, _, read) in zip(families, _OF_ENGINES, strict=True):
                    value = read(books, worker.index)
                    if value is not None:
                        family.add_metric([books.pool.name, worker.name], float(value))
        yield from families


def _compared(read: Callable[[Compared], int | None]) -> Callable[[Books, int], int | None]:
    def of_worker(books: Books, worker: int) -> int | None:
        seen = books.compared.get(worker)
        return None if seen is None else read(seen)

    return of_worker


def _difference(told: int | None, own: int) -> int | None:
    return None if told is None else told - own


_OF_PREFILL: tuple[tuple[str, str, Callable[[PrefillWorker], float]], ...] = (
    ("requests", "Requests whose prompt is being computed.", lambda worker: worker.requests),
    ("tokens", "Their prompts' tokens, estimated.", lambda worker: worker.tokens),
    ("up", "1 if it may be given requests.", lambda worker: worker.up),
)

#: The last four are told only of workers whose engines tell.
_OF_ENGINES: tuple[tuple[str, str, Callable[[Books, int], int | None]], ...] = (
    ("adopted_requests", "Slots taken by what others dispatched.", lambda books, g: int(books.adopted.requests[g])),
    ("adopted_kv_tokens", "KV tokens of what others dispatched.", lambda books, g: int(books.adopted.tokens[g])),
    ("engine_requests", "Requests that the engine runs or queues.", _compared(lambda seen: seen.requests)),
    ("engine_kv_tokens", "KV tokens by the engine's usage.", _compared(lambda seen: seen.kv_tokens)),
    ("engine_requests_difference", "The engine's requests less those dispatched here.",
     _compared(lambda seen: _difference(seen.requests, seen.own_requests))),
    ("engine_kv_tokens_difference", "The engine's KV tokens less those dispatched here.",
     _compared(lambda seen: _difference(seen.kv_tokens, seen.own_tokens))),
)  # fmt: skip


def _posted(pool: PoolAtWork, what: str) -> int | None:
    poster = None if pool.desk is None else pool.desk.poster
    return None if poster is None else getattr(poster, what)


#: Counts by pool and by a label of their own.
_OF_KINDS: tuple[tuple[str, str, str, Callable[[PoolAtWork], dict[str, int]]], ...] = (
    ("turned_away", "Requests not served.", "reason", lambda pool: pool.dispatcher.turned_away),
    (
        "prefix_blocks",
        "Prefix blocks of placed requests; those in front that their worker had seen.",
        "kind",
        lambda pool: pool.core.prefix_blocks(),
    ),
    ("recomputed", "Times that engines gave a request back.", "outcome", lambda pool: pool.recomputed),
)

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
    ("outcomes_waiting", "Ends that the forecast service is not told of yet.", lambda pool: _posted(pool, "waiting")),
    ("outcomes_posted_total", "Ends that the forecast service took.", lambda pool: _posted(pool, "posted")),
    ("outcomes_dropped_total", "Ends that the forecast service was never told of.", lambda pool: _posted(pool, "dropped")),
    ("rounds_without_forecasts_total", "Rounds as BR-0 for want of forecasts.", lambda pool: pool.core.late_forecasts),
)  # fmt: skip
