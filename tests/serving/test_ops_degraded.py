"""When the model fails, callers get Kaplan-Meier, marked as such, and operators are told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from endcast import CurveTable, Forecast, InputError, Landmark
from endcast.predictors.product_limit import product_limit
from endcast.serving.operations.settings import Settings
from endcast.survival import FloatArray
from endcast.testing import ConstantHazardForecaster

Call = Callable[..., httpx.Response]
ASK: dict[str, Any] = {
    "requests": [{"request_id": "r", "prompt_tokens": 1, "generated_tokens": 10}],
    "horizons": [10],
    "curve": True,
}


class Fails(ConstantHazardForecaster):
    """Fails as it is told to; carries the Kaplan-Meier curve of three lengths."""

    def __init__(self, kind: str = "raises") -> None:
        super().__init__(0.01, bundle="sha256:abc")
        self.kind = kind

    kaplan_meier: FloatArray = product_limit([10, 20, 30])

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        if self.kind == "raises":
            raise RuntimeError("inner detail")
        if self.kind == "refuses":
            raise InputError("attributes.size", "must be a number")
        made = super().forecast(landmarks)
        if self.kind == "nan":
            table = CurveTable(self.table.edges, np.full((1, 2), np.nan), np.array([np.nan]))
            return [replace(each, batch=replace(each.batch, table=table)) for each in made]
        return made


def ask(service: Call, **more: Any) -> httpx.Response:
    return service("POST", "/v1/forecasts", json=ASK | more)


@pytest.mark.parametrize("inline", [0, 65_536], ids=["long", "small"])
@pytest.mark.parametrize("kind", ["raises", "nan"])
def test_kaplan_meier_answers_and_says_so(make_service: Callable[..., Call], kind: str, inline: int) -> None:
    answer = ask(make_service(Fails(kind), Settings(inline_body_bytes=inline)))
    assert answer.status_code == 200 and "inner detail" not in answer.text
    body = answer.json()
    (forecast,) = body["forecasts"]
    assert body["bundle"] == "sha256:abc" and forecast["request_id"] == "r"
    assert forecast["known"]["degraded"] is True and forecast["known"]["prior"] is False
    assert forecast["p_end"]["10"] == pytest.approx(0.5, abs=1e-6)


def test_one_without_a_curve_falls_back_to_the_prior(make_service: Callable[..., Call]) -> None:
    class Bare(Fails):
        kaplan_meier = None  # type: ignore[assignment]

    (forecast,) = ask(make_service(Bare())).json()["forecasts"]
    assert forecast["known"]["degraded"] is True and forecast["known"]["prior"] is True


def test_a_call_that_is_wrong_is_still_refused(make_service: Callable[..., Call]) -> None:
    answer = ask(make_service(Fails("refuses")))
    assert answer.status_code == 422 and answer.json()["error"]["field"] == "attributes.size"


def test_operators_are_told_once_and_when_it_is_over(
    make_service: Callable[..., Call], caplog: pytest.LogCaptureFixture
) -> None:
    forecaster = Fails()
    service = make_service(forecaster)
    with caplog.at_level(logging.INFO, "endcast.model"):
        ask(service)
        ask(service, requests=ASK["requests"] * 3)
        shown = service("GET", "/metrics").text
        assert "endcast_degraded 1.0" in shown and "endcast_degraded_forecasts_total 4.0" in shown
        assert service("GET", "/v1/status").json()["status"] == "degraded"
        forecaster.kind = "works"
        assert "degraded" not in ask(service).json()["forecasts"][0]["known"]
    told = [(record.levelname, record.getMessage(), bool(record.exc_info)) for record in caplog.records]
    assert told == [
        ("ERROR", "the model failed; Kaplan-Meier answers", True),
        ("INFO", "the model answers again", False),
    ]
    shown = service("GET", "/metrics").text
    assert "endcast_degraded 0.0" in shown and "endcast_degraded_forecasts_total 4.0" in shown
    assert "endcast_batch_landmarks_sum 5.0" in shown
