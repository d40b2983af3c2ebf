"""Logs: one JSON object a line, the call's id on each, and nothing of what was asked unless it is wanted."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Forecast, Landmark
from endcast.serving.app import create_app
from endcast.serving.operations.logs import JsonFormatter, TextFormatter, configure_logging, request_id, sane_request_id
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster

Call = Callable[..., httpx.Response]
BODY = {"requests": [{"prompt": "a secret prompt", "generated_tokens": 3, "output": "a secret output"}]}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., io.StringIO]]:
    """Configures logging into a text for one test, and puts it back as it was."""
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level

    def configure(**settings: Any) -> io.StringIO:
        stream = io.StringIO()
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # another test's server may have set them up
            monkeypatch.setattr(logging.getLogger(name), "propagate", True)
            logging.getLogger(name).setLevel(logging.NOTSET)
        configure_logging(Settings(**settings), stream)
        return stream

    yield configure
    logging.captureWarnings(False)
    root.handlers[:], root.level = kept, level
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def calls(stream: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in lines(stream) if line["logger"] == "endcast.calls"]


def test_a_call_is_one_line_without_what_it_asked(service: Call, log: Callable[..., io.StringIO]) -> None:
    stream = log()
    answer = service("POST", "/v1/forecasts", json=BODY, headers={"x-request-id": "abc-1"})
    (line,) = calls(stream)
    assert answer.headers["x-request-id"] == "abc-1"
    assert line.pop("time").endswith("+00:00") and line.pop("seconds") > 0 and line.pop("process") > 0
    assert line == {
        "level": "info", "logger": "endcast.calls", "message": "call", "request_id": "abc-1", "method": "POST",
        "path": "/v1/forecasts", "status": 200, "bytes_sent": len(answer.content), "caller": None,
    }  # fmt: skip
    assert "secret" not in stream.getvalue()


def test_bodies_are_logged_if_they_are_asked_for(
    make_service: Callable[..., Call], log: Callable[..., io.StringIO]
) -> None:
    settings = Settings(log_prompts=True)
    stream = log(log_prompts=True)
    make_service(settings=settings)("POST", "/v1/forecasts", json=BODY)
    (line,) = calls(stream)
    assert json.loads(line["body"]) == BODY
    make_service(settings=settings)("POST", "/v1/forecasts", content=b"x" * 100_000)
    assert len(calls(stream)[1]["body"]) == 16_384


def test_levels_follow_the_answer(service: Call, log: Callable[..., io.StringIO]) -> None:
    stream = log(log_level="debug")
    service("POST", "/v1/forecasts", content=b"{")
    service("GET", "/healthz")
    service("GET", "/nowhere/" + "x" * 999)
    told = [(line["level"], line["status"]) for line in calls(stream)]
    assert told == [("warning", 400), ("debug", 200), ("warning", 404)]
    assert len(calls(stream)[2]["path"]) == 200
    stream = log()
    service("GET", "/healthz")
    assert calls(stream) == []


def test_a_failure_is_logged_with_its_traceback_and_id(log: Callable[..., io.StringIO]) -> None:
    class Broken(ConstantHazardForecaster):
        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            raise RuntimeError("inner detail")

        def forecast_batch(self, landmarks: Any, horizon: int) -> Any:
            raise RuntimeError("inner detail")

    async def once() -> httpx.Response:
        app = create_app(Settings(), Broken())

        async def broken(_request: Any) -> Any:
            raise RuntimeError("inner detail")

        app.add_route("/broken", broken)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client:
            return await client.get("/broken", headers={"x-request-id": "abc-2"})

    stream = log()
    answer = asyncio.run(once())
    assert answer.status_code == 500 and answer.headers["x-request-id"] == "abc-2"
    assert answer.json()["error"]["code"] == "internal" and "inner detail" not in answer.text
    failure, call = calls(stream)
    assert failure["level"] == "error" and "inner detail" in failure["traceback"]
    assert call["level"] == "error" and call["status"] == 500
    assert failure["request_id"] == call["request_id"] == "abc-2"


def test_ids_do_not_leak_from_call_to_call(service: Call, log: Callable[..., io.StringIO]) -> None:
    stream = log()
    for told in ("one", "two"):
        service("POST", "/v1/forecasts", json=BODY, headers={"x-request-id": told})
    service("POST", "/v1/forecasts", json=BODY)
    ids = [line["request_id"] for line in calls(stream)]
    assert ids[:2] == ["one", "two"] and len(ids[2]) == 16
    assert request_id.get() is None


@given(st.text())
def test_only_plain_ids_are_taken_over(told: str) -> None:
    kept = sane_request_id(told)
    plain = told.isascii() and 0 < len(told) <= 128 and all(c.isalnum() or c in "._:/=+-" for c in told)
    assert (kept == told) == plain and kept.isprintable() and len(kept) <= 128


@given(message=st.text(st.characters()), value=st.text(st.characters()) | st.integers() | st.floats() | st.none())
def test_any_record_is_one_line_of_json(message: str, value: Any) -> None:
    record = logging.LogRecord("a.b", logging.INFO, "f", 1, message.replace("%", "%%"), (), None)
    record.fields = {"value": value}
    line = JsonFormatter().format(record)
    assert "\n" not in line and json.loads(line)["level"] == "info"
    assert "\n" not in TextFormatter().format(record).removeprefix(record.getMessage()).split("value=")[-1]


def test_text_for_people(log: Callable[..., io.StringIO], service: Call) -> None:
    stream = log(log_format="text")
    service("POST", "/v1/forecasts", json=BODY)
    assert "info    endcast.calls: call process=" in stream.getvalue() and "status=200" in stream.getvalue()


def test_everything_goes_through_the_same_format(log: Callable[..., io.StringIO]) -> None:
    stream = log()
    logging.getLogger("uvicorn.error").error("bad\nthing")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    told = [(line["logger"], line["message"].split("\n")[0][:9]) for line in lines(stream)]
    assert told[0] == ("uvicorn.error", "bad")
    assert told[1][0] == "py.warnings"
