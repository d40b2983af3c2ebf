"""Through the gateway or not: clients get what engines say, and engines get what clients say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from endcast.router.gateway.config import Auth, Key

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": None},
    {"stream_options": {"include_usage": False}},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


def without_ids(body: bytes, *answers: Any) -> bytes:
    """The body with response ids made equal: they hold the engine's own request ids."""
    frames = [json.loads(part[6:]) for part in body.decode().split("\n\n") if part.startswith("data: {")]
    for frame in frames:
        body = body.replace(frame.get("id", "?").encode(), b"ID")
    return body


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_streams_are_the_engines_byte_for_byte(rig: RigMaker, path: str) -> None:
    async def run() -> None:
        async with rig(t_fixed_s=0.001, tokens_per_step=2) as r:
            for options in OPTIONS:
                for n in (1, 3):
                    told = {"n": n, "mock_output_tokens": 5, "stream": True, "max_tokens": 6, **options}
                    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == "chat" else {"prompt": "hi"}
                    place = "/v1/chat/completions" if path == "chat" else "/v1/completions"
                    through = await r.call(place, prompt | told)
                    direct = await r.call(place, prompt | told, to=r.fleet.urls[0])
                    assert through.status == 200
                    assert without_ids(through.body) == without_ids(direct.body), (options, n)
                    assert through.headers["Content-Type"] == direct.headers["Content-Type"]
                    assert through.headers["X-Mock"] == "1"
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("faults", [{"piece": 1}, {"piece": 3}, {"line_end": "\r\n"}, {"piece": 2, "line_end": "\r\n"}])
def test_however_the_network_cuts_them(rig: RigMaker, faults: dict[str, Any]) -> None:
    """How many tokens a chunk holds is a matter of time; what is said is not (``test_accounts`` has the bytes)."""

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.0) as r:
            whole = await r.chat(9, to=r.fleet.urls[0])
            for name, value in faults.items():
                setattr(r.fleet.ranks[0].faults, name, value)
            got = await r.chat(9)
            end = faults.get("line_end", "\n").encode()
            assert got.body.endswith(b"data: [DONE]" + 2 * end)
            got.body = got.body.replace(2 * end, b"\n\n")
            assert got.text == whole.text
            assert all("usage" not in frame for frame in got.frames)
            await r.settled()

    asyncio.run(run())


def test_answers_that_are_not_streamed(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig() as r:
            through = await r.chat(7, stream=False, n=2)
            direct = await r.chat(7, stream=False, n=2, to=r.fleet.urls[1])
            assert through.status == 200 and "Content-Length" in through.headers
            assert through.json | {"id": 0} == direct.json | {"id": 0}
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("cap", [0, -1, 1_000_000_000, "3", None])
def test_caps_are_the_engines_to_judge(rig: RigMaker, cap: Any) -> None:
    async def run() -> None:
        async with rig() as r:
            through = await r.chat(7, max_tokens=cap)
            direct = await r.chat(7, max_tokens=cap, to=r.fleet.urls[0])
            assert through.status == direct.status
            assert without_ids(through.body) == without_ids(direct.body)
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw", [b"", b"not json", b"[1]", b'{"stream": true, "temperature": NaN, "prompt": "x"}', b"\xff\xfe"]
)
def test_bodies_that_are_no_json_reach_the_engine_as_they_are(rig: RigMaker, raw: bytes) -> None:
    async def run() -> None:
        async with rig() as r:
            through = await r.call("/v1/completions", raw, method="POST")
            direct = await r.call("/v1/completions", raw, method="POST", to=r.fleet.urls[0])
            assert (through.status, without_ids(through.body)) == (direct.status, without_ids(direct.body))
            await r.settled()

    asyncio.run(run())


def test_other_paths_pass_with_query_method_and_headers(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            headers = {
                "X-Mine": "a",
                "Connection": "x-hop",
                "X-Hop": "1",
                "X-data-parallel-rank": "7",
                "User-Agent": "me",
            }
            got = await r.call("/echo?a=%2F&b=", b"x" * 100_000, method="PUT", headers=headers)
            assert got.status == 200
            told = {name.lower(): value for name, value in got.json["headers"].items()}
            assert got.json["path"] == "/echo?a=%2F&b=" and got.json["body"] == "x" * 100_000
            assert told["x-mine"] == "a" and told["user-agent"] == "me"
            assert "x-hop" not in told and "x-data-parallel-rank" not in told
            assert (await r.call("/nothing")).status == 404
            assert (await r.call("/v1/models")).json["data"][0]["id"] == "mock"
        async with rig(workers=1, config={"pass_through": False}) as r:
            assert (await r.call("/echo")).status == 404
            assert (await r.call("/v1/models")).status == 200

    asyncio.run(run())


def test_request_ids_are_the_routers_own_and_unique(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1) as r:
            body = {"prompt": "x", "mock_output_tokens": 1}
            for _ in range(3):
                await r.call("/v1/completions", body, headers={"X-Request-Id": "same"})
            assert len(set(r.fleet.ranks[0].request_ids)) == 3 and "same" not in r.fleet.ranks[0].request_ids

    asyncio.run(run())


def test_ranks_are_pinned(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, ranks=3, slots=2, t_fixed_s=0.01) as r:
            await asyncio.gather(*(r.chat(20) for _ in range(6)))
            assert [rank.seen for rank in r.fleet.ranks] == [2, 2, 2]
            await r.settled()

    asyncio.run(run())


def test_keys_and_tenants(rig: RigMaker) -> None:
    async def run() -> None:
        auth = Auth(keys=(Key(key="one", tenant="t1"), Key(key="zwei-ü")))
        async with rig(workers=1, key="engine", auth=auth, pool={"engine_key": "engine"}) as r:
            body = {"prompt": "x"}
            for header in (
                {},
                {"Authorization": "Bearer no"},
                {"Authorization": "Basic one"},
                {"Authorization": "Bearer "},
            ):
                refused = await r.call("/v1/completions", body, headers=header)
                assert refused.status == 401 and refused.json["error"]["code"] == "invalid_api_key"
            for key in ("one", "zwei-ü"):
                assert (await r.call("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})).status == 200
            assert (await r.call("/v1/models")).status == 401
            for open_path in ("/health", "/ready", "/metrics"):
                assert (await r.call(open_path)).status == 200
        async with rig(workers=1, key="theirs") as r:
            assert (await r.call("/v1/completions", body)).status == 401
            passed = await r.call("/v1/completions", body, headers={"Authorization": "Bearer theirs"})
            assert passed.status == 200

    asyncio.run(run())


def test_large_bodies_pass_and_too_large_ones_are_refused(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, context_limit=10**7, kv_capacity=10**7, limits={"max_body_bytes": 3_000_000}) as r:
            image = {"type": "image_url", "image_url": {"url": "data:," + "A" * 2_000_000}}
            message = {"role": "user", "content": [image, {"type": "text", "text": "what?"}]}
            body = json.dumps({"messages": [message], "stream": True, "mock_output_tokens": 2}).encode()
            got = await r.call("/v1/chat/completions", body, expect100=True)
            assert got.status == 200 and got.body.endswith(b"[DONE]\n\n")
            refused = await r.call("/v1/chat/completions", b"x" * 3_000_001)
            assert refused.status == 413 and refused.json["error"]["code"] == "body_too_large"
            await r.settled()

    asyncio.run(run())


def test_load_is_that_of_the_engines_usage(rig: RigMaker) -> None:
    """The books while requests run: exact prompts, and the tokens that have come."""

    async def run() -> None:
        async with rig(workers=2, t_fixed_s=0.02) as r:
            calls = [asyncio.create_task(r.chat(30, n=n)) for n in (1, 2, 1)]
            seen = 0
            while not any(rank.finished for rank in r.fleet.ranks):
                await asyncio.sleep(0.02)
                real = [rank.kv_tokens for rank in r.fleet.ranks]
                booked = r.core.load().tolist()
                if sum(real) and not any(rank.finished for rank in r.fleet.ranks):
                    seen += 1
                    assert all(abs(a - b) <= 5 * 4 for a, b in zip(booked, real, strict=True)), (booked, real)
            await asyncio.gather(*calls)
            assert seen > 3
            await r.settled()

    asyncio.run(run())
