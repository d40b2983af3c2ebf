"""Clients that leave and engines that die, with two vLLM engines behind the router."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

Fixture = Any
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
#: Goes on for ten seconds or longer.
LONG = {"model": "tiny", "prompt": "def f", "max_tokens": 2000, "temperature": 0, "ignore_eos": True}


def settle(condition: Any, seconds: float = 120.0) -> float:
    """Seconds until ``condition`` holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + seconds
        time.sleep(0.05)
    return time.monotonic() - begun


class Streams:
    """Streams that are read on threads, each to its end."""

    def __init__(self, url: str, count: int, tokens: int = 2000) -> None:
        self.bodies = [b""] * count
        self._body = {**LONG, "max_tokens": tokens, "stream": True}
        self._threads = [threading.Thread(target=self._read, args=(url, i)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, url: str, i: int) -> None:
        with httpx.stream("POST", url + COMPLETIONS, json=self._body, timeout=300) as response:
            for piece in response.iter_raw():
                self.bodies[i] += piece

    def begun(self) -> bool:
        """Whether all of them have said something."""
        return all(body.count(b"data: ") > 3 for body in self.bodies)

    def join(self) -> list[bytes]:
        """What they said."""
        for thread in self._threads:
            thread.join()
        return self.bodies


@contextmanager
def open_stream(url: str) -> Iterator[Iterator[bytes]]:
    with httpx.stream("POST", url + COMPLETIONS, json={**LONG, "stream": True}, timeout=120) as response:
        yield response.iter_raw()


def test_a_stream_that_its_client_leaves_is_aborted_in_the_engine(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        with open_stream(r.url) as pieces:
            next(pieces)
            settle(lambda: sum(engine.running() for engine in engines) == 1)
        assert settle(lambda: sum(engine.running() for engine in engines) == 0) < 5.0
        r.settled()
        assert r.total("requests_total", end="abort") == 1


def test_an_answer_that_its_client_does_not_wait_for_is_aborted_too(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(r.url + COMPLETIONS, json=LONG, timeout=httpx.Timeout(60, read=2.0))
        assert settle(lambda: sum(engine.running() for engine in engines) == 0) < 5.0
        r.settled()


def test_many_clients_that_leave_at_any_time(stage: Fixture, router: Fixture) -> None:
    """40 clients leave after up to three seconds, while they wait, before the first token or behind it."""
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:

        def client(i: int) -> None:
            body = {**LONG, "stream": i % 3 > 0, "n": 1 + i % 2}
            try:
                with httpx.stream("POST", r.url + COMPLETIONS, json=body, timeout=0.075 * (i + 1)) as response:
                    end = time.monotonic() + 0.075 * (i + 1)
                    for _ in response.iter_raw():
                        if time.monotonic() > end:
                            return
            except httpx.TimeoutException:
                return

        threads = [threading.Thread(target=client, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settle(lambda: sum(engine.running() for engine in engines) == 0)
        r.settled()
        answer = httpx.post(r.url + COMPLETIONS, json={**LONG, "max_tokens": 5}, timeout=120)
        assert answer.status_code == 200


def test_an_engine_that_is_killed_and_comes_back(stage: Fixture, router: Fixture) -> None:
    """Its streams end in an error, the other's go on; it gets nothing while it is away, and its share when it is back."""
    engines = stage.show("two")
    dead, alive = engines
    with router([engine.url for engine in engines]) as r:
        streams = Streams(r.url, 6)
        settle(lambda: sum(engine.running() for engine in engines) == 6 and streams.begun())
        lost = int(r.total("worker_running", worker=dead.url))
        assert 1 <= lost <= 5
        dead.stop(signal.SIGKILL)
        settle(lambda: r.total("worker_up", worker=dead.url) == 0)
        for _ in range(4):
            assert httpx.post(r.url + COMPLETIONS, json={**LONG, "max_tokens": 5}, timeout=120).status_code == 200
        assert httpx.get(f"{r.url}/ready").status_code == 200
        bodies = streams.join()
        assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
        last = [json.loads(body.split(b"\n\n")[-3][6:]) for body in bodies]
        cut = [frame["error"]["code"] for frame in last if "error" in frame]
        whole = [frame["choices"][0]["finish_reason"] for frame in last if "error" not in frame]
        assert (cut, whole) == (["stream_cut"] * lost, ["length"] * (6 - lost))
        r.settled()
        assert r.total("worker_up", worker=alive.url) == 1

        stage.show("two")  # starts it again
        settle(lambda: r.total("worker_up", worker=dead.url) == 1)
        before = dead.generated(0)
        streams = Streams(r.url, 4)
        assert all(b'"error"' not in body for body in streams.join())
        assert dead.generated(0) - before >= 2000
        r.settled()


def test_load_of_others_is_adopted_and_let_go(stage: Fixture, router: Fixture) -> None:
    """Three streams go to an engine past the router: it sees them at its start, and avoids that engine."""
    engines = stage.show("two")
    busy, idle = engines
    others = Streams(busy.url, 3, 3900)  # as long as the router takes to start, and more
    settle(lambda: busy.running() == 3)
    before = idle.generated(0)
    with router([engine.url for engine in engines]) as r:
        settle(lambda: r.total("adopted_requests", worker=busy.url) == 3 or busy.running() == 0)
        assert busy.running() == 3, "the streams outlast the router's start"
        assert r.total("adopted_requests", worker=idle.url) == 0
        for _ in range(3):
            assert httpx.post(r.url + COMPLETIONS, json={**LONG, "max_tokens": 5}, timeout=120).status_code == 200
        assert idle.generated(0) - before == 15
        others.join()
        settle(lambda: r.total("adopted_requests") == 0)
        r.settled()
