"""``endcast route``: the OpenAI-compatible router in front of real engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from endcast.forecaster import Forecaster
    from endcast.router.gateway.config import Config, Pool

COLD_START = "cold_start"


def route(
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The fleet, as docs/deploying.md describes it.")
    ],
    host: Annotated[str | None, typer.Option(help="Name or address to listen on, instead of the file's.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port to listen on, instead of the file's; 0 takes a free one."),
    ] = None,
    forecaster: Annotated[
        str | None,
        typer.Option(metavar="BUNDLE|URL", help="Bundle, or forecast service, of all pools, instead of the file's."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read the file and the bundles it names, and stop.")] = False,
) -> None:
    """Route OpenAI requests to the engines of a fleet until stopped by Ctrl-C or SIGTERM; SIGHUP reads FILE again."""
    from endcast.cli.output import console
    from endcast.router.gateway.config import read_config
    from endcast.router.gateway.serve import serve_until_stopped

    def read() -> Config:
        return overridden(read_config(config, forecaster=forecaster), host, port)

    if check:
        settings = read()
        for pool in settings.pools:
            if pool.needs_forecasts:
                forecasts_of(pool)
        workers = sum(pool.size for pool in settings.pools)
        console.print(f"{config}: {len(settings.pools)} pools, {workers} workers", soft_wrap=True, markup=False)
        return

    def tell(url: str, settings: Config) -> None:
        workers = sum(pool.size for pool in settings.pools)
        console.print(f"routing to {workers} workers at {url}", soft_wrap=True, markup=False)

    log_to_stderr()
    serve_until_stopped(read, forecasts_of, tell)


def overridden(settings: Config, host: str | None, port: int | None) -> Config:
    """``settings`` with what the command line says of listening."""
    import msgspec

    told = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return msgspec.structs.replace(settings, listen=msgspec.structs.replace(settings.listen, **told))


def forecasts_of(pool: Pool) -> tuple[Forecaster, Forecaster]:
    """The pool's forecaster, and the prior that stands in for it; ``BundleError`` if a bundle must be refused."""
    from endcast import cold_start, load_forecaster

    prior = cold_start()
    if pool.forecaster is None or pool.forecaster == COLD_START:
        return cold_start(), prior
    if pool.forecasts_by_service:
        from endcast.client import service_forecaster

        return service_forecaster(pool.forecaster, key=pool.forecaster_key, timeout_s=pool.forecast_timeout_s), prior
    return load_forecaster(pool.forecaster), prior


def log_to_stderr() -> None:
    """What the router logs (forecasts that go and come back, changes of the fleet), a line each."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("endcast.router")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
