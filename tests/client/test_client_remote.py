"""The service as a Forecaster: the same forecasts as without a network, and Kaplan-Meier when there is no service."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import endcast
from endcast import BundleError, Completion, InputError, Landmark, Request
from endcast.client import CallRefused, Client, Options, RemoteForecaster
from endcast.client.curves import log_survival_of
from endcast.client.fallback import ENOUGH, Fallback
from endcast.client.wire import forecast_request
from endcast.forecaster import Forecaster, ForecastStream
from endcast.serving.forecasts.codec import decode_call
from endcast.serving.operations.settings import Settings
from endcast.survival import NO_CAP
from endcast.testing import ConstantHazardForecaster, ManualClock, OracleForecaster

ClientOf = Callable[..., Client]


def landmark(i: int = 0, *, generated: int = 0, **more: Any) -> Landmark:
    return Landmark(request=Request(request_id=f"r{i}", prompt_tokens=5, **more), generated_tokens=generated)


class Service:
    """A service that answers, or not, as it is told."""

    def __init__(self, client: Client) -> None:
        self._inner = client._http._transport
        self.up = True
        self.calls: list[tuple[str, Any]] = []
        self.client = Client("http://service", Options(), transport=httpx.MockTransport(self), sleep=lambda _: None)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.url.path, json.loads(request.content or b"null")))
        if not self.up:
            raise httpx.ConnectError("refused")
        if request.url.path == "/v1/outcomes":
            n = len(self.calls[-1][1]["outcomes"])
            counts = dict.fromkeys(("pending", "duplicate", "late", "unknown"), 0)
            return httpx.Response(200, json={"statuses": ["accepted"] * n, "accepted": n, "durable": True, **counts})
        return self._inner.handle_request(request)

    def told(self) -> list[str]:
        """Ids of all outcomes that were sent."""
        return [one["request_id"] for path, body in self.calls if path == "/v1/outcomes" for one in body["outcomes"]]


@pytest.fixture
def service(client_of: ClientOf) -> Service:
    return Service(client_of())


def test_it_is_a_forecaster_and_its_streams_are_streams(client_of: ClientOf) -> None:
    remote = RemoteForecaster(client_of())
    assert isinstance(remote, Forecaster)
    assert isinstance(remote.open(Request(request_id="r")), ForecastStream)


@pytest.mark.parametrize("hazard", [0.3, 0.01, 0.0005])
def test_forecasts_are_those_of_the_bundle_behind_it(client_of: ClientOf, hazard: float) -> None:
    local = ConstantHazardForecaster(hazard)
    remote = RemoteForecaster(client_of(local))
    landmarks = [
        landmark(0), landmark(1, generated=64), landmark(2, max_tokens=40), landmark(3, max_tokens=70, generated=69),
        landmark(4, max_tokens=70, generated=70), landmark(5, context_limit=900, generated=100),
    ]  # fmt: skip
    there, here = remote.forecast_batch(landmarks, 64), local.forecast_batch(landmarks, 64)
    np.testing.assert_allclose(there.survival, here.survival, atol=2e-7)
    np.testing.assert_allclose(there.p_end, here.p_end, atol=2e-7)
    np.testing.assert_allclose(there.expected_within, here.expected_within, atol=2e-4)
    np.testing.assert_allclose(there.expected_remaining, here.expected_remaining, rtol=1e-3)
    for step in (1, 33):
        np.testing.assert_allclose(there.advance(step).p_end, here.advance(step).p_end, atol=2e-5)
    one = remote.forecast(landmarks)[1]
    assert one.bundle == "constant-hazard" and one.generated_tokens == 64 and one.forecast_id
    assert one.p_end(64) == pytest.approx(1 - (1 - hazard) ** 64, abs=2e-7)
    assert one.quantile(0.5) == pytest.approx(local.forecast(landmarks)[1].quantile(0.5), rel=1e-3, abs=1)


def test_a_bundle_with_curves_of_its_own_comes_through(client_of: ClientOf) -> None:
    rng = np.random.default_rng(3)
    local = endcast.kaplan_meier(np.ceil(rng.lognormal(5.0, 1.0, 4_000)).astype(int))
    landmarks = [landmark(i, generated=generated) for i, generated in enumerate((0, 7, 150, 900))]
    there = RemoteForecaster(client_of(local)).forecast_batch(landmarks, 80)
    here = local.forecast_batch(landmarks, 80)
    np.testing.assert_allclose(there.survival, here.survival, atol=2e-7)
    np.testing.assert_allclose(there.expected_remaining, here.expected_remaining, rtol=0.02)


def test_a_curve_may_fall_to_nothing_within_its_first_tokens() -> None:
    """Its expected remaining tokens are summed in blocks, some of which end before the first wide interval."""
    edges = np.concatenate([np.arange(129), [200, 1_000]])
    table = endcast.CurveTable.from_log_survival(edges, np.array([-20.0 * edges, -0.5 * edges]))
    expected = [1 / -np.expm1(-20.0), 1 / -np.expm1(-0.5)]
    np.testing.assert_allclose(table.remaining_at_edges[:, [0, 1, 100, 128]], np.tile(expected, (4, 1)).T, rtol=1e-6)


def test_certain_ends_come_through(client_of: ClientOf) -> None:
    remote = RemoteForecaster(client_of(OracleForecaster({"r0": 30, "r1": 1, "r2": 5})))
    batch = remote.forecast_batch([landmark(0), landmark(1), landmark(2, generated=5)], 40)
    np.testing.assert_allclose(batch.survival[:, [0, 1, 29, 30]], [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], atol=1e-6)


def test_many_are_asked_for_in_several_calls(client_of: ClientOf) -> None:
    service = Service(client_of())
    made = RemoteForecaster(service.client).forecast_batch([landmark(i, generated=i) for i in range(1_500)], 10)
    assert [len(body["requests"]) for _, body in service.calls] == [1_024, 476]
    assert len(made) == 1_500 and made.p_end == pytest.approx(np.full(1_500, 1 - 0.99**10), abs=1e-6)


def test_nothing_asked_nothing_answered(service: Service) -> None:
    remote = RemoteForecaster(service.client)
    assert remote.forecast([]) == [] and len(remote.forecast_batch([], 8)) == 0
    assert service.calls == []


def test_without_the_service_it_is_kaplan_meier_and_says_so(service: Service) -> None:
    clock = ManualClock()
    given = endcast.kaplan_meier([10, 20, 30])
    remote = RemoteForecaster(service.client, fallback=given, cool_down_s=5.0, clock=clock)
    service.up = False
    made = remote.forecast([landmark(0), landmark(1, generated=10)])
    assert [one.known["degraded"] for one in made] == [True, True]
    assert [one.bundle for one in made] == ["kaplan_meier"] * 2 and remote.bundle == "kaplan_meier"
    assert made[1].p_end(10) == pytest.approx(0.5)
    asked = len(service.calls)
    service.up = True
    assert remote.forecast([landmark()])[0].known["degraded"]
    assert len(service.calls) == asked, "nobody waits for it while it cools down"
    clock.advance(5.0)
    assert not remote.degraded
    assert "degraded" not in remote.forecast([landmark()])[0].known
    assert remote.degraded_forecasts == 3 and remote.bundle == "constant-hazard"


def test_a_call_that_is_partly_degraded_is_one_batch(client_of: ClientOf) -> None:
    class Falls(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            self.up = not self.calls
            return super().__call__(request)

    falls = Falls(client_of())
    remote = RemoteForecaster(falls.client, fallback=endcast.kaplan_meier([10, 20, 30, 4_000]))
    landmarks = [landmark(i, max_tokens=50) for i in range(1_030)]
    made = remote.forecast_batch(landmarks, 20)
    assert remote.degraded_forecasts == 6
    assert made.p_end[:1_024] == pytest.approx(np.full(1_024, 1 - 0.99**20), abs=1e-6)
    assert made.p_end[1_024:] == pytest.approx(np.full(6, 0.5), abs=1e-6)
    assert made.with_horizon(50).p_end == pytest.approx(np.ones(1_030))


@pytest.mark.parametrize(
    "answer",
    [
        {"bundle": "b", "state_version": 0, "forecasts": []},
        {"bundle": "b", "state_version": 0},
        "text",
    ],
    ids=["short", "partial", "no object"],
)
def test_an_answer_that_makes_no_sense_is_no_answer(answer: Any) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    remote = RemoteForecaster(Client("http://s", transport=transport))
    assert remote.forecast([landmark()])[0].known == {**remote.forecast([landmark()])[0].known, "degraded": True}


def test_a_wrong_call_is_the_callers_fault_and_said(service: Service) -> None:
    wrong = Landmark(request=Request(request_id="r", prompt_tokens=1, model="m" * 600))
    with pytest.raises(CallRefused) as error:
        RemoteForecaster(service.client).forecast([wrong])
    assert error.value.field == "requests[0].model"


def test_outcomes_are_kept_until_the_service_takes_them(service: Service) -> None:
    clock = ManualClock()
    remote = RemoteForecaster(service.client, clock=clock)
    service.up = False
    remote.observe([Completion(request=Request(request_id=f"r{i}"), output_tokens=9) for i in range(3)])
    remote.observe([Completion(request=Request(request_id=""), output_tokens=9)])
    assert remote.dropped_completions == 1
    service.up = True
    service.calls.clear()
    clock.advance(1.0)
    remote.forecast([landmark()])
    assert service.told() == ["r0", "r1", "r2"]
    remote.observe([Completion(request=Request(request_id="r3"), output_tokens=9)])
    assert service.told() == ["r0", "r1", "r2", "r3"], "none is told twice"


def test_a_stream_sends_its_text_whole_and_its_end_once(service: Service) -> None:
    remote = RemoteForecaster(service.client)
    stream = remote.open(Request(request_id="s", prompt="Say it", max_tokens=100))
    stream.append("One ", 1)
    stream.append("two", 3)
    stream.append("", 2)
    assert stream.forecast().generated_tokens == 3
    assert len(remote.forecast_batch([stream, landmark(1)], 10)) == 2
    asked = [body["requests"][0] for path, body in service.calls if path == "/v1/forecasts"]
    assert asked[0] == asked[1] == {
        "request_id": "s", "prompt": "Say it", "parameters": {"max_tokens": 100}, "generated_tokens": 3, "output": "One two",
    }  # fmt: skip
    for _ in range(2):
        stream.close(end="stop", output_tokens=5, finished_s=12.0)
    assert service.told() == ["s"]
    with pytest.raises(InputError, match="end"):
        stream.close(end="enough", output_tokens=5)
    with pytest.raises(InputError, match="generated_tokens"):
        stream.append("x", -1)


def test_a_stream_of_another_forecaster_is_refused(service: Service) -> None:
    other = ConstantHazardForecaster().open(Request(request_id="a"))
    with pytest.raises(BundleError, match="another forecaster"):
        RemoteForecaster(service.client).forecast_batch([other], 1)


def test_snapshots_name_a_state_that_is_not_ours_to_change(service: Service) -> None:
    remote = RemoteForecaster(service.client)
    state = remote.snapshot()
    remote.restore(state)
    for wrong in (
        b"",
        b"\xff\xff",
        RemoteForecaster(Client("http://s", transport=httpx.MockTransport(_down))).snapshot(),
    ):
        with pytest.raises(BundleError):
            remote.restore(wrong)


def _down(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("down")


def test_the_fallback_learns_from_what_it_sees() -> None:
    fallback = Fallback()
    ends = [Completion(request=Request(request_id="r"), output_tokens=n) for n in (0, *[40] * (ENOUGH - 1))]
    fallback.observe(ends)
    assert fallback.forecast([landmark()])[0].bundle == "cold_start"
    fallback.observe(ends[-1:])
    (made,) = fallback.forecast([landmark()])
    assert (
        made.bundle == "kaplan_meier" and made.p_end(39) == pytest.approx(0.0) and made.p_end(40) == pytest.approx(1.0)
    )
    assert made.known["degraded"]


REQUESTS = st.builds(
    Request,
    request_id=st.text(max_size=20),
    arrival_s=st.none() | st.floats(0, 1e12),
    prompt_tokens=st.integers(0, 10**8),
    prompt=st.none() | st.text(max_size=20),
    model=st.none() | st.text(max_size=20),
    tenant=st.none() | st.text(max_size=20),
    max_tokens=st.none() | st.integers(1, 10**8),
    context_limit=st.none() | st.integers(1, 10**8),
    prefix_blocks=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
    parameters=st.fixed_dictionaries(
        {}, optional={"temperature": st.floats(0, 2), "max_tokens": st.integers(1, 10**8)}
    ),
    attributes=st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=5), max_size=2),
)


@given(request=REQUESTS, generated=st.integers(0, 10**8), output=st.none() | st.text(max_size=20))
def test_the_service_reads_back_what_was_sent(request: Request, generated: int, output: str | None) -> None:
    sent = Landmark(request=request, generated_tokens=generated, output=output)
    body = msgspec.json.encode({"requests": [forecast_request(sent)]})
    (read,) = decode_call(body, Settings()).landmarks
    assert read.generated_tokens == generated and read.output == output
    assert read.request.cap == request.cap or request.parameters.get("max_tokens", NO_CAP) <= (request.cap or NO_CAP)
    plain = {
        "request_id",
        "arrival_s",
        "prompt_tokens",
        "prompt",
        "model",
        "tenant",
        "context_limit",
        "prefix_blocks",
        "attributes",
    }
    assert all(getattr(read.request, name) == getattr(request, name) for name in plain)


@given(
    survival=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=12).map(lambda s: sorted(s, reverse=True)),
    zeros=st.integers(0, 5),
    widths=st.data(),
)
def test_log_survival_is_finite_and_falls(survival: Sequence[float], zeros: int, widths: st.DataObject) -> None:
    told = np.array([[1.0, *survival, *[0.0] * zeros]])
    steps = widths.draw(st.lists(st.integers(1, 10_000), min_size=told.shape[1] - 1, max_size=told.shape[1] - 1))
    edges = np.concatenate([[0], np.cumsum(steps)])
    log = log_survival_of(edges, told, np.array([NO_CAP]))
    assert np.isfinite(log).all() and (np.diff(log) <= 0).all() and log[0, 0] == 0.0
    seen = told > 2.5e-8
    np.testing.assert_allclose(np.exp(log[seen]), told[seen], rtol=1e-9)
