"""Streams: what they forecast, that they keep their bundle, end, expire, stay within bounds and never leak."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast.forecaster import Forecaster
from endcast.serving.api.problems import ServiceError
from endcast.serving.app import build_app
from endcast.serving.bundles.holder import BundleHolder, Loaded
from endcast.serving.context import Context
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.settings import Settings
from endcast.serving.streams.book import MOST_BUNDLES, StreamBook
from endcast.testing import ConstantHazardForecaster, ManualClock
from endcast.types import Landmark, Request

Client = httpx.AsyncClient


def context_of(forecaster: Forecaster, told: Settings | None = None) -> Context:
    return Context(told or Settings(), Metrics(), BundleHolder(Loaded(forecaster)))


def with_service(context: Context, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        app = build_app(context)
        async with (
            app.router.lifespan_context(app),
            Client(transport=httpx.ASGITransport(app), base_url="http://service") as client,
        ):
            return await work(client)

    return asyncio.run(run())


async def opened(client: Client, **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/streams", json={"request": {"prompt_tokens": 20, "request_id": "r", **more}})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_a_stream_lives_from_open_to_close() -> None:
    context = context_of(ConstantHazardForecaster(0.01))

    async def work(client: Client) -> list[Any]:
        stream = await opened(client, generated_tokens=3)
        path = f"/v1/streams/{stream['stream_id']}"
        added = await client.post(f"{path}/append", json={"text": "abc", "generated_tokens": 9})
        lower = await client.post(f"{path}/append", json={"text": "", "generated_tokens": 2})
        made = await client.post(f"{path}/forecast", json={"horizons": [10], "quantiles": [0.5]})
        closed = await client.post(f"{path}/close", json={"output_tokens": 12, "end": "stop"})
        again = await client.post(f"{path}/close", json={})
        return [stream, added.json(), lower.json(), made.json(), closed.json(), again]

    stream, added, lower, made, closed, again = with_service(context, work)
    assert stream["generated_tokens"] == 3 and added["generated_tokens"] == lower["generated_tokens"] == 9
    assert made["forecast"]["p_end"] == {"10": pytest.approx(1 - 0.99**10)}
    assert made["forecast"]["request_id"] == "r" and made["forecast"]["expected_output_tokens"] > 9
    assert closed == {"stream_id": stream["stream_id"], "outcome": "accepted"}
    assert again.status_code == 410 and again.json()["error"]["code"] == "stream_gone"
    ended = context.metrics.registry.get_sample_value("endcast_streams_ended_total", {"how": "closed"})
    assert ended == 1 and context.metrics.registry.get_sample_value("endcast_stream_bytes") == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/streams", {}, 422, "request"),
        ("/v1/streams", {"request": {}}, 422, "request"),
        ("/v1/streams", {"request": {"prompt_tokens": -1}}, 422, "request.prompt_tokens"),
        ("/v1/streams", {"request": {"prompt_tokens": 1}, "forecast": {"horizons": [0]}}, 422, "forecast.horizons[0]"),
        ("/v1/streams/none/append", {"text": "", "generated_tokens": 1}, 404, "stream_id"),
        ("/v1/streams/none/append", {"text": 3, "generated_tokens": 1}, 422, "text"),
        ("/v1/streams/none/append", {"text": ""}, 422, "generated_tokens"),
        ("/v1/streams/none/append", {"text": "", "generated_tokens": True}, 422, "generated_tokens"),
        ("/v1/streams/none/forecast", {"quantiles": [1.0]}, 422, "quantiles[0]"),
        ("/v1/streams/none/forecast", {}, 404, "stream_id"),
        ("/v1/streams/none/close", {"end": "stop"}, 422, "output_tokens"),
        ("/v1/streams/none/close", {"end": "never", "output_tokens": 1}, 422, "end"),
    ],
)
def test_what_is_refused(path: str, body: Any, status: int, field: str) -> None:
    context = context_of(ConstantHazardForecaster(0.01))
    refused = with_service(context, lambda client: client.post(path, json=body))
    assert refused.status_code == status and refused.json()["error"]["field"] == field


def test_a_stream_keeps_its_bundle_over_reloads_and_is_dropped_when_that_is_too_old() -> None:
    context = context_of(ConstantHazardForecaster(0.01, bundle="b0"))

    async def work(client: Client) -> list[Any]:
        first, seen = await opened(client), []
        path = f"/v1/streams/{first['stream_id']}/forecast"
        for i in range(1, MOST_BUNDLES + 1):
            context.bundles.swap(Loaded(ConstantHazardForecaster(0.01 + i / 10, bundle=f"b{i}")))
            seen.append((await client.post(path, json={"horizons": [10]})).json())
            newer = await opened(client)
            assert newer["bundle"] == f"b{i}"
        return [*seen, await client.post(path, json={})]

    *seen, gone = with_service(context, work)
    for told in seen:
        assert told["bundle"] == "b0" and told["forecast"]["p_end"]["10"] == pytest.approx(1 - 0.99**10)
    assert gone.status_code == 410
    dropped = context.metrics.registry.get_sample_value("endcast_streams_ended_total", {"how": "dropped"})
    assert dropped is not None and dropped >= 1


def landmark(prompt_tokens: int = 5) -> Landmark:
    return Landmark(request=Request(request_id="", prompt_tokens=prompt_tokens))


def test_streams_are_bounded_in_number_and_bytes() -> None:
    async def run(told: Settings, sizes: list[int]) -> list[int]:
        book, codes = StreamBook(context_of(ConstantHazardForecaster(0.01), told)), []
        for size in sizes:
            try:
                await book.open(landmark(), size)
                codes.append(200)
            except ServiceError as error:
                codes.append(error.status)
        assert len(book) == codes.count(200)
        return codes

    assert asyncio.run(run(Settings(max_streams=2), [1, 1, 1])) == [200, 200, 429]
    assert asyncio.run(run(Settings(max_stream_bytes=100_000), [10_000, 60_000, 10_000])) == [200, 429, 200]


def test_what_cannot_be_opened_takes_no_room() -> None:
    class Broken(ConstantHazardForecaster):
        def open(self, request: Request) -> Any:
            raise RuntimeError("a fault")

    async def run() -> tuple[int, int]:
        book = StreamBook(context_of(Broken(0.01)))
        with pytest.raises(RuntimeError):
            await book.open(landmark(), 100)
        return len(book), book.bytes

    assert asyncio.run(run()) == (0, 0)


STEPS = st.lists(
    st.one_of(
        st.just(("open",)),
        st.tuples(st.just("append"), st.integers(0, 9)),
        st.tuples(st.just("forecast"), st.integers(0, 9)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
        st.just(("swap",)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_callers_do_the_books_are_right(steps: list[tuple[Any, ...]]) -> None:
    """A model of the book: who is open, since when unused, of which bundle."""
    clock = ManualClock()
    context = context_of(ConstantHazardForecaster(0.01, bundle="b0"), Settings(max_streams=4, stream_idle_s=60))
    book = StreamBook(context, clock=clock)
    names: list[str] = []
    model: dict[str, tuple[float, str]] = {}

    async def step(what: str, which: int) -> None:
        for name in [name for name, (seen, _) in model.items() if clock() - seen > 60]:
            del model[name]
        name = names[which % len(names)] if names else "none"
        if what == "open":
            if len(model) >= 4:
                with pytest.raises(ServiceError):
                    await book.open(landmark(), 10)
                return
            names.append((await book.open(landmark(), 10)).id)
            model[names[-1]] = (clock(), context.bundles.current.id)
            bundles = list(dict.fromkeys(sorted(int(bundle[1:]) for _, bundle in model.values())))
            for old in bundles[: max(len(bundles) - MOST_BUNDLES, 0)]:
                for gone in [name for name, (_, bundle) in model.items() if bundle == f"b{old}"]:
                    del model[gone]
        elif what == "swap":
            number = int(context.bundles.current.id[1:]) + 1
            context.bundles.swap(Loaded(ConstantHazardForecaster(0.01, bundle=f"b{number}")))
        elif what in ("append", "forecast", "close"):
            acts: dict[str, Callable[[], Awaitable[Any]]] = {
                "append": lambda: book.append(name, "x", which),
                "forecast": lambda: book.forecast(name),
                "close": lambda: asyncio.to_thread(book.close, name),
            }
            act = acts[what]
            book.expire()
            if name not in model:
                with pytest.raises(ServiceError, match=r"no such stream|no longer open"):
                    await act()
                return
            await act()
            if what == "close":
                del model[name]
            else:
                assert book.find(name).loaded.id == model[name][1]
                model[name] = (clock(), model[name][1])

    async def run() -> None:
        for what, *rest in steps:
            if what == "wait":
                clock.advance(rest[0])
            else:
                await step(what, rest[0] if rest else 0)
            book.expire()
            assert set(book._open) == {name for name, (seen, _) in model.items() if clock() - seen <= 60}
            assert book.bytes == sum(one.size for one in book._open.values())
            assert sum(map(len, book._of_bundle.values())) == len(book)

    asyncio.run(run())


def test_idle_streams_go_even_if_nobody_calls() -> None:
    context = context_of(ConstantHazardForecaster(0.01), Settings(stream_idle_s=0.1))

    async def work(client: Client) -> float | None:
        await opened(client)
        await asyncio.sleep(0.4)
        return context.metrics.registry.get_sample_value("endcast_open_streams")

    assert with_service(context, work) == 0


def test_appends_at_once_are_read_in_order_and_whole() -> None:
    """A long text and short ones after it, sent together: pieces do not mix."""

    class Reading(ConstantHazardForecaster):
        texts: list[str]

        def open(self, request: Request) -> Any:
            stream, self.texts = super().open(request), []
            append = stream.append

            def kept(text: str, generated_tokens: int) -> None:
                self.texts.append(text)
                append(text, generated_tokens)

            stream.append = kept  # type: ignore[method-assign]
            return stream

    forecaster = Reading(0.01)

    async def run() -> str:
        book = StreamBook(context_of(forecaster))
        name = (await book.open(landmark(), 1)).id
        await asyncio.gather(book.append(name, "a" * 100_000, 1), book.append(name, "b", 2), book.append(name, "c", 3))
        return "".join(forecaster.texts)

    assert asyncio.run(run()) == "a" * 100_000 + "bc"


def test_a_stream_may_be_dropped_without_an_outcome() -> None:
    context = context_of(ConstantHazardForecaster(0.01))

    async def work(client: Client) -> list[httpx.Response]:
        path = f"/v1/streams/{(await opened(client))['stream_id']}"
        return [await client.delete(path), await client.delete(path), await client.post(f"{path}/forecast", json={})]

    dropped, again, after = with_service(context, work)
    assert dropped.status_code == 200 and dropped.json()["outcome"] is None
    assert again.status_code == after.status_code == 410
