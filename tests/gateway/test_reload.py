"""Another configuration while streams run: nothing is dropped, nothing is counted wrong, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from endcast.errors import BundleError, EndcastError
from endcast.router.gateway.config import Auth, Config, Key, Log, Pool, WorkerConfig
from endcast.testing import ConstantHazardForecaster

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
PRIOR = ConstantHazardForecaster(0.01, bundle="prior")


def with_pool(r: Any, **changes: Any) -> Config:
    """The rig's configuration with another pool."""
    config: Config = r.gateway.config
    return msgspec.structs.replace(config, pools=(msgspec.structs.replace(config.pools[0], **changes),))


def at(r: Any, *workers: int) -> tuple[WorkerConfig, ...]:
    return tuple(WorkerConfig(url=r.fleet.urls[i]) for i in workers)


def names(r: Any) -> list[int]:
    """Which of the fleet's engines the books know."""
    return [r.fleet.urls.index(worker.url) for worker in r.gateway.pools[0].workers]


def tokens(answer: Any) -> int:
    """Events of a stream with text."""
    said = [frame["choices"][0]["delta"] for frame in answer.frames if frame != "[DONE]" and frame["choices"]]
    return sum(bool(delta.get("content")) for delta in said)


async def started(r: Any, count: int, waiting: int = 0) -> None:
    async with asyncio.timeout(10):
        while r.core.running < count or r.core.waiting < waiting:
            await asyncio.sleep(0.005)


def test_workers_come_and_go_under_running_streams(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=3, slots=2, t_fixed_s=0.02) as r:
            await r.server.change(with_pool(r, workers=at(r, 0, 1)))
            streams = [asyncio.create_task(r.chat(40)) for _ in range(7)]
            await started(r, 4, 3)
            assert r.core.running == 4
            held = {ticket: r.core.workers[ticket.worker].url for ticket in r.core.tickets if ticket.slots}
            await r.server.change(with_pool(r, workers=at(r, 2, 1)))
            assert names(r) == [2, 1, 0] and r.core.running + r.core.waiting == 7
            assert {t: r.core.workers[t.worker].url for t in held} == held, "what runs stays where it is"
            metrics = (await r.call("/metrics")).body.decode()
            assert f'worker_up{{pool="default",worker="{r.fleet.urls[0]}"}} 0.0' in metrics
            await started(r, 6)
            got = await asyncio.gather(*streams)
            assert all(answer.status == 200 and answer.frames[-1] == "[DONE]" for answer in got)
            assert all(tokens(answer) == 40 for answer in got), "no token is lost"
            await r.settled()
            assert names(r) == [2, 1], "the worker that was taken out is gone with its last request"
            seen = r.fleet.ranks[0].seen
            assert (await asyncio.gather(*(r.chat(3) for _ in range(6))))[0].status == 200
            assert r.fleet.ranks[0].seen == seen
            await r.settled()

    asyncio.run(run())


def test_fewer_slots_are_kept_to_once_enough_has_ended(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, slots=4, t_fixed_s=0.01) as r:
            streams = [asyncio.create_task(r.chat(20 + 10 * i)) for i in range(4)]
            await started(r, 4)
            late = [asyncio.create_task(r.chat(5)) for _ in range(3)]
            await r.server.change(with_pool(r, slots=2, kv_capacity=5000))
            assert r.core.active().tolist() == [4] and r.core.cluster.capacity.tolist() == [5000]
            most = 0
            await asyncio.gather(*streams[:2])
            while not all(task.done() for task in late):
                most = max(most, r.core.running)
                await asyncio.sleep(0.005)
            assert most <= 2 and r.core.workers[0].slots == 2
            await asyncio.gather(*streams, *late)
            await r.server.change(with_pool(r, slots=3, kv_capacity=None))
            assert r.core.workers[0].slots == 3
            await r.settled()

    asyncio.run(run())


def test_keys_and_limits_change(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=1, slots=1) as r:
            config = msgspec.structs.replace(
                r.gateway.config,
                auth=Auth(keys=(Key(key="new"),)),
                limits=msgspec.structs.replace(r.gateway.config.limits, max_waiting=1, max_body_bytes=300),
            )
            assert (await r.chat(2)).status == 200
            running = asyncio.create_task(r.chat(30))
            await started(r, 1)
            await r.server.change(config)
            assert (await r.chat(2)).status == 401
            key = {"Authorization": "Bearer new"}
            body = {"messages": [{"role": "user", "content": "x" * 400}], "stream": True}
            assert (await r.call("/v1/chat/completions", body, headers=key)).status == 413
            body = {"messages": [], "stream": True, "mock_output_tokens": 2}
            got = await asyncio.gather(*(r.call("/v1/chat/completions", body, headers=key) for _ in range(4)))
            assert max(answer.status for answer in got) == 429
            assert (await running).status == 200
            await r.settled()

    asyncio.run(run())


class Bundles:
    """Forecasters by name, as a command line loads them."""

    def __init__(self) -> None:
        self.made: dict[str, ConstantHazardForecaster] = {}

    def __call__(self, pool: Pool) -> tuple[Any, Any]:
        name = str(pool.forecaster)
        if name == "damaged":
            raise BundleError("the bundle is damaged", hint="Train it again")
        new = ConstantHazardForecaster(0.05 if name == "first" else 0.2, bundle=name)
        return self.made.setdefault(name, new) if name not in self.made else new, PRIOR


def test_another_bundle_is_asked_from_then_on_and_running_streams_keep_theirs(
    rig: RigMaker, tmp_path: pathlib.Path
) -> None:
    bundles, log = Bundles(), tmp_path / "log.jsonl"

    async def run() -> None:
        pool = {"policy": "br_h", "forecaster": "first", "forecast_timeout_s": 5.0}
        async with rig(workers=1, slots=2, t_fixed_s=0.02, pool=pool, forecasts=bundles, log=Log(path=str(log))) as r:
            streams = [asyncio.create_task(r.chat(25)) for _ in range(2)]
            await started(r, 2)
            waiting = asyncio.create_task(r.chat(4))
            await asyncio.sleep(0.05)
            desk = r.gateway.pools[0].desk
            await r.server.change(with_pool(r, forecaster="first", horizon=30))
            assert r.gateway.pools[0].desk is desk, "the same bundle is kept"
            await r.server.change(with_pool(r, forecaster="second"))
            assert r.gateway.pools[0].desk.bundle == "second"
            assert [answer.status for answer in await asyncio.gather(*streams, waiting)] == [200] * 3
            assert (await r.chat(4)).status == 200
            with pytest.raises(BundleError):
                await r.server.change(with_pool(r, forecaster="damaged", slots=1))
            assert r.gateway.pools[0].desk.bundle == "second" and r.core.workers[0].slots == 2
            assert r.gateway.reloads == {"applied": 2, "refused": 1}
            assert (await r.chat(4)).status == 200
            await r.settled()
            await asyncio.sleep(0.05)
            assert not r.gateway.pools[0].desk._before, "the first is let go with its last stream"

    asyncio.run(run())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["attributes"]["reason"] for line in lines] == ["br_h"] * 5
    assert [round(line["attributes"]["forecast"]["expected_output_tokens"]) for line in lines[-2:]] == [5, 5]
    ends = [one.output_tokens for one in bundles.made["first"].observed]
    assert ends == [25, 25] and [one.output_tokens for one in bundles.made["second"].observed][-2:] == [4, 4]
    assert len(bundles.made["second"].observed) >= 4, "it learns from all that ends"


def test_from_br_0_to_forecasts_and_back(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=2, t_fixed_s=0.01, forecasts=Bundles()) as r:
            for policy, forecaster in (("br_h", "first"), ("br_0", None), ("least_kv", None), ("olp_br_h", "first")):
                streams = [asyncio.create_task(r.chat(20)) for _ in range(7)]
                await started(r, 4)
                await r.server.change(with_pool(r, policy=policy, forecaster=forecaster, forecast_timeout_s=5.0))
                got = await asyncio.gather(*streams, r.chat(2))
                assert [answer.status for answer in got] == [200] * 8
                await r.settled()
                assert r.core.policy_name == policy and r.core.failed_rounds == 0

    asyncio.run(run())


def test_pools_come_and_go(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=2, t_fixed_s=0.02, pool={"models": ("mock",)}) as r:
            running = asyncio.create_task(r.chat(30))
            await started(r, 1)
            pool = r.gateway.config.pools[0]
            one = msgspec.structs.replace(pool, models=("mock",), workers=at(r, 0, 1))
            two = msgspec.structs.replace(pool, models=("two",), workers=at(r, 1))
            await r.server.change(msgspec.structs.replace(r.gateway.config, pools=(one, two)))
            assert (await r.chat(2, model="two")).status == 200 and (await r.chat(2)).status == 200
            old = r.gateway.pools[0]
            three = msgspec.structs.replace(pool, models=("three",), workers=at(r, 1))
            await r.server.change(msgspec.structs.replace(r.gateway.config, pools=(two, three)))
            assert r.gateway.leaving == [old] and (await r.chat(2)).status == 404
            assert (await r.chat(2, model="three")).status == 200
            answer = await running
            assert answer.status == 200 and tokens(answer) == 30, "what runs in a pool that is gone ends well"
            await asyncio.sleep(0.01)
            assert r.gateway.leaving == [] and not old.core.load().any()
            assert b'pool="three"' in (await r.call("/metrics")).body

    asyncio.run(run())


def test_the_log_is_opened_anew(rig: RigMaker, tmp_path: pathlib.Path) -> None:
    first, moved, other = tmp_path / "a.jsonl", tmp_path / "a.1", tmp_path / "b.jsonl"

    async def run() -> None:
        async with rig(workers=1, log=Log(path=str(first))) as r:
            await r.chat(2)
            first.rename(moved)
            await r.server.change(r.gateway.config)
            await r.chat(2)
            await r.server.change(msgspec.structs.replace(r.gateway.config, log=Log(path=str(other))))
            await r.chat(2)
            with pytest.raises(EndcastError, match="access log"):
                await r.server.change(msgspec.structs.replace(r.gateway.config, log=Log(path=str(tmp_path))))
            await r.chat(2)

    asyncio.run(run())
    assert [len(file.read_text().splitlines()) for file in (moved, first, other)] == [1, 1, 2]


def test_what_another_router_dispatched_stays_in_the_books(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=4, t_fixed_s=0.02, health={"reconcile_s": 0.1}) as r:
            foreign = [asyncio.create_task(r.chat(150, to=r.fleet.urls[0])) for _ in range(2)]
            books = r.gateway.reconciler.books[0]
            async with asyncio.timeout(10):
                while books.adopted.requests[0] < 2:
                    await asyncio.sleep(0.02)
            await r.server.change(with_pool(r, workers=at(r, 1, 0)))
            assert books.adopted.requests.tolist() == [0, 2] and r.core.active().tolist() == [0, 2]
            assert (await r.chat(3)).status == 200
            await asyncio.gather(*foreign)
            async with asyncio.timeout(10):
                while r.core.active().any():
                    await asyncio.sleep(0.02)
            assert not r.core.load().any()

    asyncio.run(run())


def test_a_worker_that_was_down_is_down_after_a_change_and_comes_back(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=2, health={"interval_s": 0.05}) as r:
            await r.fleet.kill(0)
            async with asyncio.timeout(10):
                while r.gateway.pools[0].dispatcher.up == 2:
                    await asyncio.sleep(0.02)
            await r.server.change(with_pool(r, slots=3))
            assert r.gateway.pools[0].dispatcher.up == 1
            assert [answer.status for answer in await asyncio.gather(*(r.chat(3) for _ in range(4)))] == [200] * 4
            await r.fleet.revive(0)
            async with asyncio.timeout(10):
                while r.gateway.pools[0].dispatcher.up < 2:
                    await asyncio.sleep(0.02)
            await r.server.change(with_pool(r, workers=at(r, 1)))
            assert r.gateway.pools[0].dispatcher.up == 1 and len(r.gateway.health.circuits) == 1
            await r.settled()

    asyncio.run(run())
