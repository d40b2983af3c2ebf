"""The books beside the engines' own: what others dispatched is seen and let go, what we dispatched is never counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.router.gateway.books.adopted import Adopted
from endcast.router.gateway.books.reconcile import Books, Own, foreign
from endcast.router.gateway.config import Limits, Pool, WorkerConfig
from endcast.router.gateway.engines.metrics import RankMetrics, read_metrics, together
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.mock.engine import MockSettings, Rank
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import Intake
from endcast.testing import ConstantHazardForecaster

RigMaker = Callable[..., AbstractAsyncContextManager[Any]]
PRIOR = ConstantHazardForecaster(0.02, bundle="prior")
TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m"} 99.0
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:gpu_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0",cache_dtype="a \\"b\\""} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None",engine="1"} 1.0
"""


def test_metrics_are_read_for_each_rank_and_what_is_missing_is_not_zero() -> None:
    ranks = read_metrics(TEXT)
    assert ranks == {0: RankMetrics(5, 800, 16), 1: RankMetrics(1, None, 16)}
    assert together(ranks) == RankMetrics(6, None, 16)
    assert read_metrics("other 1\n") == {} and together({}) == RankMetrics()
    assert read_metrics('vllm:num_requests_running{engine="0"} NaN\n') == {0: RankMetrics()}
    with pytest.raises(ValueError):
        read_metrics("vllm:num_requests_running{ 3 x\n")


def test_the_mock_engine_tells_what_is_read() -> None:
    rank = Rank(0, MockSettings(kv_capacity=1600))
    assert read_metrics("\n".join(rank.metrics(2))) == {2: RankMetrics(0, 0, 16)}


@given(
    ours=st.integers(0, 20), ended=st.integers(0, 20), placed=st.integers(0, 20), unseen=st.integers(0, 20),
    others=st.integers(0, 20), prompt=st.integers(1, 50), block=st.integers(1, 16),
)  # fmt: skip
def test_ours_are_never_foreign(
    ours: int, ended: int, placed: int, unseen: int, others: int, prompt: int, block: int
) -> None:
    """Whatever the engine still or already counts of ours, no more is foreign than others put there."""
    before = Own(ours, ours * prompt, 7, 70)
    now_active = max(ours + placed - ended, 0)
    now = Own(now_active, now_active * prompt, 7 + placed, 70 + placed * prompt)
    counted = max(ours + placed - unseen, 0)
    held = -(-prompt // block) * block
    told = RankMetrics(counted + others, (counted + others) * held, block)
    requests, tokens = foreign(told, before, now)
    assert requests <= others and tokens <= others * held
    if ended == unseen == placed == 0:
        assert requests == others
    quiet = foreign(RankMetrics(counted, counted * held * 3, block), before, now)
    assert quiet == (0, 0), "more KV alone is not foreign load"


@pytest.mark.parametrize("forecasts", [False, True])
def test_adopted_load_is_in_the_view_and_goes_without_a_trace(forecasts: bool) -> None:
    pool = Pool(
        workers=(WorkerConfig(url="http://a"), WorkerConfig(url="http://b")),
        slots=4,
        kv_capacity=1000,
        forecaster="cold_start" if forecasts else None,
    )
    desk = Inline(PRIOR, PRIOR, horizon=pool.horizon) if forecasts else None
    core = RoutingCore(pool, desk=desk, rng=np.random.default_rng(0))
    adopted = Adopted(core)
    assert adopted.adopt(0, 2, 301) and not adopted.adopt(0, 2, 301)
    assert core.load().tolist() == [301, 0] and core.active().tolist() == [2, 0]
    tickets = [core.open(Intake(prompt_tokens=50)) for _ in range(4)]
    core.decide(0.0)
    assert [ticket.worker for ticket in tickets] == [1, 1, 1, 1]
    assert adopted.own_load().tolist() == [0, 200] and adopted.own_active().tolist() == [0, 4]
    more = [core.open(Intake(prompt_tokens=50)) for _ in range(3)]
    assert len(core.decide(0.1)) == 2, "two slots are another's"
    assert adopted.adopt(0, 9, 5000) and core.active().tolist() == [4, 4], "no more than there is room for"
    assert int(core.load()[0]) <= 1000
    assert adopted.adopt(0, 0, 0) and core.load()[0] == 100
    core.decide(0.2)
    for ticket in tickets + more:
        core.on_end(ticket)
    assert not core.load().any() and not core.active().any() and core.failed_rounds == 0
    assert core.cluster.book is None or len(core.cluster.book) == 0


def test_an_excess_counts_when_two_polls_saw_it_and_goes_with_the_first_that_does_not() -> None:
    async def run() -> None:
        pool = Pool(workers=(WorkerConfig(url="http://a"),), slots=8)
        books = Books(PoolAtWork(pool, Limits(), None, np.random.default_rng(0), logs=False))

        def polled(requests: int, now_s: float) -> int:
            books.take(0, RankMetrics(requests, requests * 10), books.own(0), now_s)
            return int(books.adopted.requests[0])

        assert [polled(n, 0.0) for n in (3, 5, 5, 1, 4, 0, 2)] == [3, 3, 5, 1, 1, 0, 0]
        assert polled(2, 10.0) == 2
        books.stale(0, 69.0)
        assert books.adopted.requests[0] == 2, "kept while the engine does not tell"
        books.stale(0, 71.0)
        assert books.adopted.requests[0] == 0 and books.compared == {}

    asyncio.run(run())


async def told(r: Any, name: str) -> dict[str, float]:
    """A metric's value for each worker, by its address."""
    lines = (await r.call("/metrics")).body.decode().splitlines()
    rows = [line for line in lines if line.startswith(f"endcast_router_{name}{{")]
    return {line.split('worker="')[1].split('"')[0]: float(line.split()[-1]) for line in rows}


@pytest.mark.parametrize("ranks", [None, 2])
def test_what_ran_there_before_the_router_started_is_seen_until_it_has_ended(rig: RigMaker, ranks: int | None) -> None:
    async def run() -> None:
        async with rig(workers=2, ranks=ranks, slots=4, t_fixed_s=0.01, health={"reconcile_s": 0.1}) as r:
            fleet, first = r.fleet, r.fleet.urls[0]
            fleet.steps.paused = True
            body = {"stream": True, "mock_output_tokens": 20, "messages": [{"role": "user", "content": "x" * 300}]}
            pin = {} if ranks is None else {"X-data-parallel-rank": "1"}
            others = [
                asyncio.create_task(r.call("/v1/chat/completions", dict(body), to=first, headers=pin)) for _ in range(3)
            ]
            name = first if ranks is None else f"{first}#1"
            await r.gateway.reconciler.stop()
            rank = fleet.ranks[0 if ranks is None else 1]
            while len(rank.running) + len(rank.waiting) < 3:
                await asyncio.sleep(0.01)
            second = type(r.gateway)(r.gateway.config, rng=np.random.default_rng(0))  # as if started now
            async with second:
                core = second.pools[0].core
                expected = [3 * (w.name == name) for w in core.workers]
                assert core.active().tolist() == expected
                load = int(core.load().max())
                assert load > 0 and load == pytest.approx(rank.kv_tokens, abs=4)
                fleet.steps.paused = False
                for other in others:
                    assert (await other).status == 200
                async with asyncio.timeout(10):
                    while core.active().any():
                        await asyncio.sleep(0.02)
                assert not core.load().any()

    asyncio.run(run())


def test_under_traffic_nothing_of_ours_is_adopted_and_differences_are_shown(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=4, t_fixed_s=0.004, health={"reconcile_s": 0.02}) as r:
            (books,) = r.gateway.reconciler.books
            most = 0

            async def look() -> None:
                nonlocal most
                while True:
                    most = max(most, int(books.adopted.requests.max()))
                    await asyncio.sleep(0.005)

            looking = asyncio.create_task(look())
            async with asyncio.timeout(60):
                for _ in range(6):
                    answers = await asyncio.gather(*(r.chat(3 + i % 30) for i in range(40)))
                    assert {answer.status for answer in answers} == {200}
            looking.cancel()
            assert most == 0
            assert len(books.compared) == 2 and max(seen.seen_s for seen in books.compared.values()) > 0
            await r.settled()
            async with asyncio.timeout(10):
                while set((await told(r, "engine_requests_difference")).values()) != {0.0}:
                    await asyncio.sleep(0.05)
            assert set(await told(r, "engine_kv_tokens")) == set(r.fleet.urls)
            assert set((await told(r, "adopted_requests")).values()) == {0.0}

    asyncio.run(run())


def test_workers_without_metrics_are_routed_to_as_before(rig: RigMaker) -> None:
    async def run() -> None:
        async with rig(workers=2, slots=4, metrics=False, health={"reconcile_s": 0.05}) as r:
            assert (await r.chat(5)).status == 200
            assert await told(r, "engine_requests") == {}
            await r.settled()

    asyncio.run(run())
