"""API keys: which calls they open, and that nothing tells what they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from endcast.errors import EndcastError
from endcast.serving.api.problems import ServiceError
from endcast.serving.context import Access
from endcast.serving.operations.auth import CALLER, is_loopback, key_guard, keys_of
from endcast.serving.operations.settings import Settings
from endcast.testing import ConstantHazardForecaster

FORECAST, OTHER, ADMIN = "forecast-key-0001", "forecast-key-0002", "admin-key-00000001"
BOTH = Settings(api_keys=(f"gateway:{FORECAST}", OTHER), admin_keys=(ADMIN,))
Call = Callable[..., httpx.Response]


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw})


def status_of(settings: Settings, access: Access, **headers: str) -> int:
    try:
        key_guard(settings)(request(**headers), access)
    except ServiceError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("headers", "call", "admin"),
    [
        ({}, 401, 401),
        ({"authorization": f"Bearer {FORECAST}"}, 200, 403),
        ({"authorization": f"bearer  {OTHER}"}, 200, 403),
        ({"x_api_key": FORECAST}, 200, 403),
        ({"authorization": f"Bearer {ADMIN}"}, 200, 200),
        ({"authorization": f"Basic {ADMIN}"}, 401, 401),
        ({"authorization": ADMIN}, 401, 401),
        ({"authorization": "Bearer"}, 401, 401),
        ({"authorization": f"Bearer {ADMIN}x"}, 401, 401),
        ({"authorization": f"Bearer {ADMIN[:-1]}"}, 401, 401),
        ({"authorization": f"Bearer gateway:{FORECAST}"}, 401, 401),
        ({"authorization": "Bearer \xe9\xff"}, 401, 401),
        ({"x_api_key": ""}, 401, 401),
    ],
    ids=str,
)
def test_what_a_key_opens(headers: dict[str, str], call: int, admin: int) -> None:
    assert status_of(BOTH, Access.OPEN, **headers) == 200
    assert status_of(BOTH, Access.CALL, **headers) == call
    assert status_of(BOTH, Access.ADMIN, **headers) == admin


@pytest.mark.parametrize(
    ("settings", "call", "admin"),
    [
        (Settings(), 200, 200),
        (Settings(host="::1"), 200, 200),
        (Settings(host="0.0.0.0"), 200, 403),
        (Settings(api_keys=(FORECAST,)), 401, 401),
        (Settings(admin_keys=(ADMIN,)), 200, 401),
    ],
    ids=["local", "local6", "open", "forecast", "admin"],
)
def test_without_a_key(settings: Settings, call: int, admin: int) -> None:
    """Admin calls are never open to other machines."""
    assert status_of(settings, Access.CALL) == call
    assert status_of(settings, Access.ADMIN) == admin


def test_forecast_keys_alone_open_no_admin_call() -> None:
    assert status_of(Settings(api_keys=(FORECAST,)), Access.ADMIN, x_api_key=FORECAST) == 403


def test_the_callers_name_is_kept_for_the_log() -> None:
    told = request(x_api_key=FORECAST)
    key_guard(BOTH)(told, Access.CALL)
    assert told.scope[CALLER] == "gateway"
    told = request(x_api_key=OTHER)
    key_guard(BOTH)(told, Access.CALL)
    assert told.scope[CALLER] == "key-2"


def test_keys_from_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the gateways\n\n  a:{OTHER}\n{ADMIN}\n")
    keys = keys_of(Settings(api_keys=(FORECAST,), api_keys_file=file))
    assert [(key.name, key.admin) for key in keys] == [("key-1", False), ("a", False), ("key-3", False)]
    assert FORECAST not in repr(keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short", r"keys line 1: must be KEY or NAME:KEY, the key 16 to 256"),
        (f"{FORECAST}\nwith space in the key", r"keys line 2: must be KEY"),
        (f"na me:{FORECAST}", r"keys line 1: must have a name"),
        ("# nothing", r"keys holds no key"),
        ("schlüssel-schlüssel", r"keys are ASCII"),
        (f"a:{FORECAST}\nb:{FORECAST}", r"the keys named a and b are the same"),
    ],
)
def test_a_wrong_key_is_said_without_repeating_it(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(EndcastError, match=message) as error:
        keys_of(Settings(api_keys_file=file))
    assert FORECAST not in str(error.value) and "with space" not in str(error.value)


def test_a_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(EndcastError, match="cannot read the keys in"):
        keys_of(Settings(admin_keys_file=tmp_path / "none"))


def test_the_same_key_for_both_kinds_is_refused() -> None:
    with pytest.raises(EndcastError, match="the same"):
        keys_of(Settings(api_keys=(ADMIN,), admin_keys=(ADMIN,)))


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.1", False),
                                             ("example.org", False), ("0.0.0.0", False)])  # fmt: skip
def test_what_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_over_http(make_service: Callable[..., Call], caplog: pytest.LogCaptureFixture) -> None:
    service = make_service(settings=BOTH)
    body: dict[str, Any] = {"requests": [{"prompt_tokens": 1}]}
    with caplog.at_level(logging.DEBUG):
        refused = service("POST", "/v1/forecasts", json=body, headers={"authorization": f"Bearer {FORECAST}x"})
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "unauthenticated"
        granted = service("POST", "/v1/forecasts", json=body, headers={"authorization": f"Bearer {FORECAST}"})
        assert granted.status_code == 200
    assert service("GET", "/healthz").status_code == service("GET", "/readyz").status_code == 200
    assert service("GET", "/v1/bundle").status_code == 401
    assert FORECAST not in refused.text + str(refused.headers)
    told = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "gateway" in told and FORECAST not in told


@pytest.mark.parametrize("public", [False, True])
def test_metrics_need_a_key_unless_they_are_public(make_service: Callable[..., Call], public: bool) -> None:
    service = make_service(settings=Settings(api_keys=(FORECAST,), public_metrics=public))
    assert service("GET", "/metrics").status_code == (200 if public else 401)
    assert service("GET", "/metrics", headers={"x-api-key": FORECAST}).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(host="0.0.0.0"),
        Settings(api_keys=(FORECAST,)),
        Settings(admin_keys=(ADMIN,)),
        BOTH,
        Settings(api_keys=(FORECAST,), admin_keys=(ADMIN,), public_metrics=True),
    ],
    ids=["local", "open", "forecast", "admin", "both", "metrics"],
)
def test_the_openapi_document_says_which_calls_need_a_key(
    make_service: Callable[..., Call], settings: Settings
) -> None:
    service = make_service(ConstantHazardForecaster(0.01), settings)
    for path, item in service("GET", "/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            status = service(method.upper(), path.replace("{stream_id}", "none")).status_code
            needed = operation["security"] != [] and {} not in operation["security"]
            assert needed == (status in (401, 403)), (method, path, status)
            if status in (401, 403):
                assert str(status) in operation["responses"]
            if FORECAST in settings.api_keys and operation["security"] != []:
                key = {"authorization": f"Bearer {FORECAST}"}
                told = service(method.upper(), path.replace("{stream_id}", "none"), headers=key).status_code
                assert (told == 403) == ("403" in operation["responses"]), (method, path, told)
