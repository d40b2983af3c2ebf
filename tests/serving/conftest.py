"""A service over a fake forecaster, called through httpx without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from endcast import Forecaster
from endcast.datasets.synth import SynthLog
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster
from endcast.training.train import Settings as TrainSettings
from endcast.training.train import train

Call = Callable[..., httpx.Response]


def call_app(app: Any, method: str, path: str, **content: Any) -> httpx.Response:
    """One call of an ASGI app; an exception inside it is raised here."""

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            return await client.request(method, path, **content)

    return asyncio.run(once())


@pytest.fixture
def make_service() -> Callable[..., Call]:
    """A function that makes a service and returns how to call it."""

    def make(forecaster: Forecaster | None = None, settings: Settings | None = None, **more: Any) -> Call:
        app = create_app(settings or Settings(), forecaster or ConstantHazardForecaster(0.01), **more)
        return lambda method, path, **content: call_app(app, method, path, **content)

    return make


@pytest.fixture
def service(make_service: Callable[..., Call]) -> Call:
    """A service whose forecaster has hazard 0.01."""
    return make_service()


@pytest.fixture(scope="session")
def two_bundles(
    small_log: SynthLog, quick_settings: Callable[..., TrainSettings], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two bundles that forecast differently, trained in no time."""
    folder = tmp_path_factory.mktemp("two")
    for name, intervals in (("first", 24), ("second", 6)):
        train(small_log.trace, quick_settings("kaplan_meier", intervals=intervals), folder / name)
    return folder / "first", folder / "second"
