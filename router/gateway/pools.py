"""A pool at work: its workers, its dispatcher, and what it has learned of prompt sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from endcast.errors import EndcastError
from endcast.forecaster import Forecaster
from endcast.router.gateway.config import Limits, Pool
from endcast.router.gateway.core import RoutingCore, needs_forecasts
from endcast.router.gateway.dispatch import Dispatcher
from endcast.router.gateway.forecasting import Inline, Threaded
from endcast.router.gateway.live_calibration import Calibration
from endcast.router.gateway.live_decisions import DecisionLog
from endcast.router.gateway.tickets import Intake

#: The forecaster of a pool that needs one, and the prior that stands in for it.
Forecasts = Callable[[Pool], tuple[Forecaster, Forecaster]]


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
        self, pool: Pool, limits: Limits, forecasts: Forecasts | None, rng: np.random.Generator, *, logs: bool
    ) -> None:
        """``logs``: what was expected of each request is wanted for a log."""
        desk: Threaded | None = None
        self._prior: Forecaster | None = None
        if needs_forecasts(pool):
            if forecasts is None:
                raise EndcastError(f"policy {pool.policy} uses forecasts and none were given")
            forecaster, prior = forecasts(pool)
            self._prior = prior
            desk = Threaded(
                forecaster,
                prior,
                horizon=pool.horizon,
                soften=pool.soften,
                tells_expected=logs,
                timeout_s=pool.forecast_timeout_s,
            )
        self.config = pool
        self.name = pool.models[0] if pool.models else "default"  #: in metrics and the log
        self.desk = desk
        self.core = RoutingCore(pool, desk=desk, rng=rng)
        self.decisions = DecisionLog()  #: for the live page
        self.core.witness = self.decisions.saw
        self.calibration = Calibration()
        self.workers = self.core.workers
        self.dispatcher = Dispatcher(self.core, limits)
        self.prompt_sizes = PromptSizes()
        self._tenants: dict[str, int] = {}
        self.largest_prompt = max(worker.kv_capacity for worker in self.workers) - 1

    def tenant_number(self, tenant: str | None) -> int:
        """A number for ``tenant`` in the books, −1 for none; so many tenants have one as a fleet can have."""
        if tenant is None:
            return -1
        if len(self._tenants) >= 100_000 and tenant not in self._tenants:
            return -1
        return self._tenants.setdefault(tenant, len(self._tenants))

    def tell_health(self, url: str, up: bool) -> None:
        """All ranks behind ``url`` may, or may not, be given requests."""
        for worker in self.workers:
            if worker.url == url:
                self.dispatcher.accept(worker.index, up)

    def warm_up(self) -> None:
        """Route a few requests that do not exist, so that the kernels are loaded before real ones wait for them."""
        prior = self._prior
        desk = None if prior is None else Inline(prior, prior, horizon=self.config.horizon, soften=self.config.soften)
        core = RoutingCore(self.config, desk=desk, rng=np.random.default_rng(0))
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

    def imbalance(self) -> float:
        """Σ (heaviest load − load) over workers, KV tokens."""
        load = self.core.load()
        return float(load.max() * len(load) - load.sum())

    def stop(self) -> None:
        """End the forecaster's thread."""
        if self.desk is not None:
            self.desk.stop()
