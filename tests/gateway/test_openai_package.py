"""The public ``openai`` client drives the router: sync and async, streamed and not, errors as it names them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import openai
import pytest

from endcast.router.gateway.config import Auth, Key

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
ASKED: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hello there"}]}


def tokens(count: int) -> dict[str, Any]:
    return {"extra_body": {"mock_output_tokens": count}}


@asynccontextmanager
async def client_of(rig: Any, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    told = {"api_key": "any", "max_retries": 0, **options}
    async with openai.AsyncOpenAI(base_url=f"{rig.server.url}/v1", **told) as client:
        yield client


def test_async_answers_and_streams(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(t_fixed_s=0.001) as r, client_of(r) as client:
            whole = await client.chat.completions.create(**ASKED, **tokens(9), n=2)
            stream = await client.chat.completions.create(**ASKED, **tokens(9), n=2, stream=True)
            said = ["", ""]
            async for chunk in stream:
                assert chunk.usage is None
                said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
            assert said == [choice.message.content for choice in whole.choices] and all(said)
            assert whole.usage is not None and whole.usage.completion_tokens == 9 + 10
            text = await client.completions.create(model="mock", prompt="x", stop=["\n\n\n"], max_tokens=4)
            assert text.choices[0].finish_reason == "length"
            assert [model.id async for model in client.models.list()] == ["mock"]
            await r.settled()

    asyncio.run(run())


def test_usage_comes_where_it_is_asked_for(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(t_fixed_s=0.001) as r, client_of(r) as client:
            stream = await client.chat.completions.create(
                **ASKED, **tokens(5), stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
            assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens == 5
            async with client.chat.completions.stream(**ASKED, **tokens(5)) as helper:
                final = await helper.get_final_completion()
            assert final.choices[0].message.content
            await r.settled()

    asyncio.run(run())


def test_the_sync_client(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(t_fixed_s=0.001) as r:

            def calls() -> tuple[str, str, str | None]:
                with openai.OpenAI(base_url=f"{r.server.url}/v1", api_key="any", max_retries=0) as client:
                    whole = client.chat.completions.create(**ASKED, **tokens(7))
                    stream = client.chat.completions.create(**ASKED, **tokens(7), stream=True)
                    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                    raw = client.with_raw_response.models.list()
                    return said, whole.choices[0].message.content or "", raw.headers.get("content-type")

            said, whole, kind = await asyncio.to_thread(calls)
            assert said == whole and whole and kind == "application/json; charset=utf-8"
            await r.settled()

    asyncio.run(run())


def test_errors_are_those_that_the_client_knows(rig: RigMaker) -> None:
    async def run() -> None:
        auth = Auth(keys=(Key(key="right"),))
        async with rig(workers=1, auth=auth) as r:
            async with client_of(r, api_key="wrong") as client:
                with pytest.raises(openai.AuthenticationError, match="a valid key is needed"):
                    await client.chat.completions.create(**ASKED)
            async with client_of(r, api_key="right") as client:
                with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
                    await client.chat.completions.create(**ASKED, max_tokens=0)
                with pytest.raises(openai.NotFoundError):
                    await client.files.list()
            await r.settled()
        async with rig(workers=1, slots=1, t_fixed_s=0.01, limits={"max_waiting": 1, "retries": 0}) as r:
            async with client_of(r) as client:
                slow = []
                for waiting in range(2):
                    slow.append(asyncio.create_task(r.chat(200)))
                    async with asyncio.timeout(30):
                        while (r.core.running, r.core.waiting) != (1, waiting):
                            await asyncio.sleep(0.01)
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(**ASKED)
                assert refused.value.code == "queue_full" and int(refused.value.response.headers["Retry-After"]) >= 1
                await asyncio.gather(*slow)
                r.fleet.ranks[0].faults.unavailable = 1
                with pytest.raises(openai.InternalServerError):
                    await client.chat.completions.create(**ASKED)
            async with client_of(r, max_retries=2) as client:
                r.fleet.ranks[0].faults.unavailable = 1
                assert (await client.chat.completions.create(**ASKED, **tokens(3))).choices[0].message.content
            await r.settled()

    asyncio.run(run())


def test_a_stream_that_breaks_off_raises(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.005) as r, client_of(r) as client:
            r.fleet.ranks[0].faults.cut_after = 3
            said = []
            with pytest.raises(openai.APIError, match="broke off"):
                async for chunk in await client.chat.completions.create(**ASKED, **tokens(9), stream=True):
                    said.append(chunk.choices[0].delta.content)
            assert len(said) >= 3, "what came before is the client's"
            await r.settled()

    asyncio.run(run())


def test_a_client_that_closes_its_stream_stops_the_engine(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.005) as r, client_of(r) as client:
            stream = await client.chat.completions.create(**ASKED, **tokens(3000), stream=True)
            await anext(aiter(stream))
            await stream.close()
            async with asyncio.timeout(5):
                while r.fleet.ranks[0].aborted != 1:
                    await asyncio.sleep(0.01)
            await r.settled()

    asyncio.run(run())
