"""Several processes that share an outcome log: whoever is told, all learn the same in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from endcast.datasets.read import read
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster


async def until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")


class Process:
    """One of them; here they are apps in one process, each with a log, threads and forecaster of its own."""

    def __init__(self, folder: Path) -> None:
        self.forecaster = ConstantHazardForecaster(0.01)
        self.app: Any = create_app(Settings(outcome_log=folder, outcome_peers=True), self.forecaster)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://service")

    async def forecast(self, *names: str) -> list[str]:
        body = {"requests": [{"request_id": name, "prompt_tokens": 5, "tenant": "t"} for name in names]}
        return [one["forecast_id"] for one in (await self.client.post("/v1/forecasts", json=body)).json()["forecasts"]]

    async def tell(self, **outcome: Any) -> str:
        body = {"outcomes": [{"output_tokens": 30, **outcome}]}
        (status,) = (await self.client.post("/v1/outcomes", json=body)).json()["statuses"]
        return str(status)

    @property
    def learned(self) -> list[str]:
        return [completion.request.request_id for completion in self.forecaster.observed]


def test_all_learn_the_same_whoever_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        a, b = Process(tmp_path), Process(tmp_path)
        async with a.app.router.lifespan_context(a.app), b.app.router.lifespan_context(b.app), a.client, b.client:
            await a.forecast("a1", "a2", "a3")
            (b1, _) = await b.forecast("b1", "b2")
            assert await a.tell(request_id="a1") == "accepted"
            assert await b.tell(request_id="b2") == "accepted"
            assert await b.tell(request_id="a2") == "pending"  # a has forecast it
            assert await b.tell(request_id="a2") == "duplicate"
            assert await a.tell(forecast_id=b1) == "pending"
            await until(lambda: len(a.learned) == len(b.learned) == 4)
            assert a.learned == b.learned and sorted(a.learned) == ["a1", "a2", "b1", "b2"]
            assert {c.request.tenant for c in b.forecaster.observed} == {"t"}  # joined by whoever had forecast it
            assert await b.tell(request_id="a1") == "duplicate" and await a.tell(request_id="b1") == "duplicate"
            assert await a.tell(forecast_id="f-deadbeef-1") == "pending"
            figures = [await one.app.state.context.outcomes.fresh_figures() for one in (a, b)]
            assert figures[0].live == figures[1].live and figures[0].live.outcomes == 4
            versions = [(await one.client.get("/readyz")).json()["state_version"] for one in (a, b)]
            assert versions == [4, 4]
            late = Process(tmp_path)
            async with late.app.router.lifespan_context(late.app), late.client:
                assert late.learned == a.learned
                assert await late.tell(request_id="a2") == "duplicate"

    asyncio.run(work())
    reading = read(tmp_path)
    assert len(reading.trace) == 4
    assert sum(lines.count for lines in reading.report.dropped.values()) == 3  # the pending ones


def test_an_outcome_that_nobody_had_forecast_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        a = Process(tmp_path)
        outcomes = a.app.state.context.outcomes
        async with a.app.router.lifespan_context(a.app), a.client:
            object.__setattr__(outcomes.open()._limits, "pending_s", 0.0)
            assert await a.tell(request_id="never") == "pending"
            await until(lambda: outcomes.open()._counts["unresolved"] == 1)
            assert not a.learned

    asyncio.run(work())
