"""The live page without a browser: its figures, its markup, and what its security policy allows."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html.parser
import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import endcast
from endcast.router.gateway.config import Auth, Key, Log
from endcast.router.gateway.seen.calibration import Calibration
from endcast.router.gateway.seen.live import LiveReply, PoolStatus, page
from endcast.types import EndReason

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


class Parsed(html.parser.HTMLParser):
    """Ids, references, handlers and texts of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.parts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.parts.setdefault(self._inside, data)


def refuse(name: str) -> Any:
    raise AssertionError(name)


def test_the_page_loads_nothing_and_its_policy_fits_it(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, auth=Auth(keys=(Key(key="k" * 16),))) as r:
            got = await r.call("/")
            assert got.status == 200 and got.headers["Content-Type"] == "text/html; charset=utf-8"
            parsed = Parsed(got.body.decode())
            assert parsed.loads == ["data:,"] and parsed.handlers == []
            policy = got.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            for tag in ("style", "script"):
                digest = base64.b64encode(hashlib.sha256(parsed.parts[tag].encode()).digest()).decode()
                assert f"{tag}-src 'sha256-{digest}'" in policy
            assert (await r.call("/live")).status == 401
            assert (await r.call("/live", headers={"Authorization": f"Bearer {'k' * 16}"})).status == 200

    asyncio.run(run())


def test_the_script_fits_the_page_and_the_figures() -> None:
    parsed = Parsed(page()[0])
    script = parsed.parts["script"]
    named = set(re.findall(r'(?:byId|table|tiles)\("([a-z-]+)"', script))
    assert len(named) > 15 and named <= set(parsed.ids) and len(set(parsed.ids)) == len(parsed.ids)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)
    assert set(re.findall(r"\btold\.([a-z_]+)", script)) == set(LiveReply.__struct_fields__) - {"now"}
    assert set(re.findall(r"\bpool\.([a-z_]+)", script)) == set(PoolStatus.__struct_fields__)


@pytest.mark.parametrize("policy", ["br_0", "br_h", "olp_br_h", "least_kv"])
def test_figures_of_a_pool_that_did_something(rig: RigMaker, policy: str, tmp_path: Path) -> None:
    forecaster = None if policy in ("br_0", "least_kv") else "cold_start"
    pool = {"policy": policy, "forecaster": forecaster, "forecast_timeout_s": 5.0, "kv_capacity": 100_000}

    async def run() -> None:
        log = Log(path=str(tmp_path / "log"))
        prior = lambda _: (endcast.cold_start(), endcast.cold_start())
        async with rig(workers=2, slots=2, t_fixed_s=0.01, pool=pool, log=log, forecasts=prior) as r:
            await r.call("/live")
            for _ in range(6):
                assert (await r.chat(4)).status == 200
            running = [asyncio.create_task(r.chat(3000)) for _ in range(6)]
            async with asyncio.timeout(60):
                while (r.core.running, r.core.waiting) != (4, 2):
                    await r.call("/live")  # decisions are noted while somebody looks
            got = await r.call("/live")
            json.loads(got.body, parse_constant=refuse)
            told = msgspec.json.decode(got.body, type=LiveReply).pools[0]
            assert (told.policy, told.running, told.waiting) == (policy, 4, 2)
            assert sum(worker.active for worker in told.workers) == 4 and all(
                worker.load > 0 for worker in told.workers
            )
            assert len(told.decisions) >= 10 and all(one.why for one in told.decisions)
            assert {one.worker for one in told.decisions} <= {0, 1}
            if forecaster is None:
                assert told.forecast is None and told.calibration == [] and told.prices is None
                assert told.workers[0].window is None
                assert "tokens" in told.decisions[0].why
            else:
                assert told.forecast is not None and told.forecast.up
                assert told.calibration[0].happened == 4 and told.calibration[0].expected > 0
                assert told.steps[0] == 0 and told.steps[-1] == 20
                assert told.workers[0].window is not None and told.workers[0].window[0] > 0
            if policy == "olp_br_h":
                assert told.prices is not None and "surplus" in told.decisions[0].why
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await r.settled()

    asyncio.run(run())


def test_nothing_is_noted_while_nobody_looks(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            await r.chat(2)
            assert (await r.call("/live")).json["pools"][0]["decisions"] == []
            await r.chat(2)
            assert len((await r.call("/live")).json["pools"][0]["decisions"]) == 1

    asyncio.run(run())


def test_calibration_is_of_true_lengths_only() -> None:
    calibration = Calibration()
    for i in range(50):
        calibration.ended(float(i), 2 * i + 1, EndReason.STOP)
        calibration.ended(9e9, 1, EndReason.ABORT)
        calibration.ended(None, 1, EndReason.STOP)
    rows = calibration.rows()
    assert [row.requests for row in rows] == [10] * 5
    assert [row.expected for row in rows] == [4.5, 14.5, 24.5, 34.5, 44.5]
    assert all(row.happened == 2 * row.expected + 1 for row in rows)
