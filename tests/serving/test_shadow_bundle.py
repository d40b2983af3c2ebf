"""A shadow bundle beside the served one: same forecasts, honest intervals, promotion and the way back."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from endcast import Forecast, Landmark, load_forecaster
from endcast.datasets.synth import SynthLog
from endcast.errors import EndcastError
from endcast.serving.app import create_app
from endcast.serving.bundles.holder import Loaded
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.service import OutcomeService
from endcast.serving.shadow.comparison import ALPHA, LEAST, Difference, half_width
from endcast.testing import ConstantHazardForecaster
from endcast.training.train import Trained

TRUE = 0.02


class Running:
    """A service with a served and perhaps a shadow forecaster."""

    def __init__(self, app: Any, client: httpx.AsyncClient) -> None:
        self.app, self.client = app, client
        self.outcomes: OutcomeService = app.state.context.outcomes
        self.told = 0

    async def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def live_through(self, generations: int, seed: int = 0) -> None:
        """Forecast generations of true hazard ``TRUE`` at 0, 30 and 60 tokens, and tell how they ended."""
        rng = np.random.default_rng(seed)
        for _ in range(generations // 50):
            lengths = {f"r{self.told + i}": int(rng.geometric(TRUE)) for i in range(50)}
            self.told += 50
            for at in (0, 30, 60):
                names = [name for name, length in lengths.items() if length > at]
                body = [{"request_id": name, "prompt_tokens": 1, "generated_tokens": at} for name in names]
                await self.call("POST", "/v1/forecasts", {"requests": body})
            await self.settled()
            outcomes = [{"request_id": name, "output_tokens": length} for name, length in lengths.items()]
            assert (await self.call("POST", "/v1/outcomes", {"outcomes": outcomes}))["accepted"] == 50

    async def settled(self) -> None:
        """Wait until the shadow bundle has made its forecasts."""
        shadow = self.outcomes.shadow
        while shadow is not None and not shadow.idle:
            await asyncio.sleep(0.002)

    async def shadow(self, forecaster: Any) -> None:
        await asyncio.to_thread(self.outcomes.set_shadow, Loaded(forecaster))


@asynccontextmanager
async def running(served: Any, settings: Settings | None = None) -> AsyncIterator[Running]:
    app = create_app(settings or Settings(scored_per_s=1e9), served, getattr(served, "manifest", None))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), client:
        yield Running(app, client)


def test_the_better_bundle_is_found_promoted_and_taken_back(tmp_path: Path) -> None:
    served = ConstantHazardForecaster(0.004, bundle="off")
    better = ConstantHazardForecaster(TRUE, bundle="right")

    async def work() -> None:
        async with running(served, Settings(outcome_log=tmp_path, scored_per_s=1e9)) as one:
            await one.live_through(100)
            nothing = await one.call("GET", "/v1/bundle/shadow")
            assert (nothing["shadow"], nothing["compared"], nothing["generations"]) == (None, [], 0)
            await one.shadow(better)
            assert [c.output_tokens for c in better.observed] == [c.output_tokens for c in served.observed]
            await one.live_through(200, seed=1)
            found = await one.call("GET", "/v1/bundle/shadow")
            assert (found["served"], found["shadow"], found["compared"]) == ("off", "right", ["off", "right"])
            assert found["generations"] == 200 and found["verdict"] == "shadow is better" and found["skipped"] == 0
            at_64 = found["horizons"]["64"]
            assert at_64["shadow_brier"] < at_64["served_brier"] and at_64["shadow_log"] < at_64["served_log"]
            assert at_64["brier"]["low"] < at_64["brier"]["mean"] < at_64["brier"]["high"] < 0.0
            mean = at_64["shadow_brier"] - at_64["served_brier"]
            assert at_64["brier"]["mean"] == pytest.approx(mean, abs=1e-9)
            promoted = await one.call("POST", "/v1/bundle/shadow/promote")
            assert (promoted["served"], promoted["shadow"], promoted["generations"]) == ("right", "off", 200)
            assert promoted["verdict"] == "shadow is better"  # as it was before
            assert (await one.call("GET", "/v1/bundle"))["bundle"] == "right"
            await one.live_through(100, seed=2)
            assert better.state_version == served.state_version == 400  # both go on learning, each once
            now = await one.call("GET", "/v1/bundle/shadow")
            assert now["verdict"] == "served is better" and now["generations"] == 100
            back = await one.call("POST", "/v1/bundle/shadow/promote")
            assert (back["served"], back["shadow"]) == ("off", "right")
            ended = await one.call("DELETE", "/v1/bundle/shadow")
            assert ended["shadow"] is None and (await one.call("GET", "/v1/bundle"))["bundle"] == "off"
            assert (await one.call("POST", "/v1/bundle/shadow/promote", status=409))["error"][
                "code"
            ] == "bundle_refused"

    asyncio.run(work())


def test_equal_bundles_show_no_difference() -> None:
    async def work() -> None:
        async with running(ConstantHazardForecaster(TRUE, bundle="a")) as one:
            await one.shadow(ConstantHazardForecaster(TRUE, bundle="b"))
            await one.live_through(100)
            found = await one.call("GET", "/v1/bundle/shadow")
            assert found["verdict"] == "no difference shown" and found["overall"]["mean"] == 0.0

    asyncio.run(work())


def test_a_bundle_cannot_be_its_own_shadow_nor_a_damaged_one_be_loaded(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(ConstantHazardForecaster(TRUE, bundle="a")) as one:
            with pytest.raises(EndcastError, match="served already"):
                await one.shadow(ConstantHazardForecaster(TRUE, bundle="a"))
            refused = await one.call("POST", "/v1/bundle/shadow", {"path": str(tmp_path)}, status=409)
            assert refused["error"]["code"] == "bundle_refused"
            assert str(tmp_path) not in str(refused)
            for path in ("a\0b", "x" * 4_096, "😀/..", "/", "~", "secret/place"):
                refused = await one.call("POST", "/v1/bundle/shadow", {"path": path}, status=409)
                assert len(str(refused)) < 1_000 and "secret" not in str(refused)
            wrong = await one.call("POST", "/v1/bundle/shadow", {"path": 3}, status=422)
            assert wrong["error"]["field"] == "path"
            assert (await one.call("GET", "/v1/bundle/shadow"))["shadow"] is None

    asyncio.run(work())


def test_with_several_processes_a_call_that_reaches_one_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        settings = Settings(outcome_peers=True, outcome_log=tmp_path)
        async with running(ConstantHazardForecaster(TRUE), settings) as one:
            for method, path in (("POST", "/promote"), ("DELETE", "")):
                refused = await one.call(method, f"/v1/bundle/shadow{path}", status=409)
                assert "several processes" in refused["error"]["message"]

    asyncio.run(work())


def test_a_shadow_that_is_slow_or_fails_skips_and_holds_nobody_up() -> None:
    go_on = threading.Event()

    class Slow(ConstantHazardForecaster):
        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            assert go_on.wait(20)
            if landmarks[0].request.request_id == "r0":
                raise EndcastError("cannot")
            return super().forecast(landmarks)

    async def work() -> None:
        async with running(ConstantHazardForecaster(TRUE, bundle="a")) as one:
            await one.shadow(Slow(TRUE, bundle="slow"))
            for start in range(0, 3_000, 500):
                body = [{"request_id": f"r{start + i}", "prompt_tokens": 1} for i in range(500)]
                await one.call("POST", "/v1/forecasts", {"requests": body})
            told = [{"request_id": f"r{i}", "output_tokens": 9} for i in range(10)]
            assert (await one.call("POST", "/v1/outcomes", {"outcomes": told}))["accepted"] == 10
            assert (await one.call("GET", "/v1/bundle/shadow"))["skipped"] >= 3_000 - 2_048 - 64
            go_on.set()
            await one.settled()
            found = await one.call("GET", "/v1/bundle/shadow")
            assert found["generations"] == 0 and found["overall"] == {"mean": None, "low": None, "high": None}

    asyncio.run(work())


def test_a_bundle_of_a_folder_is_scored_learns_and_survives_a_restart(
    boosted: Trained, bundle_of: Any, small_log: SynthLog, tmp_path: Path
) -> None:
    """Served Kaplan-Meier, shadow boosted: the evidence is in the log, and so is what recalibrates the shadow."""
    plain = bundle_of("kaplan_meier")
    completions = [c for c in small_log.trace.completions() if c.output_tokens > 1][-130:]
    settings = Settings(outcome_log=tmp_path, scored_per_s=1e9, shadow_bundle=boosted.path)
    found: list[Any] = []
    shadows: list[Any] = []

    async def work() -> None:
        async with running(load_forecaster(plain.path), settings) as one:
            for i, completion in enumerate(completions):
                request = {
                    "request_id": f"q{i}",
                    "arrival": 1.9e9 + i,
                    "prompt_tokens": completion.request.prompt_tokens,
                    "model": completion.request.model,
                    "tenant": completion.request.tenant,
                    "parameters": {**completion.request.parameters, "max_tokens": completion.request.max_tokens},
                }
                await one.call("POST", "/v1/forecasts", {"requests": [request]})
                await one.settled()
                end = "stop" if completion.end.value == "error" else completion.end.value
                outcome = {"request_id": f"q{i}", "output_tokens": completion.output_tokens, "end": end}
                await one.call("POST", "/v1/outcomes", {"outcomes": [outcome]})
            found.append(await one.call("GET", "/v1/bundle/shadow"))
            await one.settled()
            assert one.outcomes.shadow is not None
            shadows.append(one.outcomes.shadow.loaded.forecaster)
        async with running(load_forecaster(plain.path), settings) as one:
            await one.settled()
            assert one.outcomes.shadow is not None
            shadows.append(one.outcomes.shadow.loaded.forecaster)

    asyncio.run(work())
    assert found[0]["shadow"] == boosted.id and found[0]["generations"] == 130
    assert all(math.isfinite(one["brier"]["mean"]) for one in found[0]["horizons"].values())
    assert shadows[0].state_version == shadows[1].state_version
    assert shadows[0].snapshot() == shadows[1].snapshot()
    assert shadows[0]._recalibration.active  # from hazards of its own


def test_the_interval_covers_however_often_one_looks() -> None:
    """Of 120 comparisons without a difference, looked at after every tenth generation, at most about 5 % ever err."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(120):
        difference, erred = Difference(1), False
        for t in range(1, 401):
            counts = np.array([float(rng.integers(1, 9))])
            shadow = rng.normal(0.0, 0.1, 1) * counts
            difference.add(np.zeros(1), shadow, counts)
            if t % 10 == 0 and t >= LEAST:
                interval = difference.interval(0)
                erred |= not interval.low <= 0.0 <= interval.high
        wrong += erred
    assert wrong <= 120 * ALPHA + 3 * math.sqrt(120 * ALPHA * (1 - ALPHA))


def test_intervals_narrow_with_evidence_and_are_none_without() -> None:
    difference = Difference(1)
    assert math.isnan(difference.interval(0).mean) and difference.interval(0).high == math.inf
    rng = np.random.default_rng(0)
    widths = []
    for t in range(1, 3_001):
        difference.add(np.zeros(1), rng.normal(-0.05, 0.1, 1), np.ones(1))
        if t in (LEAST - 1, 100, 1_000, 3_000):
            widths.append(difference.interval(0).high - difference.interval(0).low)
    assert widths[0] == math.inf and widths[1] > widths[2] > widths[3] > 0.0
    assert difference.interval(0).high < 0.0
    assert 1.5 < half_width(1_000) / (1.96 / math.sqrt(1_000)) < 1.6
