"""Prompts computed on other engines than outputs (pull): what each is sent, whose KV is fetched, and what fails."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec
import pytest

from endcast.errors import EndcastError
from endcast.router.gateway.config import Log, parse_config
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.prefill.prefill import can_be_prefilled, handed_over, prefill_body, read_prefilled

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def left(call: asyncio.Task[Any]) -> None:
    """Its client is gone."""
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


def without_ids(body: bytes) -> bytes:
    return re.sub(rb'"id": ?"[^"]*"', b'"id":"ID"', body)


def test_what_a_prefill_worker_is_sent() -> None:
    raw = (
        b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {"include_usage": true}, '
    )
    raw += b'"n": 3, "max_completion_tokens": 9, "tool_choice": "required", "temperature": 1.50, "odd": {"a": 1e400}}'
    for body in (read_body(raw, chat=True), read_body(raw.replace(b"1e400", b"null"), chat=True)):
        sent = json.loads(prefill_body(body))
        assert (sent["stream"], sent["max_tokens"], sent["min_tokens"], sent["max_completion_tokens"]) == (
            False,
            1,
            1,
            1,
        )
        assert sent["n"] == 1 and sent["tool_choice"] == "none" and "stream_options" not in sent
        assert sent["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
    plain = prefill_body(read_body(b'{"prompt": "x", "tool_choice": "auto", "temperature": 1.50}', chat=False))
    assert b'"temperature":1.50' in plain and b'"tool_choice":"auto"' in plain
    assert b"max_completion_tokens" not in plain and b'"n"' not in plain


@pytest.mark.parametrize(
    ("raw", "chat", "may"),
    [
        (b'{"messages": []}', True, True),
        (b'{"prompt": "x"}', False, True),
        (b'{"prompt": [1, 2, 3]}', False, True),
        (b'{"prompt": ["x"]}', False, True),
        (b'{"prompt": [[1, 2]]}', False, True),
        (b'{"prompt": ["x", "y"]}', False, False),
        (b'{"prompt": []}', False, False),
        (b'{"prompt": {"a": 1}}', False, False),
        (b"{}", False, False),
        (b"[1]", True, False),
        (b'{"prompt": "x", "\xff": 1}', False, False),
        (b'{"prompt": "\\ud83d", "logit_bias": NaN}', False, True),
        (b"no json", True, False),
    ],
)
def test_which_prompts_are_computed_elsewhere(raw: bytes, chat: bool, may: bool) -> None:
    assert can_be_prefilled(read_body(raw, chat=chat)) is may


def test_the_object_goes_into_the_clients_bytes() -> None:
    assert handed_over(b' {"a": 1.50}', b'{"k":[1]}') == b' {"kv_transfer_params":{"k":[1]},"a": 1.50}'
    own = json.loads(handed_over(b'{"a": 1, "kv_transfer_params": {"mine": 1}}', b'{"k":1}'))
    assert own == {"a": 1, "kv_transfer_params": {"k": 1}}


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b'{"kv_transfer_params": null}', b'{"kv_transfer_params": 7, "usage": null}']
)
def test_answers_without_an_object(answer: bytes) -> None:
    assert read_prefilled(answer).transfer is None


def test_an_answer_with_one() -> None:
    found = read_prefilled(
        b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, "kv_transfer_params": {"a" : 1.0}}'
    )
    assert (found.transfer, found.prompt_tokens, found.cached_tokens) == (b'{"a" : 1.0}', 9, 4)


def test_an_address_computes_prompts_or_outputs() -> None:
    with pytest.raises(EndcastError, match="http://a:1 is there twice"):
        parse_config('[[pools]]\nworkers = [{ url = "http://a:1/" }]\nprefill = [{ url = "http://a:1" }]')


@pytest.mark.parametrize("stream", [True, False])
def test_outputs_are_those_of_an_engine_that_does_both(rig: RigMaker, stream: bool) -> None:
    async def run() -> None:
        async with rig(workers=3, prefill=1, t_fixed_s=0.001) as r:
            direct = await r.chat(7, n=2, stream=stream, to=r.fleet.urls[1])
            through = await r.chat(7, n=2, stream=stream)
            assert (through.status, without_ids(through.body)) == (direct.status, without_ids(direct.body))
            assert [rank.seen for rank in r.fleet.ranks[:1]] == [1] and len(r.fleet.prefilled) == 1
            assert not r.fleet.pinned
            await r.settled()

    asyncio.run(run())


def test_the_prompts_size_is_known_before_a_worker_is_chosen(rig: RigMaker, tmp_path: Any) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1, t_fixed_s=0.005, log=Log(path=str(tmp_path / "log"))) as r:
            call = asyncio.create_task(r.call("/v1/completions", {"prompt": "word " * 200, "max_tokens": 50}))
            await until(lambda: r.core.running == 1)
            (ticket,) = r.core.tickets
            answer = await call
            told = answer.json["usage"]["prompt_tokens"]
            assert ticket.intake.prompt_tokens == told
            await r.settled()
        line = json.loads((tmp_path / "log").read_text())
        assert line["attributes"]["booked_prompt_tokens"] == told
        assert line["attributes"]["cached_prompt_tokens"] == 0
        assert line["attributes"]["prefill_worker"] == r.fleet.urls[0] and line["attributes"]["prefill_s"] >= 0

    asyncio.run(run())


def test_prompts_go_to_the_worker_with_the_fewest_tokens_to_compute(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=3, prefill=2, prefill_s=0.3, slots=16) as r:
            long = asyncio.create_task(r.call("/v1/completions", {"prompt": [1] * 900}))
            await until(lambda: r.gateway.pools[0].prefill.requests == 1)
            short = [asyncio.create_task(r.call("/v1/completions", {"prompt": [1] * 100})) for _ in range(4)]
            await until(lambda: r.gateway.pools[0].prefill.requests == 5)
            books = sorted((w.requests, w.tokens) for w in r.gateway.pools[0].prefill.workers)
            assert books == [(1, 900), (4, 400)]
            told = (await r.call("/metrics")).body.decode()
            assert 'endcast_router_prefill_tokens{pool="default"' in told
            assert {answer.status for answer in await asyncio.gather(long, *short)} == {200}
            await r.settled()
            assert not r.fleet.pinned

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["unavailable", "reset"])
def test_a_prefill_worker_that_fails_is_replaced_by_another(rig: RigMaker, fault: str) -> None:
    async def run() -> None:
        async with rig(workers=3, prefill=2) as r:
            for rank in r.fleet.ranks[:2]:
                setattr(rank.faults, fault, 1)
            assert (await r.chat(4)).status == 200
            assert sum(rank.seen for rank in r.fleet.ranks[:2]) >= 2 and r.gateway.pools[0].prefill.failed >= 1
            await r.settled()
            for rank in r.fleet.ranks[:2]:
                setattr(rank.faults, fault, 100)
            got = await r.chat(4)
            assert got.status == (503 if fault == "unavailable" else 502) and "error" in got.json
            await r.settled()

    asyncio.run(run())


def test_without_any_prefill_worker_requests_are_turned_away(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1, limits={"no_worker_wait_s": 0.3, "retries": 0}) as r:
            await r.fleet.kill(0)
            await until(lambda: not r.gateway.pools[0].prefill.any_up)
            got = await r.chat(3)
            assert got.status == 503 and got.json["error"]["code"] == "no_worker"
            assert (await r.call("/ready")).status == 503
            waiting = asyncio.create_task(r.chat(3))
            await r.fleet.revive(0)
            await until(lambda: r.gateway.pools[0].prefill.any_up)
            await waiting
            assert (await r.chat(3)).status == 200 and (await r.call("/ready")).status == 200
            await r.settled()

    asyncio.run(run())


def test_an_engines_refusal_is_the_clients(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1) as r:
            got = await r.call("/v1/completions", {"prompt": [1] * 5000})
            assert got.status == 400 and got.json["error"]["message"] == "the context is too long"
            assert (await r.call("/v1/completions", b"no json", method="POST")).json["error"]["message"] == "no JSON"
            assert (await r.chat(3, max_tokens=0)).status == 400, "decode's refusal: a prefill has a cap of its own"
            await r.settled()
            assert not r.fleet.pinned, "and what was computed for it is not kept"

    asyncio.run(run())


def test_a_forced_tool_is_forced_on_decode_only(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1) as r:
            assert (await r.chat(3, tool_choice="required", stop=["x"], min_tokens=2)).status == 200
            (sent,) = r.fleet.prefilled
            assert sent["tool_choice"] == "none" and sent["stop"] == ["x"] and sent["min_tokens"] == 1
            await r.settled()

    asyncio.run(run())


@pytest.mark.parametrize("when", ["computing", "waiting", "placed", "silent", "streaming"])
def test_a_client_that_leaves_strands_nothing(rig: RigMaker, when: str) -> None:
    """While its prompt is computed: it is aborted. From then on the KV is fetched for nobody, so that it is freed."""

    async def run() -> None:
        async with rig(workers=2, prefill=1, slots=1, t_fixed_s=0.01, prefill_s=0.2) as r:
            _, decode = r.fleet.ranks
            books = r.gateway.pools[0].prefill
            other = asyncio.create_task(r.chat(120)) if when == "waiting" else None
            if other is not None:
                await until(lambda: bool(decode.running))
            decode.faults.hang = when == "placed"
            decode.faults.silent_after = 1 if when == "silent" else None
            done = books.done
            call = asyncio.create_task(r.chat(1000, stream=when != "placed"))
            if when == "computing":
                await until(lambda: books.requests == 1)
            elif when == "waiting":
                await until(lambda: books.done == done + 1 and r.core.waiting == 1)
            else:
                await until(lambda: r.core.running == 1 and decode.seen == 1)
                await asyncio.sleep(0.1)
            await left(call)
            decode.faults.hang = False
            if other is not None:
                assert (await other).status == 200
            await r.settled()
            await until(lambda: not decode.running and not decode.waiting)
            if when == "waiting":
                assert not r.fleet.pinned and books.handoffs == 1
            if when == "computing":
                assert books.done == 0 and books.handoffs == 0
            assert books.stranded == 0

    asyncio.run(run())


def test_a_request_that_waits_too_long_strands_nothing(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1, slots=1, t_fixed_s=0.01, limits={"max_wait_s": 0.4}) as r:
            other = asyncio.create_task(r.chat(150))
            await until(lambda: r.core.running == 1)
            late = await r.chat(3)
            assert late.status == 503 and late.json["error"]["code"] == "wait_exceeded"
            await other
            await r.settled()
            assert not r.fleet.pinned and r.gateway.pools[0].prefill.handoffs == 1

    asyncio.run(run())


def test_a_decode_worker_that_fails(rig: RigMaker) -> None:
    """One that answers that it cannot has fetched nothing: the KV is used elsewhere. After a lost connection it may be gone."""

    async def run() -> None:
        async with rig(workers=3, prefill=1) as r:
            for rank in r.fleet.ranks[1:]:
                rank.faults.unavailable = 1
            assert (await r.chat(4)).status == 200
            assert len(r.fleet.prefilled) == 1 and not r.fleet.pinned
            for rank in r.fleet.ranks[1:]:
                rank.faults.reset = 1
            assert (await r.chat(4)).status == 200
            assert len(r.fleet.prefilled) >= 3, "computed anew"
            await r.settled()

    asyncio.run(run())


def test_random_departures_leave_nothing_behind(rig: RigMaker) -> None:
    async def run() -> None:
        rng = random.Random(2)
        async with rig(workers=4, prefill=2, slots=3, t_fixed_s=0.003, prefill_s=0.02) as r:

            async def one() -> None:
                await asyncio.sleep(rng.random())
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() * 0.3):
                        await r.chat(rng.randint(1, 60), stream=rng.random() < 0.7, n=rng.choice([1, 1, 2]))

            await asyncio.gather(*(one() for _ in range(120)))
            await r.settled()
            await until(lambda: not any(rank.running or rank.waiting for rank in r.fleet.ranks))
            assert r.gateway.pools[0].prefill.stranded == 0 and not r.gateway._tasks and not r.core._entries

    asyncio.run(run())


def test_prefill_workers_come_and_go_with_the_fleet_file(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=3, prefill=2, prefill_s=0.2) as r:
            config, (pool,) = r.gateway.config, r.gateway.config.pools
            running = asyncio.create_task(r.chat(3))
            await until(lambda: r.gateway.pools[0].prefill.requests == 1)
            without = msgspec.structs.replace(pool, prefill=())
            await r.gateway.change(msgspec.structs.replace(config, pools=(without,)))
            assert (await running).status == 200, "what is being computed there is used"
            assert (await r.chat(3)).status == 200 and len(r.fleet.prefilled) == 1
            await r.gateway.change(config)
            assert (await r.chat(3)).status == 200 and len(r.fleet.prefilled) == 2
            assert not r.fleet.pinned
            await r.settled()

    asyncio.run(run())


def test_kv_that_nobody_can_fetch_is_counted(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, prefill=1, prefill_s=0.3, limits={"no_worker_wait_s": 0.3}) as r:
            call = asyncio.create_task(r.chat(3))
            await until(lambda: r.gateway.pools[0].prefill.requests == 1)
            await r.fleet.kill(1)
            assert (await call).status in (502, 503)
            await r.settled()
            assert r.gateway.pools[0].prefill.stranded == 1 and len(r.fleet.pinned) == 1

    asyncio.run(run())
