"""How calls share the forecaster: together, in parts, in turn, bounded, by their deadline, each failing alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import Completion, Forecast, Landmark
from endcast.errors import InputError
from endcast.serving.api.problems import ServiceError
from endcast.serving.app import create_app
from endcast.serving.bundles.turns import Turns
from endcast.serving.forecasts.batching import PART
from endcast.serving.forecasts.codec import Call, decode_call, decode_long_call
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster

Client = httpx.AsyncClient


class Recording(ConstantHazardForecaster):
    """Remembers how many landmarks came at once; waits for ``go_on`` where there are more than ``slow_from``."""

    def __init__(self, slow_from: int = 10**9) -> None:
        super().__init__(0.01)
        self.asked: list[int] = []
        self.slow_from, self.go_on = slow_from, threading.Event()

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        self.asked.append(len(landmarks))
        if len(landmarks) >= self.slow_from:
            assert self.go_on.wait(20)
        if any(landmark.request.model == "refused" for landmark in landmarks):
            raise InputError("model", "is refused")
        if any(landmark.request.model == "broken" for landmark in landmarks):
            raise RuntimeError("a fault")
        return super().forecast(landmarks)


def call_of(count: int, **more: Any) -> dict[str, Any]:
    return {"requests": [{"request_id": str(i), "prompt_tokens": i, **more} for i in range(count)], "horizons": [16]}


def with_client(
    forecaster: ConstantHazardForecaster, work: Callable[[Client], Coroutine[Any, Any, Any]], settings: Settings
) -> Any:
    async def run() -> Any:
        app = create_app(settings, forecaster)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with Client(transport=transport, base_url="http://service") as client:
            return await work(client)

    return asyncio.run(run())


async def post(client: Client, body: Any, **headers: str) -> httpx.Response:
    return await client.post("/v1/forecasts", json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def test_small_calls_that_come_together_are_forecast_together() -> None:
    forecaster = Recording()

    async def work(client: Client) -> list[httpx.Response]:
        return await asyncio.gather(*(post(client, call_of(2)) for _ in range(40)))

    answers = with_client(forecaster, work, Settings())
    assert all(answer.status_code == 200 for answer in answers)
    assert sum(forecaster.asked) == 80 and max(forecaster.asked) <= PART
    assert len(forecaster.asked) < 10, "they were not merged"
    for answer in answers:
        assert [forecast["request_id"] for forecast in answer.json()["forecasts"]] == ["0", "1"]
    ids = {forecast["forecast_id"] for answer in answers for forecast in answer.json()["forecasts"]}
    assert len(ids) == 80


def test_of_calls_forecast_together_each_fails_alone() -> None:
    async def work(client: Client) -> list[httpx.Response]:
        models = ["m", "refused", "m", "broken", "m"]
        return await asyncio.gather(*(post(client, call_of(1, model=model)) for model in models))

    answers = with_client(Recording(), work, Settings())
    assert [answer.status_code for answer in answers] == [200, 422, 200, 200, 200]
    degraded = [
        answer.json()["forecasts"][0]["known"].get("degraded", False) for answer in answers if answer.is_success
    ]
    assert degraded == [False, False, True, False]
    assert answers[1].json()["error"]["field"] == "model"


def test_a_long_call_is_worked_on_in_parts_and_answered_in_order() -> None:
    forecaster = Recording()
    answer = with_client(forecaster, lambda client: post(client, call_of(1_000)), Settings())
    assert [forecast["request_id"] for forecast in answer.json()["forecasts"]] == [str(i) for i in range(1_000)]
    assert sum(forecaster.asked) == 1_000 and max(forecaster.asked) == PART


def test_small_calls_get_their_turn_between_the_parts_of_a_long_one() -> None:
    forecaster = Recording(slow_from=PART)

    async def work(client: Client) -> list[int]:
        long = asyncio.create_task(post(client, call_of(20 * PART)))
        while not forecaster.asked:
            await asyncio.sleep(0.001)
        small = asyncio.create_task(post(client, call_of(1)))
        await asyncio.sleep(0.02)
        forecaster.go_on.set()
        await asyncio.gather(long, small)
        return forecaster.asked

    asked = with_client(forecaster, work, Settings())
    assert 1 in asked[:4], "the small call waited for the long one"


def test_beyond_the_queue_calls_are_refused_and_told_when_to_come_again() -> None:
    forecaster = Recording(slow_from=PART)

    async def work(client: Client) -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        waiting = [asyncio.create_task(post(client, call_of(2 * PART))) for _ in range(2)]
        while not forecaster.asked:
            await asyncio.sleep(0.001)
        refused = await post(client, call_of(1))
        forecaster.go_on.set()
        return await asyncio.gather(*waiting), refused, await post(client, call_of(1))

    answered, refused, later = with_client(forecaster, work, Settings(max_waiting_calls=2))
    assert [answer.status_code for answer in answered] == [200, 200] and later.status_code == 200
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "busy"
    assert int(refused.headers["retry-after"]) >= 1


def test_bodies_that_wait_are_bounded_by_their_bytes() -> None:
    answer = with_client(Recording(), lambda client: post(client, call_of(9)), Settings(max_waiting_bytes=100))
    assert answer.status_code == 429


@pytest.mark.parametrize("count", [1, 3 * PART])
def test_a_deadline_that_passes_ends_the_call(count: int) -> None:
    forecaster = Recording(slow_from=PART)

    async def work(client: Client) -> httpx.Response:
        first = asyncio.create_task(post(client, call_of(PART + 1)))
        while not forecaster.asked:
            await asyncio.sleep(0.001)
        late = asyncio.create_task(post(client, call_of(count), endcast_deadline_ms="20"))
        await asyncio.sleep(0.1)
        forecaster.go_on.set()
        await first
        return await late

    late = with_client(forecaster, work, Settings())
    assert late.status_code == 504 and late.json()["error"]["code"] == "deadline_passed"
    assert sum(forecaster.asked) <= PART + 1 + PART


@pytest.mark.parametrize("told", ["0", "-1", "soon", "1.5", "999999999", ""])
def test_a_deadline_that_is_none_is_refused(told: str) -> None:
    answer = with_client(Recording(), lambda client: post(client, call_of(1), endcast_deadline_ms=told), Settings())
    assert answer.status_code == 422 and answer.json()["error"]["field"] == "endcast-deadline-ms"


@pytest.mark.parametrize(
    "told",
    ["application/json", "application/json; charset=utf-8", "application/problem+json", "text/plain", None,
     "application/x-www-form-urlencoded"],
)  # fmt: skip
def test_content_that_may_be_json_is_read(told: str | None) -> None:
    headers = {} if told is None else {"content-type": told}

    async def work(client: Client) -> httpx.Response:
        return await client.post("/v1/forecasts", content=json.dumps(call_of(1)), headers=headers)

    assert with_client(Recording(), work, Settings()).status_code == 200


@pytest.mark.parametrize(
    "told", ["text/html", "application/octet-stream", "multipart/form-data; boundary=x", "application/json; charset=utf-16"]
)  # fmt: skip
def test_other_content_is_refused(told: str) -> None:
    async def work(client: Client) -> httpx.Response:
        return await client.post("/v1/forecasts", content=json.dumps(call_of(1)), headers={"content-type": told})

    refused = with_client(Recording(), work, Settings())
    assert refused.status_code == 415 and refused.json()["error"]["field"] == "content-type"


def test_changes_wait_for_long_calls_and_for_nobody_else() -> None:
    async def run() -> list[str]:
        turns, seen = Turns(), list[str]()

        async def change() -> None:
            async with turns.change():
                seen.append("change")

        async def long() -> None:
            async with turns.long_call(), turns.turn():
                seen.append("long")

        async with turns.long_call():
            changing = asyncio.create_task(change())
            await asyncio.sleep(0)
            later = asyncio.create_task(long())
            async with turns.turn():
                seen.append("small")
            await asyncio.sleep(0.01)
            seen.append("end")
        await asyncio.gather(changing, later)
        return seen

    assert asyncio.run(run()) == ["small", "end", "change", "long"]


def test_all_parts_of_a_long_call_see_one_state() -> None:
    """Completions that come while it is on its way are taken in after it."""
    forecaster = ConstantHazardForecaster(0.01)

    async def run() -> tuple[int, int]:
        app = create_app(Settings(), forecaster)
        turns = app.state.context.bundles.current.turns
        request = decode_call(b'{"requests": [{"prompt_tokens": 1}]}', Settings()).landmarks[0].request
        async with Client(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            answer = asyncio.create_task(post(client, call_of(30 * PART)))
            await asyncio.sleep(0.005)
            async with turns.change():
                forecaster.observe([Completion(request=request, output_tokens=3)])
            return (await answer).json()["state_version"], forecaster.state_version

    told, now = asyncio.run(run())
    assert now == 1 and told in (0, 1)


def outcome(decode: Callable[[bytes, Settings], Call], body: bytes) -> object:
    try:
        return decode(body, Settings(max_requests=20))
    except ServiceError as error:
        return error.status, error.code, error.field


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
REQUEST = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(-1, 5) | st.just(True)},
    optional={"prompt": st.text(max_size=8), "attributes": ANY, "x": ANY, "output": st.text('"\\[]{},:é', max_size=8)},
)
CALLS = st.fixed_dictionaries(
    {"requests": st.lists(REQUEST, max_size=4)},
    optional={"horizons": st.lists(st.integers(-1, 9), max_size=2), "curve": ANY, "requests ": ANY},
)


@settings(deadline=None, max_examples=300)
@given(CALLS, st.booleans())
def test_a_long_body_is_read_as_a_short_one(call: dict[str, Any], spaced: bool) -> None:
    separators = (" ,\n", " :\t") if spaced else (",", ":")
    body = json.dumps(call, separators=separators, ensure_ascii=spaced).encode("utf-8", "surrogatepass")
    long, short = outcome(decode_long_call, body), outcome(decode_call, body)
    if not isinstance(short, tuple) or not isinstance(long, tuple):
        assert long == short
    else:  # of several faults, they may name different ones
        assert long[0] in (400, 422) and short[0] in (400, 422)


@settings(deadline=None, max_examples=300)
@given(st.text('{}[]",:\\requsts1 \n', max_size=60) | st.text(max_size=30), st.data())
def test_no_long_body_is_read_that_is_not_read_as_a_short_one(text: str, data: st.DataObject) -> None:
    whole = json.dumps(call_of(2))
    at = data.draw(st.integers(0, len(whole)))
    for body in (text, whole[:at] + text + whole[at:], whole[:at]):
        raw = body.encode("utf-8", "surrogatepass")
        long, short = outcome(decode_long_call, raw), outcome(decode_call, raw)
        if not isinstance(long, tuple):
            assert long == short
        elif not isinstance(short, tuple):  # keys with escapes, or said twice, are read in short bodies only
            assert long[2] == "requests"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"requests": [{"prompt_tokens": 1}, {"prompt_tokens": -1}]}', "requests[1].prompt_tokens"),
        (b'{"requests": [{"prompt_tokens": 1, "parameters": {"temperature": NaN}}]}', "requests[0].parameters.temperature"),
        (b'{"requests": [{"prompt_tokens": 1e309}]}', "requests[0].prompt_tokens"),
        (b'{"requests": [3]}', "requests[0]"),
        (b'{"requests": [{"prompt_tokens": 1}], "horizons": [0]}', "horizons[0]"),
        (b'{"requests": [' + b",".join([b'{"prompt_tokens":1}'] * 21) + b"]}", "requests"),
        (b'{"requests": [], "horizons": [' + b",".join([b"16"] * 50_000) + b"]}", "body"),
        (b'{"requests": [], "requests": []}', "requests"),
        (b"[" * 1_000, "body"),
    ],
)  # fmt: skip
def test_fields_of_long_bodies_are_named(body: bytes, field: str) -> None:
    assert outcome(decode_long_call, body) == (422, "invalid_field", field)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"requests": [{}', b'{"requests": [{},]}', b'{"requests": []} x', b"\xff"]
)
def test_long_bodies_that_are_no_json_are_malformed(body: bytes) -> None:
    found = outcome(decode_long_call, body)
    assert isinstance(found, tuple) and found[:2] in ((400, "malformed_json"), (422, "invalid_field"))


def test_health_answers_while_long_calls_run() -> None:
    """The slowest of many health checks during batches of 4,096 is far from a batch's time."""

    async def work(client: Client) -> tuple[float, float]:
        await post(client, call_of(PART + 1))  # compiled by now
        started = time.perf_counter()
        long = [asyncio.create_task(post(client, call_of(4_096))) for _ in range(2)]
        waits = []
        while not all(task.done() for task in long):
            asked = time.perf_counter()
            assert (await client.get("/healthz")).status_code == 200
            waits.append(time.perf_counter() - asked)
            await asyncio.sleep(0.002)
        assert len(waits) > 3
        return sorted(waits)[len(waits) // 2], time.perf_counter() - started

    median, whole = with_client(ConstantHazardForecaster(0.01), work, Settings())
    assert median < whole / 4, (median, whole)
