"""When a client tries again, how long it waits, and what it says when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import InputError
from endcast.client import (
    NO_RETRIES,
    AsyncClient,
    CallRefused,
    Client,
    ClientError,
    Options,
    RetryPolicy,
    ServiceUnavailable,
    UnexpectedAnswer,
)
from endcast.client.attempts import Attempts
from endcast.client.retry import Retries
from endcast.client.wire import Call, health_call
from endcast.serving.api.schema import HealthReply
from endcast.testing import ManualClock

OK = httpx.Response(200, content=b'{"status": "ok"}')
Answers = list[httpx.Response | Exception]


class Script:
    """Answers one after the other, and keeps what was asked and how long was waited."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[httpx.Request] = []
        self.waits: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers[len(self.asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def sync_health(script: Script, options: Options) -> HealthReply:
    with Client("http://s", options, transport=httpx.MockTransport(script), sleep=script.waits.append) as client:
        return client.health()


def async_health(script: Script, options: Options) -> HealthReply:
    async def once() -> HealthReply:
        async with AsyncClient("http://s", options, transport=httpx.MockTransport(script), sleep=script.wait) as client:
            return await client.health()

    return asyncio.run(once())


Health = Callable[[Script, Options], HealthReply]
both = pytest.mark.parametrize("health", [sync_health, async_health], ids=["sync", "async"])


def failing(status: int, **headers: str) -> httpx.Response:
    body = {"error": {"code": "c", "message": "it is so", "field": "f[0]", "hint": "Do this"}}
    return httpx.Response(
        status, content=msgspec.json.encode(body), headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


@both
@pytest.mark.parametrize(
    "failure",
    [failing(429), failing(502), failing(503), failing(504), httpx.ConnectError("refused"), httpx.ReadError("reset"),
     httpx.RemoteProtocolError("cut off"), httpx.Response(503, content=b"<html>")],
    ids=str,
)  # fmt: skip
def test_what_may_pass_is_tried_again(health: Health, failure: Any) -> None:
    script = Script([failure, OK])
    assert health(script, Options()).status == "ok"
    assert len(script.asked) == 2 and len(script.waits) == 1
    first, second = (request.headers["x-request-id"] for request in script.asked)
    assert first == second, "retries of one call share its id"


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 413, 415, 422])
def test_what_is_refused_is_not_tried_again(health: Health, status: int) -> None:
    script = Script([failing(status)])
    with pytest.raises(CallRefused, match=r"f\[0\]: it is so\. Do this") as error:
        health(script, Options())
    assert (error.value.status, error.value.code, error.value.field) == (status, "c", "f[0]")
    assert error.value.request_id == script.asked[0].headers["x-request-id"]


@both
def test_a_fault_of_the_service_is_not_tried_again(health: Health) -> None:
    script = Script([failing(500)])
    with pytest.raises(ServiceUnavailable) as error:
        health(script, Options())
    assert error.value.status == 500


@both
@pytest.mark.parametrize(
    "answer",
    [httpx.Response(200, content=b"<html>"), httpx.Response(200, content=b'{"other": 1}'), httpx.Response(404, content=b"nginx"),
     httpx.Response(302, headers={"location": "http://other/"}), httpx.Response(200, content=b"\xff")],
    ids=["page", "json", "404", "redirect", "bytes"],
)  # fmt: skip
def test_another_service_at_that_address_is_said(health: Health, answer: httpx.Response) -> None:
    with pytest.raises(UnexpectedAnswer):
        health(Script([answer]), Options())


@both
def test_attempts_end(health: Health) -> None:
    script = Script([failing(503)] * 9)
    with pytest.raises(ServiceUnavailable, match="503"):
        health(script, Options(retries=RetryPolicy(attempts=4)))
    assert len(script.asked) == 4
    script = Script([failing(503)] * 9)
    with pytest.raises(ServiceUnavailable):
        health(script, Options(retries=NO_RETRIES))
    assert len(script.asked) == 1


@both
def test_retry_after_is_waited_for_unless_there_is_no_time(health: Health) -> None:
    script = Script([failing(429, retry_after="2"), OK])
    health(script, Options(timeout_s=5.0))
    assert 2.0 <= script.waits[0] < 2.1
    script = Script([failing(429, retry_after="60"), OK])
    with pytest.raises(ServiceUnavailable):
        health(script, Options(timeout_s=5.0))
    assert script.waits == []


@both
def test_key_deadline_and_kind_are_told(health: Health) -> None:
    script = Script([OK])
    health(script, Options(key="k" * 20, timeout_s=2.0))
    headers = script.asked[0].headers
    assert headers["authorization"] == f"Bearer {'k' * 20}"
    assert 1_500 < int(headers["endcast-deadline-ms"]) <= 2_000
    assert headers["accept-encoding"] == "identity"


def test_the_key_is_not_shown() -> None:
    assert "secretsecret" not in repr(Options(key="secretsecret"))


@given(st.lists(st.booleans(), max_size=300), st.floats(0.0, 1.0), st.floats(0.0, 20.0))
def test_retries_stay_within_their_budget(fails: list[bool], ratio: float, burst: float) -> None:
    retries = Retries(RetryPolicy(budget_ratio=ratio, budget_burst=burst, attempts=2))
    made = 0
    for fail in fails:
        retries.begin_call()
        made += fail and retries.wait_before(2, left_s=1e9) is not None
    assert made <= burst + ratio * len(fails) + 1e-6


@given(attempt=st.integers(2, 60), draw=st.floats(0.0, 1.0, exclude_max=True), asked=st.floats(0.0, 10.0))
def test_waits_are_bounded_and_grow(attempt: int, draw: float, asked: float) -> None:
    policy = RetryPolicy(attempts=60, base_wait_s=0.1, longest_wait_s=1.0)
    wait = Retries(policy, draw=lambda: draw).wait_before(attempt, left_s=1e9, at_least_s=asked)
    assert wait == pytest.approx(asked + draw * min(0.1 * 2.0 ** (attempt - 2), 1.0))


def test_a_call_that_must_not_be_repeated_is_only_if_it_was_not_taken() -> None:
    call = Call(method="POST", path="/x", reply=HealthReply, repeatable=False)
    policy = Options()

    def wait(error: ServiceUnavailable) -> float:
        return Attempts(call, policy, Retries(policy.retries), None).wait_after(error)

    for harmless in (ServiceUnavailable("no", sent=False), ServiceUnavailable("no", status=429)):
        assert wait(harmless) >= 0.0
    for harmful in (ServiceUnavailable("cut"), ServiceUnavailable("no", status=503)):
        with pytest.raises(ServiceUnavailable):
            wait(harmful)


def test_a_call_ends_at_its_deadline() -> None:
    clock = ManualClock()
    attempts = Attempts(health_call(), Options(timeout_s=2.0), Retries(RetryPolicy()), None, clock)
    assert attempts.left_s == 2.0 and attempts.timeout().read == 2.0
    clock.advance(1.5)
    assert attempts.timeout().connect == 0.5
    clock.advance(0.5)
    with pytest.raises(ServiceUnavailable, match="no answer within 2 s"):
        attempts.headers()
    with pytest.raises(ServiceUnavailable, match="refused"):
        attempts.wait_after(ServiceUnavailable("refused"))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "localhost", "", "ftp://host", "http://", "http://[::1"])
def test_a_wrong_address_is_said_at_once(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InputError, match="url"):
            kind(url)


@pytest.mark.parametrize(
    "wrong",
    [{"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"connect_timeout_s": -1.0}, {"connections": 0}],
    ids=str,
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Options(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"budget_ratio": 1.1}, {"budget_burst": -1.0}, {"base_wait_s": 3.0}, {"base_wait_s": -1.0}],
    ids=str,
)
def test_wrong_policies_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        RetryPolicy(**wrong)


def test_every_failure_is_an_endcast_error() -> None:
    from endcast import EndcastError

    for kind in (ClientError, ServiceUnavailable, CallRefused, UnexpectedAnswer):
        assert issubclass(kind, EndcastError)
