"""The gateway: pools at work, the way to engines, and the answer to every HTTP call."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Self

import numpy as np
from aiohttp import web
from multidict import CIMultiDict

from endcast.router.gateway.books.reconcile import Reconciler
from endcast.router.gateway.config import Config
from endcast.router.gateway.engines.health import HealthKeeper
from endcast.router.gateway.engines.upstream import Engines
from endcast.router.gateway.engines.watch import Watch
from endcast.router.gateway.exchange.exchange import Exchange
from endcast.router.gateway.exchange.passing import list_models, pass_on
from endcast.router.gateway.fleet.change import change, load_forecasters, urls_of
from endcast.router.gateway.fleet.pools import Forecasts, PoolAtWork
from endcast.router.gateway.messages.answers import error_answer
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.routing.dispatch import NotServed
from endcast.router.gateway.seen.access_log import AccessLog
from endcast.router.gateway.seen.live import show_figures, show_page
from endcast.router.gateway.seen.metrics import Metrics

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Gateway:
    """Made within a running event loop; an async context manager. ``handle`` answers a call."""

    def __init__(
        self, config: Config, *, forecasts: Forecasts | None = None, rng: np.random.Generator | None = None
    ) -> None:
        """``forecasts`` is asked for the forecaster of each pool whose policy uses one."""
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.rng = np.random.default_rng() if rng is None else rng
        self._forecasts = forecasts
        pairs, logs = load_forecasters(config, forecasts), config.log.path is not None
        self.pools = [
            PoolAtWork(pool, config.limits, pair, self.rng, logs=logs)
            for pool, pair in zip(config.pools, pairs, strict=True)
        ]
        self.leaving: list[PoolAtWork] = []  #: pools that are not listed any more, until they are empty
        self.reloads = {"applied": 0, "refused": 0}
        self.engines = Engines(config.limits, config.health)
        self.watch = Watch(1.0)
        self.take(config)
        self.health = HealthKeeper(
            urls_of(config), config.health, self.engines.probe, self._tell_health, lambda: self.watch.lag_s
        )
        self.reconciler = Reconciler(
            self.pools, lambda url: self.engines.fetch(url, CIMultiDict()), config.health.reconcile_s
        )
        self.log = None if config.log.path is None else AccessLog(config.log, Path(config.log.path))
        self.metrics = Metrics(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.open_calls = 0
        self._routes: dict[tuple[str, str], _Answer] = {
            ("GET", "/health"): self._alive,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._show_metrics,
            ("GET", "/"): self._show_page,
            ("GET", "/live"): self._show_live,
        }

    def take(self, config: Config) -> None:
        """Go by ``config`` from now on, as far as pools, health checks and the log are not concerned."""
        self.config, limits = config, config.limits
        self._by_model = {name: pool for pool in self.pools for name in pool.config.models}
        self._tenants = {key.key.encode(): key.tenant for key in config.auth.keys}
        #: Clients' keys are the router's own where it asks for them.
        self.not_for_engines = ("authorization",) if self._tenants else ()
        self.engines.change(limits, config.health)
        self.watch.every_s = min(limits.first_byte_timeout_s, limits.inter_chunk_timeout_s, 4.0) / 4

    async def change(self, config: Config | Callable[[], Config]) -> None:
        """Another configuration, or who reads it, without dropping a request; whatever is wrong with it, the one so far stays."""
        try:
            told = await asyncio.to_thread(config) if callable(config) else config
            await change(self, told, self._forecasts)
        except BaseException:
            self.reloads["refused"] += 1
            raise
        self.reloads["applied"] += 1

    async def __aenter__(self) -> Self:
        await self.engines.__aenter__()
        await self.reconciler.start()
        self.health.start()
        self.watch.start()
        if self.log is not None:
            self.log.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reconciler.stop()
        await self.health.stop()
        await self.watch.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engines.__aexit__(None, None, None)
        for pool in [*self.pools, *self.leaving]:
            pool.stop()
        if self.log is not None:
            await self.log.stop()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside the calls; what is not done when the gateway ends is given up."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        """Whether calls are open, or anything is done for some that were."""
        return self.open_calls > 0 or bool(self._tasks)

    # ---- calls

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one call."""
        own = self._routes.get((http.method, http.path))
        if own is not None:
            return await own(http)
        self.open_calls += 1
        try:
            return await self._handle(http)
        except NotServed as refusal:
            return error_answer(refusal.status, refusal.code, refusal.message, refusal.retry_after_s)
        except web.HTTPRequestEntityTooLarge:
            limit = self.config.limits.max_body_bytes
            return error_answer(413, "body_too_large", f"the body is larger than {limit} bytes")
        finally:
            self.open_calls -= 1

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if self.draining:
            raise NotServed(503, "draining", "this router is being stopped", 1.0)
        tenant = self._tenant(http)
        if http.headers.get("Expect", "").lower() == "100-continue" and http.transport is not None:
            http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await http.read()
        chat = http.path == _CHAT
        if http.method == "POST" and (chat or http.path == _COMPLETIONS):
            body = read_body(raw, chat=chat)
            return await Exchange(self, self._pool_of(body.model), http, body, tenant).run()
        if http.method == "GET" and http.path == "/v1/models":
            return await list_models(self, http)
        if not self.config.pass_through:
            raise NotServed(404, "not_found", f"there is no {http.method} {http.path} here")
        model = read_body(raw, chat=False).model if len(self.pools) > 1 else None
        return await pass_on(self, http, self._pool_of(model), raw)

    def _pool_of(self, model: str | None) -> PoolAtWork:
        """The pool that serves ``model``; with one pool its engines judge the name."""
        if len(self.pools) == 1:
            return self.pools[0]
        pool = self._by_model.get(model or "")
        if pool is None:
            raise NotServed(404, "model_not_found", f"no pool serves the model {model!r:.200}")
        return pool

    def _tenant(self, http: web.BaseRequest) -> str | None:
        """Whose call it is; ``NotServed`` 401 where a key is asked for and not given."""
        header = self.config.auth.tenant_header
        named = None if header is None else http.headers.get(header)
        if not self._tenants:
            return named
        scheme, _, told = http.headers.get("Authorization", "").partition(" ")
        given = told.strip().encode(errors="surrogateescape")
        matches = [key for key in self._tenants if hmac.compare_digest(key, given)]
        if scheme.lower() != "bearer" or not matches:
            raise NotServed(401, "invalid_api_key", "a valid key is needed: Authorization: Bearer KEY")
        return self._tenants[matches[0]] or named

    async def _alive(self, http: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"{}", content_type="application/json")

    async def _ready(self, http: web.BaseRequest) -> web.StreamResponse:
        if self.draining:
            return error_answer(503, "draining", "this router is being stopped")
        dead = [pool.name for pool in self.pools if not pool.any_up]
        if dead:
            return error_answer(503, "no_worker", f"no engine is reachable in pool {dead[0]}")
        return web.Response(body=b"{}", content_type="application/json")

    async def _show_metrics(self, http: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=self.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _show_page(self, http: web.BaseRequest) -> web.StreamResponse:
        return show_page()

    async def _show_live(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            self._tenant(http)
        except NotServed as refusal:
            return error_answer(refusal.status, refusal.code, refusal.message)
        return show_figures(self)

    # ---- engines

    def failed(self, url: str, error: BaseException | None = None) -> None:
        """A call to the engine at ``url`` failed before its first byte, with ``error`` or by what it answered."""
        self.health.failed(url, error)

    def served(self, url: str) -> None:
        """The engine at ``url`` answered."""
        self.health.served(url)

    def _tell_health(self, url: str, up: bool) -> None:
        for pool in self.pools:
            pool.tell_health(url, up)
