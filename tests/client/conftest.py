"""A service over a fake forecaster that a sync client can call without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from endcast.client import Client, Options
from endcast.forecaster import Forecaster
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster


def over(app: Any) -> httpx.MockTransport:
    """A sync transport that hands each call to an ASGI app."""

    def handle(request: httpx.Request) -> httpx.Response:
        async def once() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
                return await client.request(
                    request.method, request.url, content=request.content, headers=request.headers
                )

        answer = asyncio.run(once())
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    return httpx.MockTransport(handle)


@pytest.fixture
def client_of() -> Callable[..., Client]:
    """A function that makes a client of a service over a forecaster."""

    def make(forecaster: Forecaster | None = None, **more: Any) -> Client:
        app = create_app(Settings(**more), forecaster or ConstantHazardForecaster(0.01))
        return Client("http://service", Options(), transport=over(app))

    return make
