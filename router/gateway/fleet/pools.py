"""A pool at work: its workers, its dispatcher, and what it has learned of prompt sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from endcast.errors import EndcastError
from endcast.forecaster import Forecaster
from endcast.router.gateway.config import Limits, Pool, Worker, workers_of
from endcast.router.gateway.fleet.turnover import fleet_change
from endcast.router.gateway.forecasts.bench import close
from endcast.router.gateway.forecasts.desk import Inline, Threaded
from endcast.router.gateway.prefill.prefill import Prefill
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.dispatch import Dispatcher
from endcast.router.gateway.routing.rebuild import rebuild
from endcast.router.gateway.seen.calibration import Calibration
from endcast.router.gateway.seen.decisions import DecisionLog
from endcast.router.gateway.tickets import NOWHERE, Intake, Phase

#: The forecaster of a pool that needs one, and the prior that stands in for it.
Pair = tuple[Forecaster, Forecaster]
Forecasts = Callable[[Pool], Pair]


class PromptSizes:
    """Corrects estimates of prompt tokens by what engines counted; the newest hundred or so weigh most."""

    def __init__(self) -> None:
        self._told = self._estimated = 1.0

    def corrected(self, estimate: int) -> int:
        """Tokens, ≥ 1."""
        return max(1, round(estimate * self._told / self._estimated))

    def learn(self, estimate: int, told: int) -> None:
        """A prompt estimated at ``estimate`` had ``told`` tokens."""
        self._told += told - 0.01 * self._told
        self._estimated += estimate - 0.01 * self._estimated


class PoolAtWork:
    """One pool of a running gateway."""

    def __init__(
        self, pool: Pool, limits: Limits, forecasts: Pair | None, rng: np.random.Generator, *, logs: bool
    ) -> None:
        """``forecasts`` must be given where ``pool.needs_forecasts``; ``logs``: what was expected of each request is wanted
        for a log."""
        self.config = pool
        self.name = name_of(pool)  #: in metrics and the log
        self._logs = logs
        self.desk: Threaded | None = None
        self.desk = self._desk_for(pool, forecasts)
        self.core = RoutingCore(pool, desk=self.desk, rng=rng)
        self.decisions = DecisionLog()  #: for the live page
        self.core.witness = self.decisions.saw
        self.calibration = Calibration()
        self.largest_prompt = _largest_prompt(self.workers)  #: tokens that fit on some worker
        self.dispatcher = Dispatcher(self.core, limits)
        self.prompt_sizes = PromptSizes()
        self.prefill = Prefill(pool)
        #: Times that engines gave a request back, by what became of it.
        self.recomputed = {"continued": 0, "passed_on": 0}
        self._tenants: dict[str, int] = {}
        self._down: set[str] = set()  # addresses that may not be given requests
        self._closed: frozenset[int] = frozenset()
        #: Called when workers have been numbered anew, with each one's new index or ``NOWHERE``.
        self.on_moved: Callable[[Sequence[int]], None] = lambda _: None

    @property
    def workers(self) -> Sequence[Worker]:
        """As the books number them; with those that are to go and still run something."""
        return self.core.workers

    @property
    def any_up(self) -> bool:
        """Whether requests can be served."""
        return self.dispatcher.up > 0 and self.prefill.any_up

    # ---- changes

    def change(self, pool: Pool, limits: Limits, forecasts: Pair | None, *, logs: bool) -> None:
        """Other workers and settings from now on. What runs and waits goes on; workers that are gone take nothing new."""
        before, self._logs, self.dispatcher.limits = self.desk, logs, limits
        self.desk = self._desk_for(pool, forecasts)
        if forecasts is not None and self.desk is before:
            close(forecasts[0])  # the one so far is the same, and stays
        if pool != self.config or self.desk is not before:
            self.config = pool
            self.prefill.change(pool)
            self._down &= {worker.url for worker in workers_of(pool)}
            self._rebuild()
        if before is not None and self.desk is None:
            before.stop()

    def _forecasts_change(self, pool: Pool, forecasts: Pair | None) -> bool:
        desk = self.desk
        if desk is None or forecasts is None:
            return (desk is None) != (forecasts is None)
        if pool.forecasts_by_service:
            return (pool.forecaster, pool.forecaster_key) != (self.config.forecaster, self.config.forecaster_key)
        return forecasts[0].bundle != desk.bundle

    def _desk_for(self, pool: Pool, forecasts: Pair | None) -> Threaded | None:
        if not pool.needs_forecasts:
            return None
        if forecasts is None:
            raise EndcastError(f"policy {pool.policy} uses forecasts and none were given")
        settings: dict[str, Any] = {
            "horizon": pool.horizon,
            "soften": pool.soften,
            "tells_expected": self._logs,
            "timeout_s": pool.forecast_timeout_s,
        }
        desk = self.desk
        if desk is not None and not self._forecasts_change(pool, forecasts):
            desk.tune(**settings)
            return desk
        forecaster, prior = forecasts
        new = Threaded(forecaster, prior, **settings)
        if desk is not None:
            new.take_over(desk)
        return new

    def _rebuild(self) -> None:
        """The books for the workers of the file, and for those that still run something."""
        counts = [0] * len(self.workers)
        for ticket in self.core.tickets:
            if ticket.phase is Phase.RUNNING:
                counts[ticket.worker] += sum(slot != NOWHERE for slot in ticket.slots)
        change = fleet_change(self.workers, workers_of(self.config), counts)
        rebuild(self.core, self.config, change.workers, change.places, self.desk)
        self.largest_prompt = _largest_prompt(self.workers)
        self._closed = change.closed
        self.decisions.latest.clear()
        self.dispatcher.moved(change.places)
        for worker in self.workers:
            self.dispatcher.accept(worker.index, self._may_take(worker))
        self.on_moved(change.places)
        self.dispatcher.on_freed = self._settle if self._closed else None
        self.dispatcher.wake()

    def _settle(self) -> None:
        """Workers that were to go and are empty are gone; those that ran too much take requests again."""
        allowed = {worker.name: worker.slots for worker in workers_of(self.config)}
        active = self.core.active()
        if any(active[g] <= allowed.get(self.workers[g].name, 0) for g in self._closed):
            self._rebuild()

    def _may_take(self, worker: Worker) -> bool:
        return worker.url not in self._down and worker.index not in self._closed

    def tenant_number(self, tenant: str | None) -> int:
        """A number for ``tenant`` in the books, −1 for none; so many tenants have one as a fleet can have."""
        if tenant is None:
            return -1
        if len(self._tenants) >= 100_000 and tenant not in self._tenants:
            return -1
        return self._tenants.setdefault(tenant, len(self._tenants))

    def tell_health(self, url: str, up: bool) -> None:
        """All ranks behind ``url`` may, or may not, be given requests."""
        (self._down.discard if up else self._down.add)(url)
        self.prefill.tell_health(url, up)
        for worker in self.workers:
            if worker.url == url:
                self.dispatcher.accept(worker.index, self._may_take(worker))

    def imbalance(self) -> float:
        """Σ (heaviest load − load) over workers, KV tokens."""
        load = self.core.load()
        return float(load.max() * len(load) - load.sum())

    def stop(self) -> None:
        """End the forecaster's thread."""
        if self.desk is not None:
            self.desk.stop()


def _largest_prompt(workers: Sequence[Worker]) -> int:
    return max(worker.kv_capacity for worker in workers) - 1


def name_of(pool: Pool) -> str:
    """What a pool is called in metrics, logs and from one file to the next."""
    return pool.models[0] if pool.models else "default"


def warm_up(pool: Pool, prior: Forecaster | None) -> None:
    """Route a few requests that do not exist, so that the kernels are loaded before real ones wait for them."""
    desk = None if prior is None else Inline(prior, prior, horizon=pool.horizon, soften=pool.soften)
    core = RoutingCore(pool, desk=desk, rng=np.random.default_rng(0))
    for round_s in (0.0, 1.0):
        tickets = [core.open(Intake(prompt_tokens=1, width=width)) for width in (1, 2)]
        core.decide(round_s)
        for tokens, ticket in enumerate(tickets * 2, start=1):
            core.on_tokens(ticket, tokens, round_s)
            core.on_prompt(ticket, 1 + tokens)
        core.decide(round_s)
        for ticket in tickets:
            core.on_end(ticket)
    core.decide(2.0)
