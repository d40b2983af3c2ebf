"""The routes around the forecasts: health, bundle, metrics, errors of HTTP itself, and the event loop."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import endcast
from endcast import Forecast, Landmark
from endcast.serving.api.openapi import document_text
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster

Call = Callable[..., httpx.Response]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_health(service: Call) -> None:
    response = service("GET", "/healthz")
    assert response.status_code == 200 and response.json() == {"status": "ok"}


def test_readiness_names_the_bundle(make_service: Callable[..., Call]) -> None:
    service = make_service(ConstantHazardForecaster(bundle="sha256:abc"))
    assert service("GET", "/readyz").json() == {"status": "ready", "bundle": "sha256:abc", "state_version": 0}


def test_the_bundle_tells_of_itself(make_service: Callable[..., Call]) -> None:
    service = make_service(ConstantHazardForecaster(bundle="sha256:abc"), manifest={"model": "lightgbm"})
    assert service("GET", "/v1/bundle").json() == {
        "bundle": "sha256:abc", "state_version": 0, "endcast": endcast.__version__, "manifest": {"model": "lightgbm"},
        "refused": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/forecasts", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v2/forecasts", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
    ],
)
def test_errors_of_http_have_the_same_shape(service: Call, method: str, path: str, status: int, code: str) -> None:
    response = service(method, path)
    assert response.status_code == status and response.json()["error"]["code"] == code


def samples(service: Call) -> dict[str, float]:
    """Each sample of /metrics by its name and labels."""
    response = service("GET", "/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    out = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            out[f"{sample.name}{{{labels}}}"] = sample.value
    return out


def test_metrics_count_what_happened(make_service: Callable[..., Call]) -> None:
    service = make_service(ConstantHazardForecaster(bundle="sha256:abc"))
    service("POST", "/v1/forecasts", json={"requests": [{"prompt_tokens": 1}] * 3})
    service("POST", "/v1/forecasts", json={"requests": [{}]})
    service("POST", "/v1/forecasts", content=b"{")
    service("GET", "/nowhere")
    seen = samples(service)
    assert seen["endcast_batch_landmarks_count{}"] == 1 and seen["endcast_batch_landmarks_sum{}"] == 3
    assert seen["endcast_request_seconds_count{route=/v1/forecasts,status=200}"] == 1
    assert seen["endcast_request_seconds_count{route=/v1/forecasts,status=422}"] == 1
    assert seen["endcast_errors_total{code=invalid_field}"] == 1
    assert seen["endcast_errors_total{code=malformed_json}"] == 1
    assert seen["endcast_errors_total{code=not_found}"] == 1
    assert seen["endcast_bundle_info{bundle=sha256:abc}"] == 1
    assert seen["endcast_state_version{}"] == 0


def test_two_services_count_apart(make_service: Callable[..., Call]) -> None:
    first, second = make_service(), make_service()
    first("POST", "/v1/forecasts", json={"requests": [{"prompt_tokens": 1}]})
    assert samples(second)["endcast_batch_landmarks_count{}"] == 0


def test_a_fault_of_ours_is_a_500_that_tells_nothing() -> None:
    class Broken(ConstantHazardForecaster):
        @property
        def state_version(self) -> int:
            raise RuntimeError("inner detail")

    app = create_app(Settings(), Broken())

    async def once() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get("/readyz"), await client.get("/v1/bundle")

    failed, _ = asyncio.run(once())
    assert failed.status_code == 500 and failed.json()["error"]["code"] == "internal"
    assert "inner detail" not in failed.text
    assert app.state.context.metrics.registry.get_sample_value("endcast_errors_total", {"code": "internal"}) == 2


def test_health_answers_while_a_batch_is_on_its_way() -> None:
    go_on = threading.Event()

    class Slow(ConstantHazardForecaster):
        def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
            assert go_on.wait(20), "health never answered"
            return super().forecast(landmarks)

    app = create_app(Settings(inline_body_bytes=10), Slow())

    async def both() -> tuple[int, int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            batch = asyncio.create_task(client.post("/v1/forecasts", json={"requests": [{"prompt_tokens": 1}]}))
            await asyncio.sleep(0.05)
            health = await client.get("/healthz")
            assert not batch.done()
            go_on.set()
            return health.status_code, (await batch).status_code

    assert asyncio.run(both()) == (200, 200)


def test_openapi_is_the_pinned_file(service: Call) -> None:
    pinned = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert document_text() == pinned, "run: python -m endcast.serving.api.openapi docs/openapi.json"
    response = service("GET", "/openapi.json")
    assert response.status_code == 200 and response.json() == json.loads(pinned)


def test_openapi_knows_every_route(service: Call) -> None:
    app: Any = create_app(Settings(), ConstantHazardForecaster())
    routes = {route.path for route in app.routes} - {"/openapi.json"}
    assert routes == set(json.loads(document_text())["paths"])


def test_every_field_is_documented() -> None:
    """docs/service.md names every property, parameter and error code that the API declares."""
    text = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    schemas = json.loads(document_text())["components"]["schemas"]
    declared = {name for schema in schemas.values() for name in schema.get("properties", {})}
    codes = set(re.findall(r'"([a-z_]+)"', (ROOT / "serving" / "api" / "problems.py").read_text())) | {
        "not_found",
        "method_not_allowed",
    }
    headers = {"connection", "close"}
    missing = sorted(name for name in (declared | codes) - headers if f"`{name}`" not in text)
    assert not missing, f"docs/service.md does not explain {missing}"


def test_a_wrong_method_is_told_all_right_ones(service: Call) -> None:
    assert service("PUT", "/v1/bundle/shadow").headers["allow"] == "DELETE, GET, HEAD, POST"


def test_whole_numbers_may_be_written_with_a_fraction_of_zero(service: Call) -> None:
    answer = service("POST", "/v1/forecasts", content=b'{"requests": [{"prompt_tokens": 64.0}], "horizons": [1.6e1]}')
    assert answer.status_code == 200 and list(answer.json()["forecasts"][0]["p_end"]) == ["16"]
    refused = service("POST", "/v1/forecasts", content=b'{"requests": [{"prompt_tokens": 64.5}]}')
    assert refused.status_code == 422 and refused.json()["error"]["field"] == "requests[0].prompt_tokens"
