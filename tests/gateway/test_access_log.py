"""The access log: one line an answer, read by endcast as a training log; texts only where switched on."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest

from endcast.datasets.read import read
from endcast.router.gateway.config import Auth, Key, Log

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]


def play(rig: RigMaker, path: pathlib.Path, **log: bool) -> list[dict[str, Any]]:
    """A few calls of every kind; the lines that they leave."""

    async def run() -> None:
        told = Log(path=str(path), **log)
        auth = Auth(keys=(Key(key="k", tenant="ann"),))
        async with rig(workers=1, t_fixed_s=0.005, log=told, auth=auth) as r:
            r.client.headers["Authorization"] = "Bearer k"
            await r.chat(5, temperature=0.5)
            await r.chat(5, stream=False, n=2)
            await r.chat(9, max_tokens=3)
            await r.chat(3, max_tokens=0)
            r.fleet.ranks[0].faults.cut_after = 2
            await r.chat(9)
            r.fleet.ranks[0].faults.cut_after = None
            call = asyncio.create_task(
                r.call(
                    "/v1/completions",
                    {"prompt": [1, 2, 3], "max_tokens": 900, "stream": True, "mock_output_tokens": 900},
                )
            )
            async with asyncio.timeout(10):
                while not any(any(generation.made) for generation in r.fleet.ranks[0].running):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await r.settled()

    asyncio.run(run())
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_answer_has_its_line(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    lines = play(rig, tmp_path / "log.jsonl")
    ends = [(line["output_tokens"], line["end"]) for line in lines]
    assert ends[:5] == [(5, "stop"), (6, "stop"), (5, "stop"), (3, "length"), (0, "error")]
    assert ends[5][0] >= 2 and ends[5][1] == "error"
    assert ends[6][0] >= 1 and ends[6][1] == "abort" and lines[6]["prompt_tokens"] == 3
    assert len({line["request_id"] for line in lines}) == len(lines) == 7
    first = lines[0]
    assert first["tenant"] == "ann" and first["model"] == "mock" and first["parameters"]["temperature"] == 0.5
    assert first["prompt_tokens"] > 5 and first["finished_s"] >= first["arrival_s"] > 1.6e9
    assert first["attributes"]["worker"].startswith("http://127.0.0.1") and first["attributes"]["reason"] == "br_0"
    assert lines[4]["attributes"]["status"] == 400 and lines[5]["attributes"]["problem"] == "stream_cut"
    assert not any("hello there" in json.dumps(line) for line in lines), "prompts are not written"
    assert not any("output" in line or "prompt" in line or "messages" in line for line in lines)


def test_texts_only_where_switched_on(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    lines = play(rig, tmp_path / "log.jsonl", prompts=True, outputs=True)
    assert lines[0]["messages"][0]["content"].startswith("hello there") and "你好" in lines[0]["output"]
    assert "Bearer" not in json.dumps(lines), "no keys"


@pytest.mark.parametrize("texts", [False, True])
def test_endcast_reads_it(rig: RigMaker, tmp_path: pathlib.Path, texts: bool) -> None:
    path = tmp_path / "log.jsonl"
    play(rig, path, prompts=texts, outputs=texts)
    reading = read(path)
    assert reading.report.format == "generic" and reading.report.rows_kept >= 6
    table = reading.trace.table.to_pylist()
    assert {row["end"] for row in table} >= {"stop", "length", "abort"}
    assert all(row["tenant"] == "ann" for row in table)


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_costs_lines_and_nothing_else(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, log=Log(path="/dev/full")) as r:
            assert (await r.chat(3)).status == 200
            async with asyncio.timeout(10):
                while r.gateway.log.lost == 0:
                    await asyncio.sleep(0.05)
            told = (await r.call("/metrics")).body.decode()
            assert "endcast_router_log_lines_lost_total 1.0" in told
            assert (await r.chat(3)).status == 200

    asyncio.run(run())
