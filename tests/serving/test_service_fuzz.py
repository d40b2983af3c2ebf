"""Whatever is sent: an answer of 200 or 4xx, never a 500, never a number that is not finite, never beyond a cap."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

import endcast
from endcast import Forecaster
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster

FORECASTERS: list[Forecaster] = [
    *(ConstantHazardForecaster(hazard) for hazard in (1e-9, 0.01, 0.999)),
    endcast.cold_start(),
    endcast.kaplan_meier([1, 5, 5, 80, 2_000], [True, True, False, True, True]),
]
APPS = [create_app(Settings(max_body_bytes=100_000), forecaster) for forecaster in FORECASTERS]

COUNT = st.one_of(st.integers(0, 2_000), st.integers(-2, 10**9))
NUMBER = st.one_of(COUNT, st.floats(), st.booleans(), st.text(max_size=3), st.none())
TEXT = st.one_of(st.text(max_size=20), st.none())
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PARAMETERS = st.fixed_dictionaries(
    {}, optional={"max_tokens": NUMBER, "max_completion_tokens": NUMBER, "temperature": NUMBER, "stop": JSON, "x": JSON}
)


def request_of(number: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "request_id": TEXT, "arrival": number, "model": TEXT, "tenant": TEXT, "session": TEXT, "prompt_tokens": number,
        "prompt": TEXT, "messages": JSON, "context_limit": number, "parameters": PARAMETERS, "prefix_blocks": JSON,
        "generated_tokens": number, "output": TEXT, "attributes": JSON, "surprise": JSON,
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional=optional)


CALL = st.fixed_dictionaries(
    {"requests": st.lists(request_of(NUMBER), max_size=3) | JSON},
    optional={
        "horizons": st.lists(NUMBER, max_size=4) | JSON,
        "quantiles": st.lists(NUMBER, max_size=4),
        "curve": SCALAR,
    },
)
PLAUSIBLE = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 10**8), "generated_tokens": st.integers(0, 10**8)},
    optional={
        "context_limit": st.integers(1, 10**8),
        "parameters": st.fixed_dictionaries({"max_tokens": st.integers(1, 3_000) | st.integers(1, 10**8)}),
    },
)


def post(app: Any, body: bytes) -> httpx.Response:
    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            return await client.post("/v1/forecasts", content=body)

    return asyncio.run(once())


def check_forecasts(body: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    for forecast, request in zip(body["forecasts"], requests, strict=True):
        generated = request.get("generated_tokens") or 0
        parameters = request.get("parameters") or {}
        caps = [parameters.get("max_tokens"), parameters.get("max_completion_tokens")]
        if request.get("context_limit") and request.get("prompt_tokens") is not None:
            caps.append(max(request["context_limit"] - request["prompt_tokens"], 1))
        room = min((max(cap - generated, 0) for cap in caps if cap is not None), default=math.inf)
        ends = [forecast["p_end"][h] for h in sorted(forecast["p_end"], key=int)]
        within = [forecast["expected_within"][h] for h in sorted(forecast["p_end"], key=int)]
        assert ends == sorted(ends) and all(0 <= p <= 1 for p in ends)
        assert within == sorted(within)
        assert all(p == 1.0 for h, p in forecast["p_end"].items() if int(h) >= room)
        assert all(0 <= value <= min(int(h), room) for h, value in forecast["expected_within"].items())
        assert 0 <= forecast["expected_remaining"] <= room
        assert all(0 <= r <= room for r in forecast["quantiles"].values())
        assert forecast["expected_output_tokens"] >= generated
        if "curve" in forecast:
            survival = forecast["curve"]["survival"]
            assert survival == sorted(survival, reverse=True) and survival[0] == (1.0 if room > 0 else 0.0)


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} in an answer")


def check(app: Any, body: bytes) -> None:
    response = post(app, body)
    answer = json.loads(response.content, parse_constant=refuse_constant)
    if response.status_code == 200:
        check_forecasts(answer, json.loads(body)["requests"])
    else:
        assert response.status_code in (400, 413, 422) and len(response.content) < 4_000
        assert answer["error"]["code"] in ("malformed_json", "invalid_field", "body_too_large")


@given(app=st.sampled_from(APPS), call=CALL)
@settings(deadline=None, max_examples=200)
def test_any_json(app: Any, call: dict[str, Any]) -> None:
    check(app, json.dumps(call).encode())  # writes NaN and Infinity, as careless clients do


@given(app=st.sampled_from(APPS), body=st.binary(max_size=60))
@settings(deadline=None, max_examples=100)
def test_any_bytes(app: Any, body: bytes) -> None:
    check(app, body)


@given(
    app=st.sampled_from(APPS),
    requests=st.lists(PLAUSIBLE, min_size=1, max_size=4),
    horizons=st.lists(st.integers(1, 10**8) | st.integers(1, 300), max_size=5),
    quantiles=st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=4),
    curve=st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_any_plausible_call_is_answered(
    app: Any, requests: list[dict[str, Any]], horizons: list[int], quantiles: list[float], curve: bool
) -> None:
    body = json.dumps({"requests": requests, "horizons": horizons, "quantiles": quantiles, "curve": curve}).encode()
    assert post(app, body).status_code == 200
    check(app, body)
