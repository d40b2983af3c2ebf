"""Listening, serving and draining: a gateway as a process."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import uvloop
from aiohttp import web

from endcast.errors import EndcastError
from endcast.router.gateway.config import Config, Listen
from endcast.router.gateway.fleet.pools import Forecasts
from endcast.router.gateway.gateway import Gateway
from endcast.router.gateway.http_server import http_server

_LOG = logging.getLogger("endcast.router")

#: Reads the configuration, as it is now.
Reread = Callable[[], Config]
#: Requests leave few cycles behind: the collector need not look every 700 objects.
_COLLECT = (20_000, 20, 20)


class Server:
    """A gateway that listens; an async context manager. ``url`` says where."""

    def __init__(self, gateway: Gateway, listen: Listen) -> None:
        self.gateway = gateway
        self._listen = listen
        self._runner: web.ServerRunner | None = None
        self._certificates: ssl.SSLContext | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        server = http_server(self.gateway.handle, lambda: self.gateway.config.limits.max_body_bytes)
        tls, listening = _tls(self._listen), _socket(self._listen)
        self._certificates = tls
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await self.gateway.__aenter__()
        await web.SockSite(self._runner, listening, ssl_context=tls, backlog=2048).start()
        host, port = listening.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self.url = f"{'http' if tls is None else 'https'}://{f'[{shown}]' if ':' in shown else shown}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self.gateway.__aexit__()

    async def change(self, config: Config | Reread) -> None:
        """Another configuration; certificates are read anew as well. On any error nothing has changed."""

        def read() -> Config:
            told = config() if callable(config) else config
            _tls(told.listen)
            return told

        await self.gateway.change(read)
        listen = self.gateway.config.listen
        if self._certificates is not None and listen.tls_certificate is not None:
            self._certificates.load_cert_chain(listen.tls_certificate, listen.tls_key)

    async def drain(self) -> None:
        """Take no new requests, and wait for those that run, for ``drain_s`` at most."""
        self.gateway.draining = True
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.gateway.config.limits.drain_s):
                while self.gateway.busy:
                    await asyncio.sleep(0.02)


def serve_until_stopped(reread: Reread, forecasts: Forecasts | None, tell: Callable[[str, Config], None]) -> None:
    """Serve what ``reread`` tells until SIGTERM or SIGINT, then drain; at SIGHUP it is asked again.

    ``tell`` gets the address, and what is served there, once the router listens.
    """
    config = reread()
    _raise_file_limit()
    uvloop.run(_serve(config, reread, forecasts, tell))


async def _serve(
    config: Config, reread: Reread, forecasts: Forecasts | None, tell: Callable[[str, Config], None]
) -> None:
    stopped, hung_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    gateway = Gateway(config, forecasts=forecasts)
    gc.collect()
    gc.freeze()  # what is loaded by now stays: the collector need not walk it again and again
    gc.set_threshold(*_COLLECT)
    async with Server(gateway, config.listen) as server:
        tell(server.url, config)
        reloading = asyncio.create_task(_reload_when_told(server, hung_up, reread), name="reload")
        await stopped.wait()
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        await server.drain()


async def _reload_when_told(server: Server, told: asyncio.Event, reread: Reread) -> None:
    while True:
        await told.wait()
        told.clear()
        try:
            await server.change(reread)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the new file, the router serves on
            said = " ".join(str(error).split()) or type(error).__name__
            _LOG.error("the configuration so far stays: %s", said)
        else:
            pools = server.gateway.config.pools
            workers = sum(pool.size for pool in pools)
            _LOG.info("the configuration was read again: %d pools, %d workers", len(pools), workers)


def _raise_file_limit() -> None:
    """As many open files as the system allows: a stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _socket(listen: Listen) -> socket.socket:
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or str(error)
        raise EndcastError(
            f"cannot listen on {listen.host} port {listen.port}: {why}", hint="listen.port = 0 takes a free port"
        ) from None


def _tls(listen: Listen) -> ssl.SSLContext | None:
    if listen.tls_certificate is None or listen.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(listen.tls_certificate, listen.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise EndcastError(f"cannot use {listen.tls_certificate}: {error}", hint="Both files must be PEM") from None
    return context
