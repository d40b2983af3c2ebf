"""Prompts with the same beginning: their leading blocks, where they are sent, and what the log tells of it."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.datasets.read import read
from endcast.errors import EndcastError
from endcast.router.gateway.config import Log, WorkerConfig, parse_config
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.messages.prefixes import leading_blocks
from endcast.router.prefix import PrefixIndex

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
TEXTS = st.lists(st.text(max_size=700), min_size=1, max_size=6)


def chat(texts: list[str], **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts], **more}).encode()


def blocks(raw: bytes, *, is_chat: bool = True) -> tuple[int, ...]:
    return leading_blocks(read_body(raw, chat=is_chat))


@given(TEXTS, TEXTS, TEXTS)
def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter(
    said: list[str], one: list[str], other: list[str]
) -> None:
    before, after, beside = blocks(chat(said)), blocks(chat(said + one)), blocks(chat(said + other))
    whole = max(len(before) - 1, 0)  # the last one may hold the end of the list
    assert after[:whole] == before[:whole] == beside[:whole]
    assert len(set(after)) == len(after), "a block stands for all before it: none comes twice"
    assert all(-(2**63) <= block < 2**63 for block in after)


def test_other_models_and_tools_have_no_blocks_in_common() -> None:
    said = ["x" * 5000]
    told = [chat(said), chat(said, model="a"), chat(said, model="b"), chat(said, model="a", tools=[{"type": "x"}])]
    found = [blocks(raw) for raw in told]
    assert len({block for one in found for block in one}) == sum(map(len, found)) == 4 * 9
    assert found[1] == blocks(chat(said, model="a", temperature=0.5, stream=True))


def test_prompts_of_any_form_and_size() -> None:
    assert len(blocks(b'{"prompt": "' + b"a" * 1500 + b'"}', is_chat=False)) == 2
    assert len(blocks(json.dumps({"prompt": list(range(1000))}).encode(), is_chat=False)) == 9
    assert len(blocks(chat(["y" * 2_000_000]))) == 512
    for nothing in (b"", b"{", b'{"messages": 3}', chat(["short"]), b"[]"):
        assert blocks(nothing) == ()


def test_prompts_go_where_their_beginning_was_seen(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.jsonl"

    async def run() -> tuple[str, list[set[str]]]:
        async with rig(workers=4, pool={"prefix_weight": 3.0}, log=Log(path=str(path))) as r:
            for i in range(24):
                system = {"role": "system", "content": f"family {i % 3} " * 500}
                messages = [system, {"role": "user", "content": f"question {i}"}]
                assert (await r.chat(3, messages=messages)).status == 200
            config = r.gateway.config
            turned = tuple(WorkerConfig(url=url) for url in reversed(r.fleet.urls))
            pool = msgspec.structs.replace(config.pools[0], workers=turned)
            await r.server.change(msgspec.structs.replace(config, pools=(pool,)))
            for i in range(3):
                system = {"role": "system", "content": f"family {i % 3} " * 500}
                assert (await r.chat(3, messages=[system])).status == 200
            metrics = (await r.call("/metrics")).body.decode()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return metrics, [{line["attributes"]["worker"] for line in lines[i::3]} for i in range(3)]

    metrics, workers = asyncio.run(run())
    assert [len(of_family) for of_family in workers] == [1, 1, 1], "also after the fleet changed"
    told = {
        kind: float(metrics.split(f'prefix_blocks_total{{kind="{kind}",pool="default"}} ')[1].split("\n")[0])
        for kind in ("placed", "seen")
    }
    assert told["placed"] > 200
    assert 0.8 * told["placed"] < told["seen"] < told["placed"]
    trace = read(path).trace
    assert [len(row["prefix_blocks"]) > 5 for row in trace.table.to_pylist()] == [True] * 27


def test_without_a_weight_nothing_is_looked_at(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.jsonl"

    async def run() -> str:
        async with rig(workers=2, log=Log(path=str(path))) as r:
            assert (await r.chat(2, messages=[{"role": "user", "content": "z" * 4000}])).status == 200
            told: str = (await r.call("/metrics")).body.decode()
            return told

    assert "prefix_blocks_total{" not in asyncio.run(run())
    assert "prefix_blocks" not in json.loads(path.read_text())


def test_a_policy_that_does_not_look_at_prefixes_takes_no_weight() -> None:
    least = '[[pools]]\nworkers = [{ url = "http://a:1" }]\nprefix_weight = 3\n'
    assert parse_config(least).pools[0].policy_settings().prefix_weight == 3.0
    with pytest.raises(EndcastError, match=r"least_kv.*prefix_weight must be 0"):
        parse_config(least + 'policy = "least_kv"\n')


def test_an_index_goes_on_for_other_workers() -> None:
    index = PrefixIndex(3)
    index.arrive(np.array([1, 2, 3]), [np.array([10, 11]), np.array([10, 12]), np.array([20])])
    index.placed(np.array([1, 2, 3]), np.array([0, 1, 2]))
    assert (index.placed_blocks, index.hit_blocks) == (5, 0)
    later = PrefixIndex(2)
    later.go_on(index, [1, -1, 0])
    later.arrive(np.array([7, 8]), [np.array([10, 11, 12]), np.array([20])])
    counted, matched = later.match(np.array([7, 8]))
    assert counted.tolist() == [3, 1] and matched.tolist() == [[0, 2], [1, 0]]
    later.placed(np.array([7]), np.array([1]))
    assert (later.placed_blocks, later.hit_blocks) == (8, 2)
