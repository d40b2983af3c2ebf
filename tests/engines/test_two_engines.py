"""Two vLLM engines behind the router: clients get what the engines themselves would have said."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Fixture = Any
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "system", "content": "def"}, {"role": "user", "content": "import os, 你好 and class Thread"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]},
    },
}
USAGE = {"stream_options": {"include_usage": True}}
#: What is asked for, beside the model, a cap and temperature 0.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat of parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "for i in"}]}]}),
    "chat, n": (CHAT, {"messages": MESSAGES, "n": 3, "temperature": 0.8, "seed": 7}),
    "chat, logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "chat, a tool by name": (
        CHAT,
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    "chat, tools offered": (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"}),
    "chat, JSON": (
        CHAT,
        {
            "messages": MESSAGES,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
            },
        },
    ),
    "completion": (COMPLETIONS, {"prompt": "class Thread:\n    def"}),
    "completion of token ids": (COMPLETIONS, {"prompt": [300, 301, 302, 77, 78]}),
    "completions of two prompts": (COMPLETIONS, {"prompt": ["import", "from x"]}),
    "completion, n": (COMPLETIONS, {"prompt": "def f", "n": 2, "temperature": 0.8, "seed": 3}),
    "completion, logprobs": (COMPLETIONS, {"prompt": "def f", "logprobs": 2}),
    "completion, stop": (COMPLETIONS, {"prompt": "def f", "stop": ["e", "0"], "include_stop_str_in_output": True}),
    "completion, echo": (COMPLETIONS, {"prompt": "def f", "echo": True}),
    "completion, stop token": (COMPLETIONS, {"prompt": "def f", "stop_token_ids": list(range(300, 900))}),
}
#: What the engine is to judge, as it is.
REFUSED: dict[str, tuple[str, bytes]] = {
    "no JSON": (CHAT, b"{"),
    "no messages": (CHAT, b'{"model": "tiny"}'),
    "unknown model": (CHAT, b'{"model": "huge", "messages": [{"role": "user", "content": "x"}]}'),
    "cap of 0": (CHAT, b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}'),
    "cap of -1": (COMPLETIONS, b'{"model": "tiny", "prompt": "x", "max_tokens": -1}'),
    "cap of 1e9": (COMPLETIONS, b'{"model": "tiny", "prompt": "x", "max_tokens": 1000000000, "stream": true}'),
    "temperature": (COMPLETIONS, b'{"model": "tiny", "prompt": "x", "temperature": "hot"}'),
    "options without stream": (
        COMPLETIONS,
        b'{"model": "tiny", "prompt": "x", "stream_options": {"include_usage": true}}',
    ),
}


def body_of(what: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 24, "temperature": 0, **ASKED[what][1], **more}


def call(url: str, path: str, body: Any) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url + path, content=data, headers={"Content-Type": "application/json"}, timeout=120)


def test_answers_are_the_engines(stage: Fixture, router: Fixture, said: Callable[[bytes], Any]) -> None:
    """At temperature 0 (or with a seed) every kind of answer is what a direct call gives, streamed and not."""
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        for what, (path, _) in ASKED.items():
            for more in ({}, {"stream": True}, {"stream": True, **USAGE}):
                if what == "completion, echo" and more:
                    continue
                direct = call(engines[0].url, path, body_of(what, **more))
                through = call(r.url, path, body_of(what, **more))
                assert (direct.status_code, through.status_code) == (200, 200), (what, more, direct.text)
                assert said(through.content) == said(direct.content), (what, more)
                assert through.headers["Content-Type"] == direct.headers["Content-Type"]
        assert all(engine.running() == 0 for engine in engines)
        r.settled()


def test_both_engines_served(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    before = [engine.generated(0) for engine in engines]
    with router([engine.url for engine in engines]) as r:

        async def run() -> None:
            async with httpx.AsyncClient(timeout=120) as client:
                body = body_of("completion", max_tokens=64, ignore_eos=True)
                got = await asyncio.gather(*(client.post(r.url + COMPLETIONS, json=body) for _ in range(12)))
            assert {answer.status_code for answer in got} == {200}
            assert len({answer.json()["choices"][0]["text"] for answer in got}) == 1, "whatever ran beside it"

        asyncio.run(run())
        made = [engine.generated(0) - old for engine, old in zip(engines, before, strict=True)]
        assert sum(made) == 12 * 64 and all(made)
        r.settled()


def test_what_engines_refuse_is_refused_in_their_words(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        for what, (path, body) in REFUSED.items():
            direct, through = call(engines[0].url, path, body), call(r.url, path, body)
            assert (through.status_code, through.content) == (direct.status_code, direct.content), what
            assert through.status_code >= 400, what
        r.settled()


def test_other_paths_are_the_engines(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        models = [httpx.get(f"{url}/v1/models").json()["data"][0] for url in (engines[0].url, r.url)]
        assert models[0]["id"] == models[1]["id"] and models[0]["max_model_len"] == models[1]["max_model_len"]
        told = [call(url, "/tokenize", {"model": "tiny", "prompt": "class Thread"}) for url in (engines[0].url, r.url)]
        assert told[0].content == told[1].content and told[1].json()["count"] > 1
        assert httpx.get(f"{r.url}/no/such/path").status_code == httpx.get(f"{engines[0].url}/no/such/path").status_code


def test_the_log_has_what_the_engine_counted(stage: Fixture, router: Fixture) -> None:
    engines = stage.show("two")
    with router([engine.url for engine in engines]) as r:
        direct = call(engines[0].url, COMPLETIONS, body_of("completion", max_tokens=30, ignore_eos=True)).json()
        for more in ({}, {"stream": True}):
            call(r.url, COMPLETIONS, body_of("completion", max_tokens=30, ignore_eos=True, **more))
        call(r.url, CHAT, body_of("chat, n", stream=True, max_tokens=10, ignore_eos=True))
        r.settled()
        log: pathlib.Path = r.log
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 5, "one for each answer"
    assert [line["prompt_tokens"] for line in lines[:2]] == [direct["usage"]["prompt_tokens"]] * 2
    assert [line["output_tokens"] for line in lines] == [30, 30, 10, 10, 10]
    assert {line["end"] for line in lines} == {"length"}


@pytest.mark.parametrize("stream", [True, False])
def test_load_beyond_the_slots_waits_in_the_router(stage: Fixture, router: Fixture, stream: bool) -> None:
    """Engines never queue: what has no slot waits in the router, and gets one in the end."""
    engines = stage.show("two")
    with router([engine.url for engine in engines], more="[health]\ninterval_s = 1\nreconcile_s = 0.2\n") as r:

        async def one(client: httpx.AsyncClient) -> bytes:
            body = body_of("chat", max_tokens=48, ignore_eos=True, stream=stream)
            answer = await client.post(r.url + CHAT, json=body)
            assert answer.status_code == 200
            return answer.content

        async def run() -> list[bytes]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(timeout=300, limits=limits) as client:
                calls = [asyncio.create_task(one(client)) for _ in range(60)]
                while not all(call.done() for call in calls):
                    await asyncio.sleep(0.2)
                    assert all(engine.waiting() == 0 for engine in engines)
                return [await call for call in calls]

        assert len(asyncio.run(run())) == 60
        r.settled()
        assert all(engine.running() == 0 for engine in engines)
