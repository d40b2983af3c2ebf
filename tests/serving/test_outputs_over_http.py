"""POST /v1/forecasts with the text so far: what streams and landmarks say, whatever JSON can carry."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from endcast import Forecast, Landmark, Request
from endcast.datasets.synth import SynthLog
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.serving.app import create_app
from endcast.serving.operations.settings import Settings
from endcast.training.train import Trained

Call = Callable[..., httpx.Response]
HORIZONS, QUANTILES = (1, 16, 64, 80, 128, 700), (0.1, 0.5, 0.9)
TEXT = "Sure! Here are some rivers:\n\n1. **Nile**: long.\n2. **Rhine**: wide.\n\nI hope this helps. Let me know"
#: Outputs that no log is made of.
ODD_OUTPUTS = (
    "x" * 200_000,
    "\ufffd\ufffd valid \ufffd" * 40,
    "\U0001f469\u200d\U0001f680\U0001f3fd e\u0301\u0323\u0301 \u200f\u05e9\u05dc\u05d5\u05dd \x00\u2028" * 30,
    "and again, and again, " * 18_000,
    "\n" * 5_000,
    "<think>" * 900 + "```" * 900 + '{"[(\\' * 900,
    "第一，" * 3_000 + "总之",
    " ",
)


@pytest.fixture(scope="module")
def forecaster(reading: Trained) -> OnnxForecaster:
    """The forecaster of the bundle that reads outputs."""
    return load_forecaster(reading.path)


@pytest.fixture
def reading_service(make_service: Callable[..., Call], forecaster: OnnxForecaster) -> Call:
    """A service of that bundle."""
    return make_service(forecaster)


def ask(service: Call, requests: Sequence[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """The forecasts of a call that must succeed; no number of the answer is NaN or infinite."""
    body = {"requests": list(requests), "horizons": HORIZONS, "quantiles": QUANTILES, **more}
    response = service("POST", "/v1/forecasts", content=json.dumps(body).encode())
    assert response.status_code == 200, response.text[:500]

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} in an answer")

    forecasts: list[dict[str, Any]] = json.loads(response.content, parse_constant=refuse)["forecasts"]
    return forecasts


def check_same(answer: dict[str, Any], told: Forecast) -> None:
    """An answer is what the forecaster itself said, to 1e-6."""
    for h in HORIZONS:
        assert answer["p_end"][str(h)] == pytest.approx(told.p_end(h), abs=1e-6)
        assert answer["expected_within"][str(h)] == pytest.approx(told.expected_within(h), rel=1e-6, abs=1e-6)
    for q in QUANTILES:
        assert answer["quantiles"][str(q)] == told.quantile(q)
    assert answer["expected_remaining"] == pytest.approx(told.expected_remaining, rel=1e-6)
    assert answer["expected_output_tokens"] == pytest.approx(told.expected_output_tokens, rel=1e-6)
    assert answer["known"] == dict(told.known)
    curve = answer["curve"]
    survival = [told.survival(h) for h in curve["further_tokens"]]
    assert curve["survival"] == pytest.approx(survival, abs=1e-6)
    assert (np.diff(curve["survival"]) <= 0.0).all()


def told_of(request: Request) -> dict[str, Any]:
    """A request as a call tells it; a cap goes with the parameters."""
    given = {
        "arrival": request.arrival_s,
        "model": request.model,
        "tenant": request.tenant,
        "session": request.session,
        "prompt_tokens": request.prompt_tokens,
        "prompt": request.prompt,
        "messages": None if request.messages is None else list(request.messages),
        "context_limit": request.context_limit,
        "parameters": {**request.parameters, "max_tokens": request.max_tokens},
        "prefix_blocks": list(request.prefix_blocks),
        "attributes": dict(request.attributes),
    }
    return {name: value for name, value in given.items() if value is not None}


def test_an_answer_is_what_a_stream_says(
    reading_service: Call, forecaster: OnnxForecaster, small_log: SynthLog
) -> None:
    """One hundred forecasts drawn at random: the service, which is told each text at once, and streams that read it in pieces."""
    rng, trace = random.Random(7), small_log.trace
    requests, outputs = list(trace.requests()), trace.table.column("output").to_pylist()
    landmarks = []
    for _ in range(100):
        row = rng.randrange(len(requests))
        text = rng.choice([outputs[row], TEXT, "", None])
        upto = rng.randrange(len(text) + 1) if text else 0
        output = None if text is None else text[:upto]
        landmarks.append(Landmark(request=requests[row], generated_tokens=rng.randrange(300), output=output))
    calls = [
        {**told_of(landmark.request), "generated_tokens": landmark.generated_tokens, "output": landmark.output}
        for landmark in landmarks
    ]
    answers = ask(reading_service, calls, curve=True)
    for answer, landmark in zip(answers, landmarks, strict=True):
        stream, text = forecaster.open(landmark.request), landmark.output or ""
        for start in range(0, len(text), 5):
            stream.append(text[start : start + 5], landmark.generated_tokens)
        stream.append("", landmark.generated_tokens)
        check_same(answer, stream.forecast())
    assert 30 < sum(answer["known"]["output"] for answer in answers) < 70


def test_one_call_or_many(reading_service: Call) -> None:
    """What shares a call with a request does not matter to it."""
    calls = [
        {"prompt": "List 7 rivers", "generated_tokens": 30, "output": TEXT[:cut]} for cut in (0, 1, 40, 80, len(TEXT))
    ] + [{"prompt_tokens": 9}, {"prompt": "List 7 rivers", "generated_tokens": 30}]
    together = ask(reading_service, calls)
    for answer, call in zip(together, calls, strict=True):
        (alone,) = ask(reading_service, [call])
        for figure in ("p_end", "expected_within", "quantiles"):
            assert answer[figure] == pytest.approx(alone[figure], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("without", [{"output": ""}, {"output": None}, {}], ids=str)
def test_without_text_it_is_the_forecast_at_admission(reading_service: Call, without: dict[str, Any]) -> None:
    request = {"prompt": "List 7 rivers, please.", "prompt_tokens": 30, "parameters": {"max_tokens": 400}}
    bare, empty, read, early = ask(
        reading_service,
        [
            {**request, "generated_tokens": 40},
            {**request, "generated_tokens": 40, **without},
            {**request, "generated_tokens": 40, "output": TEXT},
            {**request, "generated_tokens": 0, "output": TEXT},
        ],
    )
    same = ("p_end", "expected_within", "expected_remaining", "quantiles", "known")
    assert {name: bare[name] for name in same} == {name: empty[name] for name in same}
    assert read["p_end"] != bare["p_end"]
    assert [answer["known"]["output"] for answer in (bare, empty, read, early)] == [False, False, True, False]


@pytest.mark.parametrize("output", ODD_OUTPUTS, ids=lambda text: ascii(text[:12]))
def test_odd_outputs_are_forecast(reading_service: Call, output: str) -> None:
    counts = (1, 40, len(output) // 4 + 1, 1_000_000)
    requests = [{"prompt_tokens": 1, "generated_tokens": tokens, "output": output} for tokens in counts]
    for answer in ask(reading_service, requests, curve=True):
        assert answer["known"]["output"] and answer["expected_remaining"] >= 0.0
        ends = [answer["p_end"][str(h)] for h in HORIZONS]
        assert ends == sorted(ends) and ends[0] >= 0.0 and ends[-1] <= 1.0
        assert answer["curve"]["survival"][0] == 1.0 and (np.diff(answer["curve"]["survival"]) <= 0.0).all()


def test_prompts_of_any_size(reading_service: Call) -> None:
    prompts = ["", "x", "Name 3 rivers. " * 33_333]
    requests = [{"prompt": prompt, "generated_tokens": 30, "output": TEXT} for prompt in prompts]
    requests += [
        {"messages": [{"role": "user", "content": prompt}], "generated_tokens": 30, "output": TEXT}
        for prompt in prompts
    ]
    for answer in ask(reading_service, requests):
        assert answer["known"]["output"] and 0.0 <= answer["p_end"]["64"] <= 1.0


def test_text_that_json_cannot_carry_is_refused(reading_service: Call) -> None:
    body = b'{"requests": [{"prompt_tokens": 1, "generated_tokens": 3, "output": "\\ud800"}]}'
    response = reading_service("POST", "/v1/forecasts", content=body)
    assert response.status_code == 400 and response.json()["error"]["code"] == "malformed_json"


def test_too_long_an_output_is_refused_by_its_bytes(
    make_service: Callable[..., Call], forecaster: OnnxForecaster
) -> None:
    service = make_service(forecaster, Settings(max_body_bytes=10_000))
    response = service("POST", "/v1/forecasts", json={"requests": [{"prompt_tokens": 1, "output": "x" * 10_000}]})
    assert response.status_code == 413


def test_a_stream_forecasts_what_a_call_with_the_whole_text_does(reading: Trained) -> None:
    request = {"prompt": "Give three reasons.", "prompt_tokens": 8, "parameters": {"max_tokens": 400}}

    async def work(client: httpx.AsyncClient) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        stream = (await client.post("/v1/streams", json={"request": request})).json()
        assert stream["refresh_every"] == 32 and stream["generated_tokens"] == 0
        seen = []
        for i, start in enumerate(range(0, len(TEXT), 13)):
            body = {"text": TEXT[start : start + 13], "generated_tokens": 4 * (i + 1), "forecast": {"curve": True}}
            ours = (await client.post(f"/v1/streams/{stream['stream_id']}/append", json=body)).json()
            whole = {**request, "generated_tokens": 4 * (i + 1), "output": TEXT[: start + 13]}
            theirs = (await client.post("/v1/forecasts", json={"requests": [whole], "curve": True})).json()
            seen.append((ours["forecast"], theirs["forecasts"][0]))
        return seen

    async def run() -> list[tuple[dict[str, Any], dict[str, Any]]]:
        app = create_app(Settings(), load_forecaster(reading.path))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            return await work(client)

    for ours, theirs in asyncio.run(run()):
        assert ours["known"]["output"] and theirs["known"]["output"]
        assert ours["curve"]["survival"] == pytest.approx(theirs["curve"]["survival"], abs=1e-6)
        assert ours["expected_remaining"] == pytest.approx(theirs["expected_remaining"], rel=1e-5)
