"""POST /v1/forecasts: what it answers, and what it refuses, field by field."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from endcast import Completion, Forecast, InputError, Landmark, Request
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster, OracleForecaster

Call = Callable[..., httpx.Response]
REQUEST: dict[str, Any] = {
    "request_id": "r1",
    "arrival": 1700000000.1,
    "model": "m",
    "tenant": "t",
    "session": "s",
    "prompt_tokens": 374,
    "prompt": "Say it",
    "context_limit": 8192,
    "parameters": {"max_tokens": 512, "temperature": 0.7, "tools": None, "anything": {"else": [1, 2]}},
    "prefix_blocks": [1, 2],
    "generated_tokens": 64,
    "output": "text so far",
}


class RecordingForecaster(ConstantHazardForecaster):
    """Keeps the landmarks that it was asked for."""

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        self.asked = list(landmarks)
        return super().forecast(landmarks)


def post(service: Call, body: Any = None, *, raw: bytes | None = None, **headers: str) -> httpx.Response:
    if raw is not None:
        return service("POST", "/v1/forecasts", content=raw, headers=headers)
    return service("POST", "/v1/forecasts", json=body, headers=headers)


def refused(response: httpx.Response, status: int = 422) -> dict[str, Any]:
    """The error of a refusal, checked to be small and of its declared shape."""
    assert response.status_code == status, response.text
    assert len(response.content) < 4_000
    error = response.json()["error"]
    assert set(error) <= {"code", "message", "field", "hint"} and error["message"]
    return dict(error)


def test_the_documented_call(service: Call) -> None:
    response = post(service, {"horizons": [16, 64], "quantiles": [0.5, 0.9], "curve": False, "requests": [REQUEST]})
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["bundle"] == "constant-hazard" and body["state_version"] == 0
    (forecast,) = body["forecasts"]
    assert set(forecast) == {
        "forecast_id", "request_id", "p_end", "expected_within", "expected_remaining", "expected_output_tokens",
        "quantiles", "known",
    }  # fmt: skip
    assert forecast["request_id"] == "r1"
    assert forecast["p_end"] == pytest.approx({"16": 1 - 0.99**16, "64": 1 - 0.99**64})
    assert forecast["expected_within"] == pytest.approx({"16": (1 - 0.99**16) / 0.01, "64": (1 - 0.99**64) / 0.01})
    assert forecast["quantiles"] == {"0.5": math.ceil(math.log(0.5) / math.log(0.99)), "0.9": 230.0}
    assert forecast["expected_remaining"] == pytest.approx((1 - 0.99**448) / 0.01)  # cap 512, 64 generated
    assert forecast["expected_output_tokens"] == pytest.approx(64 + forecast["expected_remaining"])
    assert forecast["known"]["model"] is True


def test_everything_reaches_the_forecaster(make_service: Callable[..., Call]) -> None:
    forecaster = RecordingForecaster()
    post(make_service(forecaster), {"requests": [REQUEST]})
    expected = Request(
        request_id="r1", arrival_s=1700000000.1, prompt_tokens=374, prompt="Say it", model="m", tenant="t", session="s",
        max_tokens=512, context_limit=8192, prefix_blocks=(1, 2), parameters=REQUEST["parameters"],
    )  # fmt: skip
    assert forecaster.asked == [Landmark(request=expected, generated_tokens=64, output="text so far")]


@pytest.mark.parametrize("only", [{"prompt_tokens": 0}, {"prompt": ""}, {"messages": []}], ids=str)
def test_all_else_is_optional(make_service: Callable[..., Call], only: dict[str, Any]) -> None:
    forecaster = RecordingForecaster()
    body = post(make_service(forecaster), {"requests": [only]}).json()
    assert body["forecasts"][0]["request_id"] is None
    assert list(body["forecasts"][0]["p_end"]) == ["16", "32", "64", "80", "128"]
    assert list(body["forecasts"][0]["quantiles"]) == ["0.5", "0.9"]
    asked = forecaster.asked[0]
    assert asked.generated_tokens == 0 and asked.output is None
    assert asked.request.cap is None and asked.request.model is None and asked.request.arrival_s is None


def test_null_is_unknown(make_service: Callable[..., Call]) -> None:
    forecaster = RecordingForecaster()
    nothing = dict.fromkeys(REQUEST) | {"prompt_tokens": 3}
    response = post(make_service(forecaster), {"requests": [nothing], "horizons": None, "curve": None})
    assert response.status_code == 200
    assert forecaster.asked == [Landmark(request=Request(request_id="", prompt_tokens=3))]


def test_the_smallest_cap_applies(service: Call) -> None:
    near = {"prompt_tokens": 10, "generated_tokens": 95, "parameters": {"max_tokens": 200}, "context_limit": 110}
    also = {
        "prompt_tokens": 10,
        "generated_tokens": 95,
        "parameters": {"max_tokens": 200, "max_completion_tokens": 100},
    }
    past = {"prompt_tokens": 10, "generated_tokens": 300, "parameters": {"max_tokens": 200}}
    body = post(service, {"requests": [near, also, past], "horizons": [4, 5, 128], "curve": True}).json()
    for forecast in body["forecasts"][:2]:
        assert forecast["p_end"]["4"] < 0.05 and forecast["p_end"]["5"] == forecast["p_end"]["128"] == 1.0
        assert forecast["expected_remaining"] <= 5 and forecast["quantiles"]["0.9"] <= 5
        assert forecast["curve"]["survival"][5] == 0.0
    assert body["forecasts"][2]["expected_remaining"] == 0.0 and body["forecasts"][2]["p_end"]["4"] == 1.0


def test_a_curve_is_a_survival_function(service: Call) -> None:
    body = post(service, {"requests": [{"prompt_tokens": 1}], "curve": True}).json()
    curve = body["forecasts"][0]["curve"]
    tokens, survival = curve["further_tokens"], curve["survival"]
    assert tokens[:129] == list(range(129)) and tokens == sorted(set(tokens)) and tokens[-1] == 131_072
    assert survival[0] == 1.0 and survival == sorted(survival, reverse=True)
    assert survival == pytest.approx([0.99**t for t in tokens], abs=1e-7)


def test_windows_and_quantiles_are_answered_once_each(service: Call) -> None:
    body = post(service, {"requests": [{"prompt_tokens": 1}], "horizons": [9, 3, 9], "quantiles": [0.9, 0.10, 0.9]})
    forecast = body.json()["forecasts"][0]
    assert list(forecast["p_end"]) == list(forecast["expected_within"]) == ["3", "9"]
    assert list(forecast["quantiles"]) == ["0.1", "0.9"]


def test_no_windows_and_no_quantiles(service: Call) -> None:
    forecast = post(service, {"requests": [{"prompt_tokens": 1}], "horizons": [], "quantiles": []}).json()["forecasts"][
        0
    ]
    assert forecast["p_end"] == forecast["expected_within"] == forecast["quantiles"] == {}
    assert forecast["expected_remaining"] == pytest.approx(100.0)


def test_no_requests_no_forecasts(service: Call) -> None:
    assert post(service, {"requests": []}).json() == {"bundle": "constant-hazard", "state_version": 0, "forecasts": []}


def test_forecasts_come_in_order_whatever_tables_they_share(make_service: Callable[..., Call]) -> None:
    class OneAtATime(OracleForecaster):
        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            alone = [OracleForecaster(self.output_tokens) for _ in landmarks]  # a table each
            return [alone[i].forecast([landmark])[0] for i, landmark in enumerate(landmarks)]

    lengths = {f"r{i}": 10 + 7 * i for i in range(20)}
    requests = [{"request_id": name, "prompt_tokens": 1} for name in reversed(lengths)]
    for forecaster in (OracleForecaster(lengths), OneAtATime(lengths)):
        forecasts = post(make_service(forecaster), {"requests": requests}).json()["forecasts"]
        assert [f["request_id"] for f in forecasts] == list(reversed(lengths))
        assert [f["quantiles"]["0.5"] for f in forecasts] == [lengths[f["request_id"]] for f in forecasts]
        assert len({f["forecast_id"] for f in forecasts}) == 20


def test_the_state_version_is_the_forecasts_own(make_service: Callable[..., Call]) -> None:
    forecaster = ConstantHazardForecaster()
    forecaster.observe([Completion(request=Request(request_id="a"), output_tokens=3)] * 17)
    assert post(make_service(forecaster), {"requests": [{"prompt_tokens": 1}]}).json()["state_version"] == 17


NUMBER_FIELDS = (
    "arrival", "prompt_tokens", "context_limit", "generated_tokens", "parameters.max_tokens", "parameters.temperature",
    "parameters.n", "parameters.top_p", "prefix_blocks[0]",
)  # fmt: skip
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e309", "-1e309", "true", '"3"', "[]", "{}", "9" * 400, "9" * 5000)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda v: v[:12])
@pytest.mark.parametrize("field", NUMBER_FIELDS)
def test_what_is_no_number_names_its_field(service: Call, field: str, value: str) -> None:
    name, _, rest = field.partition(".")
    if field.endswith("[0]"):
        member = f'"{field[:-3]}": [{value}]'
    else:
        member = f'"{name}": {{"{rest}": {value}}}' if rest else f'"{name}": {value}'
    given = member if name == "prompt_tokens" else f'"prompt_tokens": 1, {member}'
    error = refused(post(service, raw=f'{{"requests": [{{"prompt_tokens": 5}}, {{{given}}}]}}'.encode()))
    assert error["field"] == f"requests[1].{field}" and error["code"] == "invalid_field"


@pytest.mark.parametrize("field", [f for f in NUMBER_FIELDS if f != "prefix_blocks[0]"])
def test_negative_numbers_are_refused(service: Call, field: str) -> None:
    name, _, rest = field.partition(".")
    request = {"prompt_tokens": 1} | {name: {rest: -1} if rest else -1}
    assert refused(post(service, {"requests": [request]}))["field"] == f"requests[0].{field}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "requests"),
        ({"requests": None}, "requests"),
        ({"requests": [None]}, "requests[0]"),
        ({"requests": {}}, "requests"),
        ([], "body"),
        ("text", "body"),
        ({"requests": [{}]}, "requests[0]"),
        ({"requests": [{"prompt_tokens": 1}, {"model": "m"}]}, "requests[1]"),
        ({"requests": [{"prompt": "a", "messages": []}]}, "requests[0].messages"),
        ({"requests": [], "horizon": [1]}, "horizon"),
        ({"requests": [{"prompt_tokens": 1, "max_tokens": 5}]}, "requests[0].max_tokens"),
        ({"requests": [], "horizons": [0]}, "horizons[0]"),
        ({"requests": [], "horizons": [16, -1]}, "horizons[1]"),
        ({"requests": [], "horizons": [100_000_001]}, "horizons[0]"),
        ({"requests": [], "horizons": [1.5]}, "horizons[0]"),
        ({"requests": [], "horizons": 16}, "horizons"),
        ({"requests": [], "horizons": list(range(1, 66))}, "horizons"),
        ({"requests": [], "quantiles": [0]}, "quantiles[0]"),
        ({"requests": [], "quantiles": [0.5, 1.0]}, "quantiles[1]"),
        ({"requests": [], "quantiles": ["0.5"]}, "quantiles[0]"),
        ({"requests": [], "curve": 1}, "curve"),
        ({"requests": [{"prompt_tokens": 100_000_001}]}, "requests[0].prompt_tokens"),
        ({"requests": [{"prompt_tokens": 1, "context_limit": 0}]}, "requests[0].context_limit"),
        ({"requests": [{"prompt_tokens": 1, "arrival": 1.1e12}]}, "requests[0].arrival"),
        ({"requests": [{"prompt_tokens": 1, "model": 5}]}, "requests[0].model"),
        ({"requests": [{"prompt_tokens": 1, "model": "m" * 513}]}, "requests[0].model"),
        ({"requests": [{"prompt_tokens": 1, "output": 5}]}, "requests[0].output"),
        ({"requests": [{"prompt_tokens": 1, "parameters": []}]}, "requests[0].parameters"),
        ({"requests": [{"prompt_tokens": 1, "parameters": {"max_tokens": 0}}]}, "requests[0].parameters.max_tokens"),
        ({"requests": [{"prompt_tokens": 1, "parameters": {"stop": [1]}}]}, "requests[0].parameters.stop[0]"),
        ({"requests": [{"prompt_tokens": 1, "prefix_blocks": [2**63]}]}, "requests[0].prefix_blocks[0]"),
        ({"requests": [{"prompt_tokens": 1, "prefix_blocks": ["a"]}]}, "requests[0].prefix_blocks[0]"),
        ({"requests": [{"messages": "hello"}]}, "requests[0].messages"),
        ({"requests": [{"messages": ["hello"]}]}, "requests[0].messages[0]"),
        ({"requests": [{"messages": [{"content": 5}]}]}, "requests[0].messages[0].content"),
        ({"requests": [{"messages": [{}, {"content": [5]}]}]}, "requests[0].messages[1].content[0]"),
        ({"requests": [{"messages": [{"content": [{"text": 5}]}]}]}, "requests[0].messages[0].content[0].text"),
        ({"requests": [{"messages": [{"role": 5}]}]}, "requests[0].messages[0].role"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_a_refusal_names_the_field(service: Call, body: Any, field: str) -> None:
    assert refused(post(service, body))["field"] == field


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"requests", b'{"requests": []} {}', b"\xff\xfe", b'{"requests": [{"prompt": "\xff"}]}', b"[" * 100_000,
     b'{"requests": [{"prompt": "\\ud800"}]}', b'{"requests": [{"prompt_tokens": 1, "attributes": {"a": ' + b"[" * 9999,
     b'0.0{"requests": []}', b'{"requests": [{"prompt_tokens": 64.0}]}}'],
)  # fmt: skip
def test_what_is_no_json_is_malformed(service: Call, raw: bytes) -> None:
    response = post(service, raw=raw)
    if raw.startswith(b"[["):  # an array is no object, whatever is in it
        assert refused(response)["field"] == "body"
    else:
        assert refused(response, 400)["code"] == "malformed_json"


def test_a_fraction_is_named_beside_a_number_of_thousands_of_digits(service: Call) -> None:
    raw = b'{"requests": [{"prompt_tokens": 1.5, "attributes": {"x": %b}}]}' % (b"1" * 5_000)
    assert refused(post(service, raw=raw))["field"] == "requests[0].prompt_tokens"


def test_a_nan_in_a_free_object_is_found(service: Call) -> None:
    raw = b'{"requests": [{"prompt_tokens": 1, "attributes": {"x": [1, {"y": NaN}]}}]}'
    assert refused(post(service, raw=raw))["field"] == "requests[0].attributes.x[1].y"


def test_messages_of_every_shape(service: Call) -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:"}}, "plain"]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []},
        {},
    ]
    assert post(service, {"requests": [{"messages": messages}]}).status_code == 200


SECRET = "a secret that the client wrote"


@pytest.mark.parametrize(
    "request_",
    [
        {"prompt": SECRET, "prompt_tokens": SECRET},
        {"prompt": SECRET, "messages": []},
        {"messages": [{"content": [SECRET, 5]}]},
        {"prompt": SECRET, "output": SECRET, "generated_tokens": -1},
        {"prompt": SECRET, "parameters": {"max_tokens": SECRET}},
        {"prompt": SECRET, "model": SECRET * 100},
    ],
    ids=",".join,
)
def test_a_refusal_repeats_nothing(service: Call, request_: dict[str, Any]) -> None:
    assert SECRET not in post(service, {"requests": [request_]}).text


def test_an_answer_repeats_no_text(service: Call) -> None:
    text = post(service, {"requests": [{"prompt": SECRET, "output": SECRET, "tenant": SECRET}]}).text
    assert SECRET not in text


def test_the_name_of_an_unknown_field_is_cut(service: Call) -> None:
    error = refused(post(service, {"requests": [], "x" * 100_000: 1}))
    assert len(error["field"]) < 130


def test_too_many_requests_in_one_call(make_service: Callable[..., Call]) -> None:
    service = make_service(settings=Settings(max_requests=3))
    assert post(service, {"requests": [{"prompt_tokens": 1}] * 3}).status_code == 200
    error = refused(post(service, {"requests": [{"prompt_tokens": 1}] * 4}))
    assert error["field"] == "requests" and "at most 3" in error["message"]


def test_calls_do_not_run_into_each_other() -> None:
    """One forecaster, many calls at once, some in the event loop and some beside it: never two at a time."""

    class Alone(ConstantHazardForecaster):
        inside = 0

        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            self.inside += 1
            assert self.inside == 1
            time.sleep(0.002)
            self.inside -= 1
            return super().forecast(landmarks)

    app = create_app(Settings(inline_body_bytes=200), Alone())

    async def all_at_once() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            bodies = [{"requests": [{"prompt_tokens": 1}] * (1 + 40 * (i % 2))} for i in range(20)]
            calls = [client.post("/v1/forecasts", json=body) for body in bodies]
            return [len(response.json()["forecasts"]) for response in await asyncio.gather(*calls)]

    assert asyncio.run(all_at_once()) == [1, 41] * 10


def test_too_large_a_body(make_service: Callable[..., Call]) -> None:
    service = make_service(settings=Settings(max_body_bytes=1_000))
    fits = {"requests": [{"prompt": "x" * 900}]}
    assert post(service, fits).status_code == 200
    assert refused(post(service, {"requests": [{"prompt": "x" * 1_000}]}), 413)["code"] == "body_too_large"
    assert refused(post(service, raw=b"{}", **{"content-length": "9" * 30}), 413)["code"] == "body_too_large"


def test_too_large_a_body_of_unknown_length(make_service: Callable[..., Call]) -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 600

    service = make_service(settings=Settings(max_body_bytes=1_000))
    assert refused(service("POST", "/v1/forecasts", content=endless()), 413)["code"] == "body_too_large"


def test_a_compressed_body_is_refused(service: Call) -> None:
    assert refused(post(service, raw=b"\x1f\x8b", **{"content-encoding": "gzip"}), 415)["code"] == "encoded_body"


def test_what_the_forecaster_refuses_is_the_callers_fault(make_service: Callable[..., Call]) -> None:
    class Picky(ConstantHazardForecaster):
        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            raise InputError("tenant", f"must not be {SECRET}", hint="Name another")

    error = refused(post(make_service(Picky()), {"requests": [{"prompt_tokens": 1}]}))
    assert error["field"] == "tenant" and error["hint"] == "Name another" and SECRET not in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 0},
        {"max_requests": 0},
        {"inline_body_bytes": -1},
        {"default_horizons": (0,)},
        {"default_quantiles": (1.0,)},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)
