"""``POST /v1/outcomes``: joined, counted once, refused in words, durable over restarts; never a 500."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endcast import BundleError, Completion
from endcast.datasets.read import read
from endcast.forecaster import Forecaster
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.disk import Calls
from endcast.serving.outcomes.service import OutcomeService
from endcast.testing import ConstantHazardForecaster


class Service:
    """A service that runs, called without a network."""

    def __init__(self, app: Any, client: httpx.AsyncClient) -> None:
        self.app, self.client = app, client

    @property
    def outcomes(self) -> OutcomeService:
        found: OutcomeService = self.app.state.context.outcomes
        return found

    async def forecast(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.client.post("/v1/forecasts", json={"requests": list(requests)})
        assert answer.status_code == 200, answer.text
        made: list[dict[str, Any]] = answer.json()["forecasts"]
        return made

    async def tell(self, *outcomes: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.post("/v1/outcomes", json={"outcomes": list(outcomes)})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@asynccontextmanager
async def running(
    service_settings: Settings | None = None, forecaster: Forecaster | None = None, calls: Calls | None = None
) -> AsyncIterator[Service]:
    app = create_app(service_settings or Settings(), forecaster or ConstantHazardForecaster(0.01))
    if calls is not None:
        app.state.context.outcomes._calls = calls
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
    async with app.router.lifespan_context(app), client:
        yield Service(app, client)


def live(work: Callable[[Service], Awaitable[None]], *args: Any, **kwargs: Any) -> None:
    """Run ``work`` with a service."""

    async def run() -> None:
        async with running(*args, **kwargs) as service:
            await work(service)

    asyncio.run(run())


def request(name: str, **more: Any) -> dict[str, Any]:
    return {"request_id": name, "prompt_tokens": 9, **more}


def test_outcomes_are_joined_by_either_id_and_count_once() -> None:
    async def work(service: Service) -> None:
        a, b, nameless = await service.forecast(request("a"), request("b"), {"prompt_tokens": 3})
        (later,) = await service.forecast(request("a", generated_tokens=20))
        told = await service.tell(
            {"forecast_id": later["forecast_id"], "output_tokens": 30},
            {"request_id": "a", "output_tokens": 30},
            {"request_id": "b", "output_tokens": 5, "end": "length"},
            {"forecast_id": nameless["forecast_id"], "output_tokens": 7},
        )
        assert told["statuses"] == ["accepted", "duplicate", "accepted", "accepted"]
        assert (told["accepted"], told["duplicate"], told["durable"]) == (3, 1, False)
        again = await service.tell(
            {"forecast_id": a["forecast_id"], "output_tokens": 30},
            {"forecast_id": b["forecast_id"], "output_tokens": 5},
            {"forecast_id": nameless["forecast_id"], "output_tokens": 7},
            {"request_id": "b", "output_tokens": 6},
        )
        assert again["statuses"] == ["duplicate"] * 4
        figures = await service.outcomes.fresh_figures()
        assert figures.taken == 3 and figures.live.calibration.forecasts == 4
        assert figures.statuses == {"accepted": 3, "pending": 0, "duplicate": 5, "late": 0, "unknown": 0}
        bundle = await service.client.get("/v1/bundle")
        assert bundle.json()["state_version"] == 3

    live(work)


def test_forecasters_are_told_in_order_of_the_end_with_what_was_known() -> None:
    forecaster = ConstantHazardForecaster(0.01)

    async def work(service: Service) -> None:
        await service.forecast(
            request(
                "x", model="m", tenant="t", session="s", arrival=50.0, parameters={"max_tokens": 40, "tools": [{}]}
            ),
            request("y", prefix_blocks=[1, 2], attributes={"k": 1, "long": "z" * 99}),
        )
        await service.tell(
            {"request_id": "x", "output_tokens": 40, "end": "length", "finished": 200.0},
            {"request_id": "y", "output_tokens": 3, "end": "abort", "finished": 100.0},
        )
        first, second = forecaster.observed
        assert (first.request.request_id, first.output_tokens, first.end, first.finished_s) == ("y", 3, "abort", 100.0)
        assert first.request.prefix_blocks == (1, 2) and first.request.attributes == {"k": 1}
        assert first.request.arrival_s is not None  # when it was first forecast
        told = second.request
        assert (told.model, told.tenant, told.session, told.arrival_s, told.max_tokens) == ("m", "t", "s", 50.0, 40)
        assert told.parameters == {"max_tokens": 40, "tools": [{}]}

    live(work, forecaster=forecaster)


def test_unknown_and_late_ones_are_said_to_be_so() -> None:
    async def work(service: Service) -> None:
        (old,) = await service.forecast(request("old"))
        await service.forecast(*(request(f"new{i}") for i in range(4)))
        told = await service.tell(
            {"forecast_id": old["forecast_id"], "output_tokens": 3},
            {"request_id": "old", "output_tokens": 3},
            {"request_id": "never", "output_tokens": 3},
            {"forecast_id": "f-deadbeef-7", "output_tokens": 3},
            {"request_id": "new3", "output_tokens": 3},
        )
        assert told["statuses"] == ["late", "late", "unknown", "unknown", "accepted"]

    live(work, Settings(ledger_forecasts=3))


def test_a_generation_that_was_never_forecast_may_be_told_with_its_request(tmp_path: Path) -> None:
    forecaster = ConstantHazardForecaster(0.01)
    outcome = {"request_id": "r", "output_tokens": 30, "finished": 1700000010.0, "request": {"prompt_tokens": 5000}}

    async def work(service: Service) -> None:
        assert (await service.tell(outcome))["statuses"] == ["accepted"]
        assert (await service.tell(outcome))["statuses"] == ["duplicate"]

    live(work, Settings(outcome_log=tmp_path), forecaster)
    (completion,) = forecaster.observed
    assert completion.request.prompt_tokens == 5000
    assert completion.request.arrival_s == pytest.approx(1700000010.0 - 0.2 - 0.5 - 0.9)
    assert read(tmp_path).trace.table["request_id"].to_pylist() == ["r"]


def test_a_restart_knows_what_was_acknowledged(tmp_path: Path) -> None:
    kept = Settings(outcome_log=tmp_path / "log")
    ids: list[str] = []

    async def first(service: Service) -> None:
        made = await service.forecast(*(request(f"r{i}") for i in range(5)), {"prompt_tokens": 1})
        ids.extend(one["forecast_id"] for one in made)
        told = await service.tell(
            {"forecast_id": ids[0], "output_tokens": 11},
            *({"request_id": f"r{i}", "output_tokens": 10 + i} for i in range(1, 4)),
            {"forecast_id": ids[5], "output_tokens": 16},
        )
        assert told["statuses"] == ["accepted"] * 5 and told["durable"]

    async def second(service: Service) -> None:
        assert [c.request.request_id for c in forecaster.observed] == ["r0", "r1", "r2", "r3", f"f:{ids[5]}"]
        assert (await service.client.get("/readyz")).json()["state_version"] == 5
        told = await service.tell(
            *({"request_id": f"r{i}", "output_tokens": 10 + i} for i in range(5)),
            {"forecast_id": ids[0], "output_tokens": 11},
            {"forecast_id": ids[5], "output_tokens": 16},
        )
        assert told["statuses"] == ["duplicate"] * 4 + ["unknown"] + ["duplicate"] * 2
        assert (await service.outcomes.fresh_figures()).live.outcomes == 5  # live measures come back as well

    live(first, kept)
    forecaster = ConstantHazardForecaster(0.01)
    live(second, kept, forecaster)


def test_the_service_says_what_it_found_after_a_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "outcomes-00000001.jsonl").write_bytes(b'not a line of ours\n{"outcome_log":1,"key":"r:torn","at":17')
    with caplog.at_level("INFO", logger="endcast.outcomes"):
        live(_nothing, Settings(outcome_log=tmp_path))
    (said,) = [one for one in caplog.records if one.message == "outcome log read"]
    assert said.levelname == "WARNING"
    assert said.__dict__["fields"] == {"outcomes": 0, "torn_lines": 1, "damaged_lines": 1}


async def _nothing(service: Service) -> None:
    assert (await service.client.get("/readyz")).status_code == 200


def test_texts_are_kept_only_if_wanted(tmp_path: Path) -> None:
    secret = {"prompt": "the secret prompt", "parameters": {"system": "a secret " * 20, "stop": ["\n"]}}

    async def work(service: Service) -> None:
        await service.forecast({"request_id": "r", **secret, "output": "secret text", "generated_tokens": 3})
        await service.tell({"request_id": "r", "output_tokens": 5, "output": "secret text and more"})

    live(work, Settings(outcome_log=tmp_path / "without"))
    assert "secret" not in (tmp_path / "without" / "outcomes-00000001.jsonl").read_text()
    live(work, Settings(outcome_log=tmp_path / "with", outcome_texts=True))
    (row,) = read(tmp_path / "with").trace.table.to_pylist()
    assert (row["prompt"], row["output"]) == ("the secret prompt", "secret text and more")


def test_a_full_disk_is_503_and_acknowledges_nothing(tmp_path: Path) -> None:
    full = [False]

    def write(file: int, data: bytes) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data)

    forecaster = ConstantHazardForecaster(0.01)

    async def work(service: Service) -> None:
        await service.forecast(request("a"), request("b"))
        full[0] = True
        refused = await service.client.post(
            "/v1/outcomes", json={"outcomes": [{"request_id": "a", "output_tokens": 3}]}
        )
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "outcomes_unavailable" and len(refused.content) < 4_096
        assert not forecaster.observed
        assert (await service.client.post("/v1/forecasts", json={"requests": [request("c")]})).status_code == 200
        full[0] = False
        assert (await service.tell({"request_id": "a", "output_tokens": 3}))["statuses"] == ["accepted"]
        assert len(forecaster.observed) == 1
        assert (await service.outcomes.fresh_figures()).refused == 1

    live(work, Settings(outcome_log=tmp_path), forecaster, Calls(write=write))
    assert len(read(tmp_path).trace) == 1


def test_a_clock_that_jumps_loses_nothing(tmp_path: Path) -> None:
    now = [1_700_000_000.0]

    async def work(service: Service) -> None:
        for i, jump in enumerate((0.0, 1e8, -3e8, 5.0)):
            await service.forecast(request(f"r{i}"))
            now[0] += jump
            assert (await service.tell({"request_id": f"r{i}", "output_tokens": 3}))["statuses"] == ["accepted"]
        await service.forecast(request("waits"))
        now[0] += 1e9  # what waits is aged by a steady clock
        assert (await service.tell({"request_id": "waits", "output_tokens": 3}))["statuses"] == ["accepted"]

    live(
        work,
        Settings(outcome_log=tmp_path, outcome_segment_bytes=4_096, outcome_keep_days=1.0),
        calls=Calls(clock=lambda: now[0]),
    )
    assert len(read(tmp_path).trace) == 5


def test_learning_can_be_switched_off() -> None:
    forecaster = ConstantHazardForecaster(0.01)

    async def work(service: Service) -> None:
        await service.forecast(request("a"))
        assert (await service.tell({"request_id": "a", "output_tokens": 3}))["accepted"] == 1
        assert not forecaster.observed and (await service.outcomes.fresh_figures()).live.outcomes == 1

    live(work, Settings(learn_from_outcomes=False), forecaster)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "outcomes"),
        ({"outcomes": {}}, "outcomes"),
        ({"outcomes": [3]}, "outcomes[0]"),
        ({"outcomes": [{"output_tokens": 3}]}, "outcomes[0]"),
        ({"outcomes": [{"request_id": "", "output_tokens": 3}]}, "outcomes[0]"),
        ({"outcomes": [{"request_id": "a"}]}, "outcomes[0].output_tokens"),
        ({"outcomes": [{"request_id": "a", "output_tokens": -1}]}, "outcomes[0].output_tokens"),
        ({"outcomes": [{"request_id": "a", "output_tokens": True}]}, "outcomes[0].output_tokens"),
        ({"outcomes": [{"request_id": "a", "output_tokens": "3"}]}, "outcomes[0].output_tokens"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 10**30}]}, "outcomes[0].output_tokens"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 3, "end": "STOP"}]}, "outcomes[0].end"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 3, "finished": -1}]}, "outcomes[0].finished"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 3, "finnished": 1}]}, "outcomes[0].finnished"),
        ({"outcomes": [{"request_id": "a" * 513, "output_tokens": 3}]}, "outcomes[0].request_id"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 3, "request": {}}]}, "outcomes[0].request"),
        ({"outcomes": [{"request_id": "a", "output_tokens": 3}] * (Settings().max_requests + 1)}, "outcomes"),
    ],
)
def test_what_is_wrong_is_named(make_service: Callable[..., Any], body: dict[str, Any], field: str) -> None:
    answer = make_service()("POST", "/v1/outcomes", json=body)
    assert answer.status_code == 422 and answer.json()["error"]["field"] == field


def test_an_outcome_and_its_request_with_different_ids_contradict_each_other(make_service: Callable[..., Any]) -> None:
    body = {"outcomes": [{"request_id": "a", "output_tokens": 3, "request": request("b")}]}
    answer = make_service()("POST", "/v1/outcomes", json=body)
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], told["field"]) == (409, "contradiction", "outcomes[0].request.request_id")
    assert len(answer.content) < 4_096


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e309"])
def test_numbers_that_are_none_are_named(make_service: Callable[..., Any], number: str) -> None:
    body = f'{{"outcomes": [{{"request_id": "a", "output_tokens": 3, "finished": {number}}}]}}'
    answer = make_service()("POST", "/v1/outcomes", content=body)
    assert answer.status_code == 422 and answer.json()["error"]["field"] == "outcomes[0].finished"


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
_OUTCOME = st.fixed_dictionaries(
    {},
    optional={
        "forecast_id": st.sampled_from(["f-1", "f-deadbeef-3", "-", "é\x00"]) | _VALUE,
        "request_id": st.text(max_size=5) | _VALUE,
        "output_tokens": st.integers(0, 10**8) | _VALUE,
        "end": st.sampled_from(["stop", "length", "abort", "error", "unfinished"]) | _VALUE,
        "finished": st.floats(0, 1e12) | _VALUE,
        "request": st.fixed_dictionaries({"prompt_tokens": st.integers(0, 9)}) | _VALUE,
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outcomes=st.lists(_OUTCOME, max_size=4) | _VALUE)
def test_any_json_is_answered_and_never_with_a_500(make_service: Callable[..., Any], outcomes: Any) -> None:
    answer = make_service()("POST", "/v1/outcomes", json={"outcomes": outcomes})
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        assert len(answer.json()["statuses"]) == len(outcomes)


def test_many_callers_at_once_are_written_in_groups(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        await service.forecast(*(request(f"r{i}") for i in range(200)))
        each = await asyncio.gather(*(service.tell({"request_id": f"r{i}", "output_tokens": i}) for i in range(200)))
        assert [told["statuses"] for told in each] == [["accepted"]] * 200
        assert (await service.outcomes.fresh_figures()).commits < 150

    live(work, Settings(outcome_log=tmp_path))
    assert len(read(tmp_path).trace) == 200


def test_forecasts_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    """While an outcome waits for a slow disk, forecasts and health are answered."""
    go_on = threading.Event()

    def fsync(file: int) -> None:
        assert go_on.wait(20)
        os.fsync(file)

    async def work(service: Service) -> None:
        await service.forecast(request("a"))
        telling = asyncio.create_task(service.tell({"request_id": "a", "output_tokens": 3}))
        await asyncio.sleep(0.05)
        await service.forecast(request("b"))
        assert (await service.client.get("/healthz")).status_code == 200 and not telling.done()
        go_on.set()
        assert (await telling)["statuses"] == ["accepted"]

    live(work, Settings(outcome_log=tmp_path), calls=Calls(fsync=fsync))


def test_beyond_its_queue_the_service_refuses_and_says_when_to_come_back(tmp_path: Path) -> None:
    go_on = threading.Event()

    def fsync(file: int) -> None:
        assert go_on.wait(20)
        os.fsync(file)

    async def work(service: Service) -> None:
        object.__setattr__(service.outcomes.open()._limits, "queue", 3)
        await service.forecast(*(request(f"r{i}") for i in range(9)))
        writing = asyncio.create_task(service.tell({"request_id": "r0", "output_tokens": 3}))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(
            service.tell(*({"request_id": f"r{i}", "output_tokens": 3} for i in range(1, 6)))
        )  # more than the queue, but nothing waits before it
        await asyncio.sleep(0.05)
        refused = await service.client.post(
            "/v1/outcomes", json={"outcomes": [{"request_id": "r7", "output_tokens": 3}]}
        )
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        go_on.set()
        assert (await writing)["accepted"] == 1 and (await waiting)["accepted"] == 5
        assert (await service.tell({"request_id": "r7", "output_tokens": 3}))["accepted"] == 1

    live(work, Settings(outcome_log=tmp_path), calls=Calls(fsync=fsync))


def test_a_forecaster_that_refuses_an_outcome_goes_without_it() -> None:
    class Choosy(ConstantHazardForecaster):
        def observe(self, completions: Sequence[Completion]) -> None:
            if completions[0].request.request_id == "bad":
                raise BundleError("cannot")
            super().observe(completions)

    forecaster = Choosy(0.01)

    async def work(service: Service) -> None:
        await service.forecast(request("bad"), request("good"))
        told = await service.tell(*({"request_id": name, "output_tokens": 3} for name in ("bad", "good")))
        assert told["accepted"] == 2
        assert [c.request.request_id for c in forecaster.observed] == ["good"]
        assert service.outcomes.lessons.refused == 1

    live(work, forecaster=forecaster)
