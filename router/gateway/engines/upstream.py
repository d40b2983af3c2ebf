"""Calls to engines. One session for all of them: connections are kept and shared, bodies are not decoded."""

from __future__ import annotations

import asyncio
import io
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from endcast.router.gateway.config import Health, Limits

#: What can go wrong with a connection to an engine.
UpstreamError = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)
#: Answers that say that this worker cannot serve now; tried elsewhere.
UNAVAILABLE = frozenset((502, 503, 504))
_LINE = 64 * 1024
_LARGE = 256 * 1024
#: Health checks, models and metrics are smaller.
_MOST = 8 << 20


def target_of(http: web.BaseRequest) -> str:
    """Path and query of a call, exactly as the client wrote them."""
    return http.raw_path if http.raw_path.startswith("/") else http.path_qs


class Engines:
    """The way to the engines; an async context manager."""

    def __init__(self, limits: Limits, health: Health) -> None:
        self.change(limits, health)

    def change(self, limits: Limits, health: Health) -> None:
        """Other settings, from the next call on."""
        self._health = health
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ttl_dns_cache=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=_LINE,
            max_line_size=_LINE,
            max_field_size=_LINE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(
        self, method: str, url: str, headers: CIMultiDict[str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """The response, its headers read; one of ``UpstreamError`` where there is none. ``url`` is taken as it is."""
        data = io.BytesIO(body) if body is not None and len(body) > _LARGE else body  # a large one goes in pieces
        return await self._session.request(
            method, URL(url, encoded=True), headers=headers, data=data, allow_redirects=False, timeout=self._timeout
        )

    async def probe(self, url: str) -> bool:
        """Whether the engine at ``url`` says that it is well: any answer but a 5xx. ``UpstreamError`` where none comes."""
        status, _ = await self.fetch(url + self._health.path, CIMultiDict())
        return status < 500

    async def fetch(self, url: str, headers: CIMultiDict[str]) -> tuple[int, bytes]:
        """Status and body of a small GET, within the health check's time; one of more than ``_MOST`` bytes is an error."""
        async with asyncio.timeout(self._health.timeout_s):
            async with self._session.get(
                url, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MOST:
                        raise aiohttp.ClientPayloadError(f"the answer of {url} is larger than {_MOST} bytes")
                return response.status, bytes(body)
