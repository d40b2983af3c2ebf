"""The status page without a browser: its figures, its markup, and what its security policy allows."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import re
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.settings import Settings
from endcast.serving.status.activity import Activity, quantile
from endcast.serving.status.routes import page
from endcast.serving.status.schema import StatusReply
from endcast.testing import ConstantHazardForecaster, ManualClock

Call = Callable[..., httpx.Response]


class Parsed(html.parser.HTMLParser):
    """Ids, references and texts of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.parts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href"):
                self.loads.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.parts.setdefault(self._inside, data)


def test_the_page_loads_nothing_and_its_policy_fits_it(service: Call) -> None:
    answer = service("GET", "/")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    parsed = Parsed(answer.text)
    assert parsed.loads == ["data:,"] and parsed.handlers == []
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parsed.parts[tag].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_every_element_that_the_script_names_is_there_once() -> None:
    parsed = Parsed(page()[0])
    named = set(re.findall(r'(?:byId|table|tiles)\("([a-z-]+)"', parsed.parts["script"]))
    assert len(named) > 15 and named <= set(parsed.ids)
    assert len(set(parsed.ids)) == len(parsed.ids)


def test_the_script_puts_nothing_in_as_markup() -> None:
    script = Parsed(page()[0]).parts["script"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


def test_every_figure_that_the_script_reads_is_declared() -> None:
    script = Parsed(page()[0]).parts["script"]
    read = set(re.findall(r"\btold\.([a-z_]+)", script))
    assert read == set(StatusReply.__struct_fields__) - {"state_version", "process"} | (read & {"process"})


def test_figures_of_a_service_that_did_something(make_service: Callable[..., Call]) -> None:
    manifest = {"model": "lightgbm", "columns": ["a"] * 999, "files": {"x": "y"}, "training": {"requests": 5}}
    service = make_service(ConstantHazardForecaster(bundle="sha256:abc"), manifest=manifest)
    service("POST", "/v1/forecasts", json={"requests": [{"prompt_tokens": 1}] * 3})
    service("POST", "/v1/forecasts", content=b"{")
    answer = service("GET", "/v1/status")
    told = msgspec.json.decode(answer.content, type=StatusReply)
    assert (told.status, told.bundle, told.processes) == ("ready", "sha256:abc", 1)
    assert told.card == {"model": "lightgbm", "training": {"requests": 5}}
    (rate,) = told.rates
    assert rate.forecasts_per_s > 0 and rate.calls_per_s == pytest.approx(rate.forecasts_per_s * 2 / 3)
    assert rate.errors_per_s == pytest.approx(rate.calls_per_s / 2)
    assert rate.p50_s is not None and rate.p99_s is not None and 0 < rate.p50_s <= rate.p99_s
    assert json.loads(answer.content)["drift"] is None


def test_the_figures_need_a_key_and_the_page_does_not(make_service: Callable[..., Call]) -> None:
    service = make_service(settings=Settings(api_keys=("k" * 16,)))
    assert service("GET", "/").status_code == 200
    assert service("GET", "/v1/status").status_code == 401
    assert service("GET", "/v1/status", headers={"authorization": f"Bearer {'k' * 16}"}).status_code == 200


def test_rates_are_of_the_stretches_between_samples() -> None:
    metrics, clock = Metrics(), ManualClock(1_000.0)
    activity = Activity(metrics, clock)
    for calls, seconds in ((10, 5.0), (0, 5.0), (4, 2.0)):
        for _ in range(calls):
            metrics.seconds.labels("/v1/forecasts", 200).observe(0.02)
            metrics.seconds.labels("/healthz", 200).observe(3.0)
            metrics.landmarks.observe(64)
        clock.advance(seconds)
        if seconds == 5.0:
            activity.sample()
    rates = activity.rates()
    assert [rate.at for rate in rates] == [1_005.0, 1_010.0, 1_012.0]
    assert [rate.calls_per_s for rate in rates] == [2.0, 0.0, 2.0]
    assert [rate.forecasts_per_s for rate in rates] == [128.0, 0.0, 128.0]
    assert [rate.p50_s for rate in rates] == [pytest.approx(0.0175), None, pytest.approx(0.0175)]


def test_samples_are_bounded_and_a_clock_that_jumps_back_does_no_harm() -> None:
    clock = ManualClock(5_000.0)
    activity = Activity(Metrics(), clock)
    for _ in range(500):
        clock.advance(5.0)
        activity.sample()
    clock.now_s -= 1_000.0
    activity.sample()
    assert len(activity.rates()) <= 121
    assert all(math.isfinite(rate.calls_per_s) for rate in activity.rates())


@given(counts=st.lists(st.integers(0, 50), min_size=4, max_size=4), q=st.floats(0.01, 0.99))
def test_a_quantile_lies_in_its_bucket(counts: list[int], q: float) -> None:
    bounds = (0.1, 0.5, 2.0, float("inf"))
    upto: dict[float, float] = {}
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        upto[bound] = float(total)
    found = quantile(upto, q)
    if total == 0:
        assert found is None
        return
    assert found is not None
    right = next(bound for bound in bounds if upto[bound] >= q * total)
    left = max((bound for bound in bounds if bound < right), default=0.0)
    assert left <= found <= min(right, 2.0)


def test_nothing_that_is_not_finite_is_answered(service: Call) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    json.loads(service("GET", "/v1/status").content, parse_constant=refuse)
