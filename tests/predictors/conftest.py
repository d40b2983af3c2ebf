"""Requests that forecasts are asked for in these tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from endcast import Landmark, Request
from endcast.datasets.synth import SynthLog
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.training.train import Trained

#: Requests of which little or nothing is known, and such as nobody trained on.
ODD_REQUESTS = (
    Request(request_id="nothing"),
    Request(request_id="", prompt=""),
    Request(request_id="one character", prompt="x", prompt_tokens=1),
    Request(request_id="half a million", prompt="long " * 100_000, prompt_tokens=100_000_000),
    Request(request_id="emoji", prompt="\U0001f469\u200d\U0001f680 \u200f\u05e9\u05dc\u05d5\u05dd \x00"),
    Request(request_id="surrogates", prompt="\ud800x\udfff", model="\ud800", tenant="\udfff", session="\ud800"),
    Request(request_id="unseen", model="never met", tenant="nobody", session="new", prompt="Xin chào, đây là câu hỏi"),
    Request(request_id="no messages", messages=()),
    Request(
        request_id="odd messages", messages=({}, {"content": None}, {"role": 5, "content": [None, 3, {"text": 1}]})
    ),
    Request(request_id="blocks", prefix_blocks=(0, -(2**63), 2**63 - 1, *range(3000))),
    Request(request_id="long ago", arrival_s=-1e12),
    Request(request_id="far away", arrival_s=1e12, context_limit=1, prompt_tokens=5),
    Request(
        request_id="parameters",
        parameters={
            "temperature": float("nan"),
            "top_p": float("inf"),
            "n": 10**400,
            "stop": {"a": 1},
            "tools": "search",
            "tool_choice": ["auto"],
            "response_format": {"type": ["json"]},
            "chat_template_kwargs": [],
            "reasoning_effort": {},
            "min_tokens": -5,
            "ignore_eos": "yes",
        },
    ),
)


@pytest.fixture(scope="session")
def odd_requests() -> tuple[Request, ...]:
    """Requests of which little or nothing is known, and such as nobody trained on."""
    return ODD_REQUESTS


@pytest.fixture(scope="session")
def landmarks(small_log: SynthLog) -> Sequence[Landmark]:
    """The log's last 40 requests and the odd ones, at different places of their generation."""
    log = list(small_log.trace.requests())[-40:]
    return [Landmark(request=request, generated_tokens=37 * i % 700) for i, request in enumerate([*log, *ODD_REQUESTS])]


@pytest.fixture(scope="session")
def frozen(trained: Trained) -> OnnxForecaster:
    """The forecaster of each family's bundle; nobody lets it observe anything."""
    return load_forecaster(trained.path)


@pytest.fixture
def forecaster(trained: Trained) -> OnnxForecaster:
    """The same, loaded anew for each test."""
    return load_forecaster(trained.path)


@pytest.fixture(scope="module")
def learning(trained: Trained) -> OnnxForecaster:
    """The same, for tests that let it observe more and more."""
    return load_forecaster(trained.path)
