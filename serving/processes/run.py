"""Listening and serving with uvicorn, until the process is told to stop."""

from __future__ import annotations

import errno
import gc
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from endcast.errors import EndcastError
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.connections import LimitedConnection
from endcast.serving.processes.garbage import SeldomFull

#: Connections that wait to be accepted.
BACKLOG = 2_048
#: Seconds after which the thread of a long call lets the event loop run: health checks wait no longer than this for it.
SWITCH_S = 0.001
#: Objects made since, and not yet gone, at which the collector looks at the youngest.
YOUNG = 2_000
_TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` (name or address, IPv4 or IPv6); port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        known = error.errno in errno.errorcode  # a name that cannot be resolved has a number of its own
        why = os.strerror(error.errno) if known and error.errno else error.strerror or error
        raise EndcastError(f"cannot listen on {host} port {port}: {why}", hint="--port 0 takes a free port") from error


def url_of(listening: socket.socket, *, tls: bool = False) -> str:
    """Where to reach it, such as ``http://127.0.0.1:8080``; a wildcard address is shown as the loopback one."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


def make_server(app: Callable[..., Any], settings: Settings | None = None) -> uvicorn.Server:
    """The server for an app; calls on their way are finished on stop. ``EndcastError`` if its certificate is unusable.

    Its own log lines go where those of the process go; it writes none for calls, since the app does.
    """
    chosen = Settings() if settings is None else settings
    config = uvicorn.Config(
        app,
        http=type("Connection", (LimitedConnection,), {"most_connections": chosen.max_connections}),
        ws="none",
        loop="uvloop",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(chosen.grace_s),
        lifespan="on",
        ssl_certfile=chosen.tls_certificate,
        ssl_keyfile=chosen.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # of which an SSLError is one
        raise EndcastError(
            f"cannot use the certificate {chosen.tls_certificate} with the key {chosen.tls_key}: {error.strerror or error}",
            hint="Both are PEM files, and the key belongs to the certificate",
        ) from None
    if config.ssl is not None:
        config.ssl.minimum_version = _TLS_VERSIONS[chosen.tls_min_version]
    return uvicorn.Server(config)


def serve_until_stopped(app: Callable[..., Any], listening: socket.socket, settings: Settings | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is on its way and exit the process with 0."""
    server = make_server(app, settings)
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, _exit_quietly)  # uvicorn ends first, then hands the signal on to this
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what is loaded by now stays: the collector need not walk it again and again while calls wait
    gc.set_threshold(YOUNG)
    with SeldomFull().kept():
        server.run(sockets=[listening])


def _exit_quietly(_signal: int, _frame: object) -> None:
    raise SystemExit(0)
