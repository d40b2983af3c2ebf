"""Requests that engines give back (vLLM-Ascend's recompute marker) go on elsewhere: the client sees one answer."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from endcast.router.gateway.config import Log
from endcast.router.gateway.mock.engine import text_of
from endcast.testing import ConstantHazardForecaster
from endcast.types import EndReason

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"include_usage": True}
RUNNING = {"include_usage": True, "continuous_usage_stats": True}
GOES_ON = {"continuations": 3}


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def without_ids(body: bytes) -> bytes:
    return re.sub(rb'"id": ?"[^"]*"', b'"id":"ID"', body)


def give_back(r: Any, times: int = 1, after: int = 3) -> None:
    for rank in r.fleet.ranks:
        rank.faults.recompute, rank.faults.recompute_after = 0, after
    r.fleet.ranks[-1].faults.recompute = times


def seen(r: Any) -> int:
    return sum(rank.seen for rank in r.fleet.ranks)


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("options", [None, ASKED, RUNNING], ids=["unasked", "usage", "running"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_that_goes_on_is_that_of_one_engine(rig: RigMaker, path: str, options: Any, tmp_path: Path) -> None:
    """Byte for byte but the id, which is one all along; counts are those of the whole."""
    log = tmp_path / "access.jsonl"
    body: dict[str, Any] = {"stream": True, "mock_output_tokens": 11, "max_tokens": 40, "stream_options": options}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON, log=Log(path=str(log), outputs=True)) as r:
            direct = await r.call(path, body, to=r.fleet.urls[0])
            give_back(r, times=2, after=4)
            through = await r.call(path, body)
            await r.settled()
            assert through.status == 200 and seen(r) == 4
            assert b"recomputed" not in through.body
            assert without_ids(through.body) == without_ids(direct.body)
            (one,) = {frame["id"] for frame in through.frames if frame != "[DONE]"}
            assert one.endswith(r.fleet.ranks[0].request_ids[1]), "the first engine's"
            assert len(set(r.fleet.ranks[0].request_ids[1:])) == 3, "each engine is told another"
            assert r.gateway.pools[0].recomputed == {"continued": 2, "passed_on": 0}
            metrics = (await r.call("/metrics")).body.decode()
            assert 'endcast_router_recomputed_total{outcome="continued",pool="default"} 2.0' in metrics

    asyncio.run(run())
    (line,) = lines_of(log)
    assert (line["output_tokens"], line["end"], line["output"]) == (11, "stop", text_of(0, 0, 11))
    assert (line["attributes"]["recomputed"], line["attributes"]["attempts"]) == (2, 3)
    assert "problem" not in line["attributes"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_that_is_not_streamed_is_put_together(rig: RigMaker, path: str, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    body: dict[str, Any] = {"mock_output_tokens": 11, "max_tokens": 40}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON, log=Log(path=str(log), outputs=True)) as r:
            direct = await r.call(path, body, to=r.fleet.urls[0])
            give_back(r, times=2, after=4)
            through = await r.call(path, body)
            await r.settled()
            assert (through.json | {"id": 0}) == (direct.json | {"id": 0}) and seen(r) == 4
            assert through.json["id"] == f"x-{r.fleet.ranks[0].request_ids[1]}"

    asyncio.run(run())
    (line,) = lines_of(log)
    assert (line["output_tokens"], line["end"], line["output"]) == (11, "stop", text_of(0, 0, 11))
    assert line["attributes"]["recomputed"] == 2


def test_a_prompt_of_token_ids_goes_on_by_them(rig: RigMaker) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 9, "mock_output_tokens": 20, "return_token_ids": True, "stream": True}

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON) as r:
            direct = await r.call(COMPLETIONS, body, to=r.fleet.urls[0])
            give_back(r, times=2)
            through = await r.call(COMPLETIONS, body)
            await r.settled()
            assert r.gateway.pools[0].recomputed["continued"] == 2
            assert without_ids(through.body) == without_ids(direct.body)

    asyncio.run(run())


def test_what_engines_are_sent(rig: RigMaker) -> None:
    """Prompt and output so far, what is left of the cap; through the prefill workers, where the pool has them, by default."""

    async def run() -> None:
        async with rig(workers=2, prefill=1, t_fixed_s=0.001) as r:
            give_back(r, times=2)
            answer = await r.chat(8, max_tokens=30, odd=1.5)
            await r.settled()
            assert answer.text == text_of(0, 0, 8) and not r.fleet.pinned
            first, second, third = r.fleet.prefilled
            assert "continue_final_message" not in first and len(first["messages"]) == 1
            for told, words in ((second, 3), (third, 6)):
                assert told["messages"] == [*first["messages"], {"role": "assistant", "content": text_of(0, 0, words)}]
                assert (told["continue_final_message"], told["add_generation_prompt"], told["odd"]) == (
                    True,
                    False,
                    1.5,
                )
            assert r.gateway.pools[0].prefill.done == 3

    asyncio.run(run())


def test_caps_hold_over_the_whole(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON) as r:
            give_back(r, times=2)
            answer = await r.chat(50, max_tokens=10, stream_options=ASKED)
            await r.settled()
            assert answer.text == text_of(0, 0, 10)
            assert [f["choices"][0]["finish_reason"] for f in answer.frames[-3:-2]] == ["length"]
            assert answer.frames[-2]["usage"]["completion_tokens"] == 10

    asyncio.run(run())


def test_books_hold_prompt_and_output_so_far_while_it_goes_on(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON) as r:
            give_back(r, after=5)
            call = asyncio.create_task(r.chat(400))
            await until(lambda: r.gateway.pools[0].recomputed["continued"] == 1)
            (ticket,) = r.core.tickets
            await until(lambda: ticket.generated[0] > 8)
            r.fleet.steps.paused = True
            await asyncio.sleep(0.05)
            assert ticket.carried == 5 and (r.core.running, r.core.waiting) == (1, 0)
            assert int(r.core.load()[0]) == ticket.prompt + ticket.generated[0]
            slots = r.core.cluster.slots
            assert int(slots.generated[ticket.slots[0]]) == ticket.generated[0] - 5
            r.fleet.steps.paused = False
            assert (await call).text == text_of(0, 0, 400)
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "several answers"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_go_on_is_passed_on_visibly(
    rig: RigMaker, more: dict[str, Any], why: str, stream: bool, tmp_path: Path
) -> None:
    log = tmp_path / "access.jsonl"

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON, log=Log(path=str(log))) as r:
            give_back(r)
            direct = await r.chat(9, stream=stream, to=r.fleet.urls[0], **more)
            give_back(r)
            through = await r.chat(9, stream=stream, **more)
            await r.settled()
            assert b"recomputed" in through.body and without_ids(through.body) == without_ids(direct.body)
            assert r.gateway.pools[0].recomputed == {"continued": 0, "passed_on": 1} and seen(r) == 2

    asyncio.run(run())
    assert {line["end"] for line in lines_of(log)} == {"unfinished"}
    assert {line["attributes"]["problem"] for line in lines_of(log)} == {f"not_continued: {why}"}


@pytest.mark.parametrize("stream", [True, False])
def test_markers_pass_where_the_pool_says_so(rig: RigMaker, stream: bool) -> None:
    async def run() -> None:
        for pool, prefill in (({}, 0), ({"continuations": 0}, 1)):
            async with rig(workers=1 + prefill, prefill=prefill, t_fixed_s=0.001, pool=pool) as r:
                give_back(r)
                through = await r.chat(9, stream=stream)
                await r.settled()
                assert b"recomputed" in through.body
                assert r.gateway.pools[0].recomputed == {"continued": 0, "passed_on": 1}

    asyncio.run(run())


@pytest.mark.parametrize("options", [None, ASKED])
@pytest.mark.parametrize("stream", [True, False])
def test_given_back_too_often_it_ends_with_the_marker(
    rig: RigMaker, stream: bool, options: Any, tmp_path: Path
) -> None:
    log = tmp_path / "access.jsonl"

    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool={"continuations": 2}, log=Log(path=str(log))) as r:
            give_back(r, times=9)
            more = {"stream_options": options} if stream else {}
            through = await r.chat(30, stream=stream, **more)
            await r.settled()
            assert seen(r) == 3
            if stream:
                assert through.text == text_of(0, 0, 9) and through.frames[-1] == "[DONE]"
                (end,) = [f for f in through.frames[:-1] if f["choices"] and f["choices"][0]["finish_reason"]]
                assert end["choices"][0]["stop_reason"] == "recomputed"
                assert len({frame["id"] for frame in through.frames[:-1]}) == 1
                assert (through.frames[-2].get("usage") or {}).get("completion_tokens") == (9 if options else None)
            else:
                assert through.json["choices"][0]["message"]["content"] == text_of(0, 0, 9)
                assert through.json["choices"][0]["stop_reason"] == "recomputed"
                assert through.json["usage"]["completion_tokens"] == 9

    asyncio.run(run())
    (line,) = lines_of(log)
    assert (line["end"], line["output_tokens"]) == ("unfinished", 9)
    assert line["attributes"]["problem"] == "not_continued: given back too often"


@pytest.mark.parametrize("stream", [True, False])
def test_without_a_token_it_is_a_failure(rig: RigMaker, stream: bool) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool={"continuations": 50}, limits={"retries": 2}) as r:
            give_back(r, times=99, after=0)
            through = await r.chat(9, stream=stream)
            await r.settled()
            assert b"recomputed" in through.body and seen(r) == 3
            assert r.gateway.pools[0].recomputed["passed_on"] == 1

    asyncio.run(run())


async def begun(r: Any, after: int, **chat: Any) -> tuple[asyncio.Task[Any], int]:
    """A call that runs somewhere and is given back there after so many tokens, once; and where."""
    for rank in r.fleet.ranks:
        rank.faults.recompute, rank.faults.recompute_after = 1, after
    call = asyncio.create_task(r.chat(60, **chat))
    await until(lambda: any(rank.running for rank in r.fleet.ranks))
    (where,) = [i for i, rank in enumerate(r.fleet.ranks) if rank.running]
    for rank in r.fleet.ranks:
        rank.faults.recompute = 0
    return call, where


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("what", [{"unavailable": 50}, {"reset": 50}, {"empty": 50}], ids=str)
@pytest.mark.parametrize("others", [0, 1])
def test_a_worker_that_fails_is_not_the_last_word(
    rig: RigMaker, what: dict[str, int], others: int, stream: bool
) -> None:
    """It gives a request back and is broken from then on: another one answers, or the client gets the marker."""
    if "empty" in what and (others or not stream):
        return  # a fault of streams, and of the one that is written too

    async def run() -> None:
        async with rig(workers=1 + others, t_fixed_s=0.01, pool=GOES_ON, limits={"no_worker_wait_s": 0.2}) as r:
            call, mine = await begun(r, 20, stream=stream)
            for name, times in what.items():
                setattr(r.fleet.ranks[mine].faults, name, times)
            answer = await call
            text = answer.text if stream else answer.json["choices"][0]["message"]["content"]
            assert text == text_of(0, 0, 60 if others else 20) and answer.status == 200
            assert (b"recomputed" in answer.body) is not bool(others)
            assert r.gateway.pools[0].recomputed == {"continued": others, "passed_on": 1 - others}
            await r.settled()

    asyncio.run(run())


def test_an_engine_that_falls_silent_behind_its_marker(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, t_fixed_s=0.01, pool=GOES_ON) as r:
            call, mine = await begun(r, 20)
            r.fleet.ranks[mine].faults.silent_after = 20
            await until(lambda: r.gateway.pools[0].recomputed["continued"] == 1)
            r.fleet.ranks[mine].faults.silent_after = None
            assert (await call).text == text_of(0, 0, 60)
            await r.settled()

    asyncio.run(run())


def test_an_engine_that_does_not_answer_in_time(rig: RigMaker) -> None:
    async def run() -> None:
        limits = {"first_byte_timeout_s": 0.3, "inter_chunk_timeout_s": 5.0}
        async with rig(workers=1, t_fixed_s=0.01, pool=GOES_ON, limits=limits) as r:
            give_back(r, after=20)
            call = asyncio.create_task(r.chat(60))
            await until(lambda: bool(r.fleet.ranks[0].running))
            r.fleet.ranks[0].faults.hang = True
            marker = await call
            assert marker.text == text_of(0, 0, 20) and b"recomputed" in marker.body
            await r.settled()
            r.fleet.ranks[0].faults.hang = False

    asyncio.run(run())


def test_one_that_is_cut_later_ends_with_an_error(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, t_fixed_s=0.001, pool=GOES_ON) as r:
            give_back(r)
            r.fleet.ranks[0].faults.cut_after = 6
            answer = await r.chat(30)
            await r.settled()
            assert answer.frames[-2]["error"]["code"] == "stream_cut" and answer.text.startswith(text_of(0, 0, 7))

    asyncio.run(run())


@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("when", ["waiting", "prefill", "silent"])
def test_a_client_that_leaves_in_between(rig: RigMaker, prefill: int, when: str, tmp_path: Path) -> None:
    """All is given back, whatever it was waiting for."""
    log = tmp_path / "access.jsonl"

    async def run() -> None:
        async with rig(
            workers=1 + prefill, prefill=prefill, t_fixed_s=0.01, slots=1, pool=GOES_ON, log=Log(path=str(log))
        ) as r:
            rank = r.fleet.ranks[-1]
            give_back(r, after=20)
            call = asyncio.create_task(r.chat(60, mock_mine=True))
            await until(lambda: bool(rank.running))
            if when == "silent":
                rank.faults.hang = True
            elif when == "prefill" and prefill:
                r.fleet.ranks[0].faults.hang = True
            else:
                r.core.accept(0, False)
            await until(lambda: not rank.running)
            await asyncio.sleep(0.1)
            (ticket,) = r.core.tickets
            assert not call.done() and ticket.carried == 20
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            for one in r.fleet.ranks:
                one.faults.hang = False
            await r.settled()
            assert r.gateway.pools[0].prefill.stranded == 0
            assert when == "silent" or not r.fleet.pinned, "an engine that takes a call fetches"

    asyncio.run(run())
    (line,) = lines_of(log)
    assert (line["end"], line["output_tokens"], line["attributes"]["problem"]) == ("abort", 20, "client_left")


def test_many_that_are_given_back_and_leave_at_any_time(rig: RigMaker) -> None:
    """Books return to zero, every KV is fetched, forecasters learn whole answers only."""
    prior = ConstantHazardForecaster(0.01, bundle="prior")
    forecaster = ConstantHazardForecaster(0.05)
    whole: list[int] = []

    async def run() -> None:
        rng = random.Random(7)
        pool = {"policy": "br_h", "forecaster": "x", "continuations": 9}
        async with rig(
            workers=5, prefill=1, slots=4, t_fixed_s=0.002, pool=pool, forecasts=lambda _: (forecaster, prior)
        ) as r:
            for rank in r.fleet.ranks[1:]:
                rank.faults.recompute = 60

            async def one() -> None:
                tokens, stream = rng.randint(1, 30), rng.random() < 0.7
                call = r.chat(tokens, stream=stream)
                if rng.random() < 0.5:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(call, rng.random() * 0.3)
                    return
                answer = await call
                text = answer.text if stream else answer.json["choices"][0]["message"]["content"]
                assert text == text_of(0, 0, tokens)
                whole.append(tokens)

            await asyncio.gather(*(one() for _ in range(120)))
            await r.settled()
            await until(lambda: not any(rank.running or rank.waiting for rank in r.fleet.ranks))
            assert r.gateway.pools[0].prefill.stranded == 0 and not r.gateway._tasks and not r.core._entries
            assert r.gateway.pools[0].recomputed["continued"] > 50
            assert r.gateway.pools[0].recomputed["passed_on"] == 0
            await until(lambda: not Counter(whole) - learned())

    def learned() -> Counter[int]:
        return Counter(done.output_tokens for done in forecaster.observed if done.end is EndReason.STOP)

    asyncio.run(run())
    assert EndReason.UNFINISHED not in {done.end for done in forecaster.observed}
