"""Data-parallel ranks behind one address, pinned by header: dense ones, and mixture-of-experts ranks that step together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Fixture = Any
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SETS = ("dense_ranks", "lockstep_ranks")
LONG = {"model": "tiny", "prompt": "def f", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module", params=SETS)
def name(request: pytest.FixtureRequest) -> str:
    """Of a module, so that all tests of one set run before those of the next."""
    return str(request.param)


def asked(tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "class Thread, 你好"}]
    return {"model": "tiny", "messages": messages, "max_tokens": tokens, "temperature": 0, **more}


def test_requests_run_on_the_rank_that_the_router_chose(stage: Fixture, router: Fixture, name: str) -> None:
    """By each rank's own count: half of the tokens on each, and what the books have is what the engine tells."""
    (engine,) = stage.show(name)
    before = [engine.generated(rank) for rank in range(2)]
    with router([engine.url], ranks=2) as r:

        async def run() -> None:
            body = asked(600, ignore_eos=True, stream=True)
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(timeout=300, limits=limits) as client:
                calls = [asyncio.create_task(client.post(r.url + CHAT, json=body)) for _ in range(16)]
                told, booked = {0: 0, 1: 0}, 0
                while told != {0: 8, 1: 8}:  # at some time; on a busy machine one rank may be far ahead
                    assert not all(call.done() for call in calls), f"the most that ran on each rank: {told}"
                    for rank, now in engine.by_rank().items():  # a rank may tell nothing for a while
                        told[rank] = max(told[rank], int(now))
                    booked = max(booked, int(r.total("worker_running", worker=f"{engine.url}#1")))
                    await asyncio.sleep(0.1)
                assert booked == 8
                got = await asyncio.gather(*calls)
            assert {answer.status_code for answer in got} == {200}

        asyncio.run(run())
        made = [engine.generated(rank) - old for rank, old in zip(range(2), before, strict=True)]
        assert made == [8 * 600, 8 * 600]
        r.settled()


def test_answers_are_the_ranks(stage: Fixture, router: Fixture, said: Callable[[bytes], Any], name: str) -> None:
    (engine,) = stage.show(name)
    with router([engine.url], ranks=2) as r:
        for path, body in (
            (CHAT, asked(24)),
            (CHAT, asked(24, n=2, logprobs=True, temperature=0.8, seed=5)),
            (COMPLETIONS, {"model": "tiny", "prompt": [300, 301, 9], "max_tokens": 24, "temperature": 0}),
        ):
            for more in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
                direct = httpx.post(engine.url + path, json={**body, **more}, timeout=120)
                for _ in range(2):
                    through = httpx.post(r.url + path, json={**body, **more}, timeout=120)
                    assert through.status_code == direct.status_code == 200
                    assert said(through.content) == said(direct.content), (path, body, more)
        r.settled()


def test_a_client_that_leaves_aborts_on_its_rank(stage: Fixture, router: Fixture, name: str) -> None:
    (engine,) = stage.show(name)
    with router([engine.url], ranks=2) as r:

        async def run() -> None:
            async with (
                httpx.AsyncClient(timeout=120) as client,
                client.stream("POST", r.url + COMPLETIONS, json=LONG) as kept,
            ):
                pieces = kept.aiter_raw()
                await anext(pieces)
                async with client.stream("POST", r.url + COMPLETIONS, json=LONG) as left:
                    await anext(left.aiter_raw())
                    assert engine.by_rank() == {0: 1, 1: 1}
                async with asyncio.timeout(10):
                    while engine.running() != 1:
                        await asyncio.sleep(0.1)
                rest = [piece async for piece in pieces]
                assert rest[-1].endswith(b"data: [DONE]\n\n"), "the other one goes on to its end"

        asyncio.run(run())
        r.settled()
        assert engine.running() == 0


def test_reasoning_is_in_its_field(stage: Fixture, router: Fixture) -> None:
    """The engine takes all that this model says for reasoning; its tokens count like others."""
    (engine,) = stage.show("lockstep_ranks")
    with router([engine.url], ranks=2) as r:
        answer = httpx.post(r.url + CHAT, json=asked(24, stream=True, ignore_eos=True), timeout=120)
        frames = [json.loads(event[6:]) for event in answer.text.split("\n\n") if event.startswith("data: {")]
        deltas = [frame["choices"][0]["delta"] for frame in frames if frame["choices"]]
        assert any(delta.get("reasoning") or delta.get("reasoning_content") for delta in deltas)
        assert not any(delta.get("content") for delta in deltas)
        r.settled()
    assert json.loads(r.log.read_text())["output_tokens"] == 24
