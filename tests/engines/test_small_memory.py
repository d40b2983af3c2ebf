"""An engine with KV memory for 1,280 tokens: it preempts what it cannot hold, and the router keeps its books all the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

Fixture = Any
COMPLETIONS = "/v1/completions"


def asked(i: int) -> dict[str, Any]:
    prompt = [300 + i] * 20
    return {"model": "tiny", "prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True}


async def text_of(client: httpx.AsyncClient, url: str, i: int) -> str:
    """The text of a streamed answer."""
    said = []
    async with client.stream("POST", url + COMPLETIONS, json={**asked(i), "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                said += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    return "".join(said)


async def all_of(url: str, count: int = 6) -> list[str]:
    async with httpx.AsyncClient(timeout=300) as client:
        return await asyncio.gather(*(text_of(client, url, i) for i in range(count)))


def test_preempted_requests_say_what_they_would_have_said(stage: Fixture, router: Fixture) -> None:
    """A router that does not know the engine's memory overfills it."""
    (engine,) = stage.show("small")
    alone = [
        httpx.post(engine.url + COMPLETIONS, json=asked(i), timeout=120).json()["choices"][0]["text"] for i in range(6)
    ]
    before = engine.preemptions()
    with router([engine.url]) as r:
        assert asyncio.run(all_of(r.url)) == alone
        assert engine.preemptions() > before
        r.settled()
    lines = [json.loads(line) for line in r.log.read_text().splitlines()]
    assert [(line["prompt_tokens"], line["output_tokens"], line["end"]) for line in lines] == [(20, 400, "length")] * 6


def test_a_router_that_knows_the_memory_does_not_overfill_it(stage: Fixture, router: Fixture) -> None:
    """With ``kv_capacity`` and room reserved up to each request's cap, the engine has nothing to preempt.

    The engine gives out whole blocks of 32 tokens, which the router does not know of: a block for each slot is taken off.
    """
    (engine,) = stage.show("small")
    before = engine.preemptions()
    with router([engine.url], pool='kv_capacity = 1024\nadmission = "reserve_cap:400"') as r:
        assert all(asyncio.run(all_of(r.url)))
        assert engine.preemptions() == before
        r.settled()
