"""The live page in a real browser: a router at work, watched while its fleet changes and its forecaster fails."""

from __future__ import annotations

import asyncio
import importlib.util
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from endcast.router.gateway.config import Auth, Key, WorkerConfig
from endcast.testing import ConstantHazardForecaster

pytestmark = pytest.mark.slow
RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
KEY = "k" * 20
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


def driver() -> Any:
    """The module that drives a browser for the service's status page."""
    file = pathlib.Path(__file__).parents[1] / "serving" / "test_ops_browser.py"
    spec = importlib.util.spec_from_file_location("endcast_browser_driver", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    module = driver()
    program = next(filter(None, map(shutil.which, module.BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(module.BROWSERS)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = module.Browser(program, pathlib.Path(profile))
        yield opened
        opened.close()


class Moody(ConstantHazardForecaster):
    """Fails when told."""

    broken = False

    def forecast_batch(self, landmarks: Any, horizon: int) -> Any:
        if self.broken:
            raise RuntimeError(HOSTILE)
        return super().forecast_batch(landmarks, horizon)


async def seen(browser: Any, expression: str) -> None:
    """The page shows so, in time; the router runs in this event loop, the browser is waited for beside it."""
    await asyncio.to_thread(browser.until, expression)


async def ask(r: Any, tokens: int, headers: dict[str, str]) -> Any:
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "mock_output_tokens": tokens}
    return await r.call("/v1/chat/completions", body, headers=headers)


def says(id: str, text: str) -> str:
    return f"document.getElementById('{id}').innerText.includes({msgspec.json.encode(text).decode()})"


@pytest.mark.parametrize("locked", [False, True])
def test_people_see_what_the_router_does(rig: RigMaker, browser: Any, locked: bool, tmp_path: pathlib.Path) -> None:
    browser.faults.clear()
    forecaster = Moody(0.05, bundle=HOSTILE)
    headers = {"Authorization": f"Bearer {KEY}"} if locked else {}
    auth = Auth(keys=(Key(key=KEY),)) if locked else None

    async def run() -> None:
        pool = {"policy": "olp_br_h", "forecaster": "x", "forecast_timeout_s": 5.0, "kv_capacity": 4000}
        async with rig(
            workers=3, slots=2, t_fixed_s=0.05, pool=pool, auth=auth, forecasts=lambda _: (forecaster, PRIOR)
        ) as r:
            config = r.gateway.config.pools[0]
            await asyncio.to_thread(browser.open, r.server.url)
            if locked:
                await seen(browser, says("state", "locked"))
                assert await asyncio.to_thread(browser.value, "document.getElementById('figures').hidden")
                key = f"document.getElementById('key').value = '{KEY}'; document.querySelector('button').click()"
                await asyncio.to_thread(browser.value, key)
                browser.faults = [fault for fault in browser.faults if "401" not in fault]
            await seen(browser, "!document.getElementById('figures').hidden")
            streams = [asyncio.create_task(ask(r, 150, headers)) for _ in range(9)]
            await seen(browser, "document.querySelectorAll('#waiting tbody tr').length === 3")
            await seen(browser, "document.querySelectorAll('#decisions tbody tr').length >= 6")
            assert "surplus" in await asyncio.to_thread(browser.text, "decisions")
            assert "routing" in await asyncio.to_thread(browser.text, "state")
            assert r.fleet.urls[2] in await asyncio.to_thread(browser.text, "workers")
            # a change of the fleet, and a forecaster that fails, are seen
            changed = msgspec.structs.replace(config, workers=tuple(WorkerConfig(url=u) for u in r.fleet.urls[:2]))
            forecaster.broken = False
            await r.server.change(msgspec.structs.replace(r.gateway.config, pools=(changed,)))
            await seen(browser, says("state", "1 of 3 workers down"))
            forecaster.broken = True
            streams.append(asyncio.create_task(ask(r, 2, headers)))
            await seen(browser, says("state", "without forecasts"))
            await seen(browser, says("forecasts", "RuntimeError"))
            assert await asyncio.to_thread(browser.text, "bundle") == HOSTILE, "shown as text"
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await seen(browser, "document.querySelectorAll('#workers tbody tr').length === 2")
            await seen(browser, says("waiting", "Nothing waits"))
            assert "NaN" not in await asyncio.to_thread(browser.value, "document.body.innerText")
            assert await asyncio.to_thread(browser.value, "document.title") == "endcast router"
            assert await asyncio.to_thread(browser.value, "document.querySelectorAll('main img').length") == 0
            assert await asyncio.to_thread(
                browser.value, "document.documentElement.scrollWidth <= window.innerWidth"
            ), "nothing is cut off"
        await seen(browser, says("state", "no answer"))

    asyncio.run(run())
    assert [fault for fault in browser.faults if "ERR_CONNECTION_REFUSED" not in fault] == []
