"""Another fleet file for a gateway that runs: everything that can fail is done first, then all changes at once.

No request is dropped. What runs goes on where it is, what waits goes on waiting; workers and pools that are not listed any more
finish what they have. Where listening is told anew the router must be started again.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from endcast.errors import EndcastError
from endcast.router.gateway.config import Config, workers_of
from endcast.router.gateway.fleet.pools import Forecasts, Pair, PoolAtWork, name_of, warm_up
from endcast.router.gateway.seen.access_log import AccessLog
from endcast.types import Landmark, Request

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway

_LOG = logging.getLogger("endcast.router")


def load_forecasters(config: Config, forecasts: Forecasts | None) -> list[Pair | None]:
    """The forecaster of each pool that uses one, with kernels loaded; takes seconds, and may be done on any thread."""
    pairs: list[Pair | None] = []
    for pool in config.pools:
        if pool.needs_forecasts and forecasts is None:
            raise EndcastError(f"policy {pool.policy} uses forecasts and none were given")
        pair = forecasts(pool) if forecasts is not None and pool.needs_forecasts else None
        if pair is not None and not pool.forecasts_by_service:  # a service may be away; a bundle that fails is refused
            pair[0].forecast_batch([Landmark(request=Request(request_id="", prompt_tokens=1))], pool.horizon)
        warm_up(pool, None if pair is None else pair[1])
        pairs.append(pair)
    return pairs


async def change(gateway: Gateway, config: Config, forecasts: Forecasts | None) -> None:
    """``config`` instead of the one so far; on any error nothing has changed."""
    pairs = await asyncio.to_thread(load_forecasters, config, forecasts)
    log = None if config.log.path is None else AccessLog(config.log, Path(config.log.path))
    if config.listen != gateway.config.listen:
        _LOG.warning("[listen] changed: host, port and the use of TLS stay until the router is started again")
    _change_pools(gateway, config, pairs)
    gateway.take(config)
    gateway.health.change(urls_of(config), config.health)
    gateway.reconciler.change(gateway.pools, config.health.reconcile_s)
    await _change_log(gateway, log)


def urls_of(config: Config) -> set[str]:
    """The addresses of all engines."""
    urls = {worker.url for pool in config.pools for worker in workers_of(pool)}
    return urls | {told.url.rstrip("/") for pool in config.pools for told in pool.prefill}


def _change_pools(gateway: Gateway, config: Config, pairs: list[Pair | None]) -> None:
    before = {pool.name: pool for pool in gateway.pools}
    logs, gateway.pools = config.log.path is not None, []
    for pool, pair in zip(config.pools, pairs, strict=True):
        at_work = before.pop(name_of(pool), None)
        if at_work is None:
            at_work = PoolAtWork(pool, config.limits, pair, gateway.rng, logs=logs)
        else:
            at_work.change(pool, config.limits, pair, logs=logs)
        gateway.pools.append(at_work)
    for gone in before.values():
        _let_go(gateway, gone)


def _let_go(gateway: Gateway, pool: PoolAtWork) -> None:
    """A pool that is not listed any more ends with its last request."""
    gateway.leaving.append(pool)

    def end_if_empty() -> None:
        if not pool.core.tickets and pool in gateway.leaving:
            gateway.leaving.remove(pool)
            pool.stop()

    pool.dispatcher.on_freed = end_if_empty
    end_if_empty()


async def _change_log(gateway: Gateway, log: AccessLog | None) -> None:
    """The log's file is opened anew each time, as programs that move logs away expect."""
    before, gateway.log = gateway.log, log
    if log is not None:
        log.start()
    if before is not None:
        if log is not None:
            log.lost += before.lost
        await before.stop()
