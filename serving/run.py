"""Listening and serving with uvicorn, until the process is told to stop."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from endcast.errors import EndcastError

#: Seconds that calls on their way have to finish in once the service is told to stop.
GRACE_S = 10


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` (name or address, IPv4 or IPv6); port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2_048)
    except OSError as error:
        known = error.errno in errno.errorcode  # a name that cannot be resolved has a number of its own
        why = os.strerror(error.errno) if known and error.errno else error.strerror or error
        raise EndcastError(f"cannot listen on {host} port {port}: {why}", hint="--port 0 takes a free port") from error


def url_of(listening: socket.socket) -> str:
    """Where to reach it, such as ``http://127.0.0.1:8080``; a wildcard address is shown as the loopback one."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def make_server(app: Callable[..., Any]) -> uvicorn.Server:
    """The server for an app: no access log (metrics count calls), calls on their way are finished on stop."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S, lifespan="on")
    )


def serve_until_stopped(app: Callable[..., Any], listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is on its way and exit the process with 0."""
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, _exit_quietly)  # uvicorn ends first, then hands the signal on to this
    gc.collect()
    gc.freeze()  # what is loaded by now stays: the collector need not walk it again and again while calls wait
    make_server(app).run(sockets=[listening])


def _exit_quietly(_signal: int, _frame: object) -> None:
    raise SystemExit(0)
