"""The status page in a real browser: headless Chromium, driven over its own protocol through two pipes."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import listen, make_server, url_of
from endcast.testing import ConstantHazardForecaster

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEY = "k" * 20
PATIENCE_S = 60
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


#: A browser reads file 3 and writes file 4.
LAUNCHER = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a headless browser. Messages are JSON with a zero byte at the end."""

    def __init__(self, program: str, profile: pathlib.Path) -> None:
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-extensions", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        )  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(reads), str(writes), program, *options],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.faults: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(told["params"]["exceptionDetails"]))
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
            self.faults.append(told["params"]["entry"]["text"])

    def value(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.1)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def text(self, id: str) -> str:
        return str(self.value(f"document.getElementById('{id}').innerText"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = Browser(program, pathlib.Path(profile))
        yield opened
        opened.close()


@pytest.fixture(params=[(), (f"page:{KEY}",)], ids=["open", "locked"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A service whose bundle says hostile things of itself, with and without a key."""
    manifest = {"model": HOSTILE, "training": {HOSTILE: [1, HOSTILE]}, "files": {"hidden": "x"}}
    forecaster = ConstantHazardForecaster(0.01, bundle=HOSTILE)
    server = make_server(create_app(Settings(api_keys=request.param), forecaster, manifest))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until = time.monotonic() + PATIENCE_S
            while not server.started and time.monotonic() < until:
                time.sleep(0.01)
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


def test_people_see_what_the_service_does(url: str, browser: Browser, request: pytest.FixtureRequest) -> None:
    browser.faults.clear()
    headers = {"authorization": f"Bearer {KEY}"}
    ask = {"requests": [{"request_id": f"r{i}", "prompt_tokens": 1, "model": HOSTILE} for i in range(5)]}
    assert httpx.post(f"{url}/v1/forecasts", json=ask, headers=headers).status_code == 200
    told = {"outcomes": [{"request_id": f"r{i}", "output_tokens": 40 + 30 * i} for i in range(5)]}
    assert httpx.post(f"{url}/v1/outcomes", json=told, headers=headers).json()["accepted"] == 5
    browser.open(url)
    if "locked" in request.node.name:
        browser.until("document.getElementById('state').textContent === 'locked'")
        assert browser.value("document.getElementById('figures').hidden")
        browser.value(
            "document.getElementById('key').value = 'wrong-key-wrong-key'; document.querySelector('button').click()"
        )
        browser.until("document.getElementById('note').textContent.includes('does not know this key')")
        browser.value(f"document.getElementById('key').value = '{KEY}'; document.querySelector('button').click()")
        browser.faults = [fault for fault in browser.faults if "401" not in fault]
    browser.until("!document.getElementById('figures').hidden")
    browser.until("document.getElementById('calibration').innerText.includes('64 tokens')")
    assert browser.text("state") == "ready"
    assert "FORECASTS/S" in browser.text("now").upper() and "accepted" in browser.text("outcomes")
    calibration = browser.text("calibration")
    assert "64 tokens" in calibration and "NaN" not in browser.value("document.body.innerText")
    # what the bundle and callers say is shown as text, and nothing of it runs
    assert browser.text("bundle") == HOSTILE
    assert (
        HOSTILE in browser.text("groups") and HOSTILE in browser.text("card") and "hidden" not in browser.text("card")
    )
    assert browser.value("document.title") == "endcast"
    assert browser.value("document.querySelectorAll('main img, main script').length") == 0
    points = browser.value("document.querySelector('#chart polyline').getAttribute('points')")
    assert len(points.split()) >= 1
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.faults == []


def test_a_service_that_is_gone_is_said(browser: Browser) -> None:
    server = make_server(create_app(Settings(), ConstantHazardForecaster(0.01)))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        browser.open(url_of(listening))
        browser.until("document.getElementById('state').textContent === 'ready'")
        server.should_exit = True
        thread.join(PATIENCE_S)
    browser.value("document.dispatchEvent(new Event('visibilitychange'))")  # asks at once
    browser.until("document.getElementById('state').textContent === 'no answer'")
    assert "may be old" in browser.text("note") and not browser.value("document.getElementById('figures').hidden")
