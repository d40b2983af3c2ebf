"""Calls to engines. Connections are kept and shared; bodies are not decoded."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import msgspec
from aiohappyeyeballs import start_connection
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from endcast.router.gateway.config import Health, Limits
from endcast.router.gateway.engines.connection import Connection
from endcast.router.gateway.engines.response import EngineError, EngineResponse, NotConnected

#: What can go wrong with a connection to an engine: refused, lost, late, or an answer that is none (``EngineError``).
UpstreamError = (OSError,)
#: Answers that say that this worker cannot serve now; tried elsewhere.
UNAVAILABLE = frozenset((502, 503, 504))
#: Engines close connections that nobody uses after five seconds.
_KEPT_S = 4.0
#: A name's next address is tried beside one that has been silent for so long.
_NEXT_ADDRESS_S = 0.25
#: Health checks, models and metrics are smaller.
_MOST = 8 << 20
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


def target_of(http: web.BaseRequest) -> str:
    """Path and query of a call, exactly as the client wrote them."""
    return http.raw_path if http.raw_path.startswith("/") else http.path_qs


class _Origin(msgspec.Struct, frozen=True):
    """Where connections lead to."""

    host: str
    port: int
    secure: bool
    shown: str  #: as the ``Host`` header tells it
    credentials: str | None  #: those of the address, as ``Authorization`` tells them


@lru_cache(maxsize=4096)
def _origin(address: str) -> _Origin:
    url = URL(address)
    credentials = None
    if url.raw_user is not None or url.raw_password is not None:
        told = f"{unquote(url.raw_user or '')}:{unquote(url.raw_password or '')}"
        credentials = "Basic " + base64.b64encode(told.encode()).decode()
    host, port, shown = url.raw_host, url.port, url.host_port_subcomponent
    if host is None or port is None or shown is None:
        raise NotConnected(f"{address} is no address")
    return _Origin(host, port, url.scheme == "https", shown, credentials)


class Engines:
    """The way to the engines; an async context manager."""

    def __init__(self, limits: Limits, health: Health) -> None:
        self.change(limits, health)
        self._unused: dict[_Origin, list[Connection]] = {}  # the last used last
        self._origins: dict[Connection, _Origin] = {}  # of all that are open
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    def change(self, limits: Limits, health: Health) -> None:
        """Other settings, from the next call on."""
        self._health, self._connect_s = health, limits.connect_timeout_s

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._origins):
            connection.abort()
        await asyncio.sleep(0)  # transports close in the next turn

    async def call(self, method: str, url: str, headers: CIMultiDict[str], body: bytes | None) -> EngineResponse:
        """The response, its headers read; one of ``UpstreamError`` where there is none. ``url`` is taken as it is."""
        at = url.find("/", 8)
        origin, target = (_origin(url), "/") if at < 0 else (_origin(url[:at]), url[at:])
        head, bodiless = _head(method, target, origin, headers, body), method == "HEAD"
        connection = self._kept(origin)
        if connection is not None:
            try:
                return await connection.call(head, body, bodiless=bodiless)
            except EngineError:
                if method not in _SAFE:
                    raise  # it may have been taken
        connection = await self._connect(origin)
        return await connection.call(head, body, bodiless=bodiless)

    async def probe(self, url: str) -> bool:
        """Whether the engine at ``url`` says that it is well: any answer but a 5xx. ``UpstreamError`` where none comes."""
        status, _ = await self.fetch(url + self._health.path, CIMultiDict())
        return status < 500

    async def fetch(self, url: str, headers: CIMultiDict[str]) -> tuple[int, bytes]:
        """Status and body of a small GET, within the health check's time; one of more than ``_MOST`` bytes is an error."""
        async with asyncio.timeout(self._health.timeout_s):
            response = await self.call("GET", url, headers, None)
            try:
                body = bytearray()
                while data := await response.readany():
                    body += data
                    if len(body) > _MOST:
                        raise EngineError(f"the answer of {url} is larger than {_MOST} bytes")
                return response.status, bytes(body)
            finally:
                response.close()

    # ---- connections

    async def _connect(self, origin: _Origin) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                found = await self._loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._keep, self._lose),
                    sock=await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S),
                    ssl=self._trusted() if origin.secure else None,
                    server_hostname=origin.host if origin.secure else None,
                )
        except TimeoutError:
            raise TimeoutError(f"no connection to {origin.shown} in {self._connect_s:g} s") from None
        except OSError as error:
            raise NotConnected(f"no connection to {origin.shown}: {error}") from error
        if not connection.closed:
            self._origins[connection] = origin
        return connection

    def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _kept(self, origin: _Origin) -> Connection | None:
        """One that is open and unused, taken out of those; ``None`` if there is none."""
        unused = self._unused.get(origin)
        if not unused:
            return None
        connection = unused.pop()
        if self._loop.time() - connection.idle_since_s <= _KEPT_S:
            return connection
        connection.abort()
        return None  # the others have been unused for longer: the sweep closes them

    def _keep(self, connection: Connection) -> None:
        connection.idle_since_s = self._loop.time()
        self._unused.setdefault(self._origins[connection], []).append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_KEPT_S, self._close_unused)

    def _lose(self, connection: Connection) -> None:
        origin = self._origins.pop(connection, None)
        unused = [] if origin is None else self._unused.get(origin, [])
        if connection in unused:
            unused.remove(connection)

    def _close_unused(self) -> None:
        since_s = self._loop.time() - _KEPT_S
        for connection in [one for unused in self._unused.values() for one in unused if one.idle_since_s < since_s]:
            connection.abort()
        self._unused = {origin: unused for origin, unused in self._unused.items() if unused}
        self._sweep = self._loop.call_later(_KEPT_S, self._close_unused) if self._unused else None


def _head(method: str, target: str, origin: _Origin, headers: CIMultiDict[str], body: bytes | None) -> bytes:
    """The request up to its body. ``ValueError`` where a header or the target would break out of its line."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {origin.shown}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if origin.credentials is not None and "Authorization" not in headers:
        lines.append(f"Authorization: {origin.credentials}")
    if body is not None or method in _WITH_BODY:
        lines.append(f"Content-Length: {len(body or b'')}")
    head = "\r\n".join((*lines, "", ""))
    if not head.count("\n") == head.count("\r") == len(lines) + 1 or "\0" in head or " " in target:
        raise ValueError("a header or the target holds a line end")
    return head.encode("utf-8", "surrogateescape")
