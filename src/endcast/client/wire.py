"""The calls of the service as values, and answers read back. Pure: whoever sends them, sync or async, shares this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from endcast.client.errors import CallRefused, ClientError, ServiceUnavailable, UnexpectedAnswer
from endcast.serving.api.problems import DEADLINE_HEADER
from endcast.serving.api.schema import BundleReply, ErrorReply, ForecastsReply, HealthReply, ReadyReply, ReloadReply
from endcast.serving.outcomes.schema import OutcomesReply
from endcast.serving.streams.schema import AppendCall, Asked, CloseCall, ClosedReply, StreamReply
from endcast.types import Completion, Landmark, Request

T = TypeVar("T")

#: Answers that another try, or another instance behind a balancer, may not give again.
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """One call: where it goes, what it sends, what it is answered with, and whether sending it twice does no harm."""

    method: str
    path: str
    reply: type[T]
    body: bytes | None = None
    repeatable: bool = True


def forecasts_call(
    landmarks: Sequence[Landmark],
    *,
    horizons: Sequence[int] | None = None,
    quantiles: Sequence[float] | None = None,
    curve: bool = False,
) -> Call[ForecastsReply]:
    """``POST /v1/forecasts``; ``None`` leaves the choice to the service."""
    body: dict[str, Any] = {"requests": [forecast_request(each) for each in landmarks]}
    if horizons is not None:
        body["horizons"] = list(horizons)
    if quantiles is not None:
        body["quantiles"] = list(quantiles)
    if curve:
        body["curve"] = True
    return Call(method="POST", path="/v1/forecasts", reply=ForecastsReply, body=msgspec.json.encode(body))


def outcomes_call(completions: Sequence[Completion]) -> Call[OutcomesReply]:
    """``POST /v1/outcomes``: how requests ended, by their ``request_id``; telling one twice counts once."""
    outcomes = [
        {"request_id": each.request.request_id, "output_tokens": each.output_tokens, "end": each.end}
        | ({} if each.finished_s is None else {"finished": each.finished_s})
        for each in completions
    ]
    return Call(
        method="POST", path="/v1/outcomes", reply=OutcomesReply, body=msgspec.json.encode({"outcomes": outcomes})
    )


def open_stream_call(landmark: Landmark, asked: Asked | None) -> Call[StreamReply]:
    """``POST /v1/streams``. Not to be sent twice: each opens a stream."""
    body = {"request": forecast_request(landmark), "forecast": asked}
    return Call(method="POST", path="/v1/streams", reply=StreamReply, body=msgspec.json.encode(body), repeatable=False)


def append_call(stream_id: str, text: str, generated_tokens: int, asked: Asked | None) -> Call[StreamReply]:
    """``POST /v1/streams/…/append``. Not to be sent twice: the text would be read twice."""
    body = AppendCall(text=text, generated_tokens=generated_tokens, forecast=asked)
    return Call(
        method="POST",
        path=_stream_path(stream_id, "/append"),
        reply=StreamReply,
        body=msgspec.json.encode(body),
        repeatable=False,
    )


def stream_forecast_call(stream_id: str, asked: Asked) -> Call[StreamReply]:
    """``POST /v1/streams/…/forecast``."""
    path = _stream_path(stream_id, "/forecast")
    return Call(method="POST", path=path, reply=StreamReply, body=msgspec.json.encode(asked))


def close_stream_call(stream_id: str, outcome: Completion | None) -> Call[ClosedReply]:
    """``POST /v1/streams/…/close``, with how the generation ended where that is known."""
    told = (
        CloseCall()
        if outcome is None
        else CloseCall(output_tokens=outcome.output_tokens, end=outcome.end, finished=outcome.finished_s)
    )
    path = _stream_path(stream_id, "/close")
    return Call(method="POST", path=path, reply=ClosedReply, body=msgspec.json.encode(told), repeatable=False)


def _stream_path(stream_id: str, what: str) -> str:
    return f"/v1/streams/{quote(stream_id, safe='')}{what}"


def bundle_call() -> Call[BundleReply]:
    """``GET /v1/bundle``."""
    return Call(method="GET", path="/v1/bundle", reply=BundleReply)


def reload_call() -> Call[ReloadReply]:
    """``POST /v1/bundle/reload``; once done, doing it again changes nothing."""
    return Call(method="POST", path="/v1/bundle/reload", reply=ReloadReply)


def ready_call() -> Call[ReadyReply]:
    """``GET /readyz``."""
    return Call(method="GET", path="/readyz", reply=ReadyReply)


def health_call() -> Call[HealthReply]:
    """``GET /healthz``."""
    return Call(method="GET", path="/healthz", reply=HealthReply)


def forecast_request(landmark: Landmark) -> dict[str, Any]:
    """A landmark as one of ``requests``: what is unknown is left out."""
    body = request_fields(landmark.request)
    if landmark.generated_tokens:
        body["generated_tokens"] = landmark.generated_tokens
    if landmark.output is not None:
        body["output"] = landmark.output
    return body


def request_fields(request: Request) -> dict[str, Any]:
    """A request's own fields; its cap goes into ``parameters``, where the service looks for it."""
    told = {
        "request_id": request.request_id or None,
        "arrival": request.arrival_s,
        "model": request.model,
        "tenant": request.tenant,
        "session": request.session,
        "prompt_tokens": request.prompt_tokens,
        "prompt": request.prompt,
        "messages": request.messages if request.prompt is None else None,
        "context_limit": request.context_limit,
        "parameters": _parameters(request) or None,
        "prefix_blocks": request.prefix_blocks or None,
        "attributes": request.attributes or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _parameters(request: Request) -> Mapping[str, Any]:
    if request.max_tokens is None:
        return request.parameters
    told = request.parameters.get("max_tokens")
    cap = request.max_tokens if told is None else min(told, request.max_tokens)
    return {**request.parameters, "max_tokens": cap}


def headers_of(call: Call[Any], *, key: str | None, request_id: str, left_s: float) -> dict[str, str]:
    """What is sent beside the body; ``left_s`` is how long anybody will wait for the answer."""
    headers = {"x-request-id": request_id, "accept": "application/json", "accept-encoding": "identity"}
    headers[DEADLINE_HEADER] = str(min(max(int(left_s * 1000), 1), 99_999_999))
    if call.body is not None:
        headers["content-type"] = "application/json"
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers


def read_answer(call: Call[T], status: int, headers: Mapping[str, str], body: bytes, request_id: str) -> T:
    """The reply; ``ClientError`` if there is none in it."""
    if not 200 <= status < 300:
        raise _refused(status, headers, body, request_id)
    try:
        return msgspec.json.decode(body, type=call.reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(
            f"{call.method} {call.path} was answered with what is no {call.reply.__name__}: {error}",
            hint="Is this the address of endcast's forecast service, and of this version?",
            request_id=request_id,
        ) from None


def _refused(status: int, headers: Mapping[str, str], body: bytes, request_id: str) -> ClientError:
    try:
        detail = msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        if status in RETRIED_STATUSES or status >= 500:
            return _unavailable(f"the service answered {status}", status, headers, request_id)
        return UnexpectedAnswer(
            f"the answer has status {status} and is none of endcast's: {body[:_SHOWN]!r}", request_id=request_id
        )
    message = detail.message if detail.field is None else f"{detail.field}: {detail.message}"
    if status in RETRIED_STATUSES or status >= 500:
        return _unavailable(f"the service answered {status}: {message}", status, headers, request_id)
    return CallRefused(
        message, status=status, code=detail.code, field=detail.field, hint=detail.hint or "", request_id=request_id
    )


def _unavailable(message: str, status: int, headers: Mapping[str, str], request_id: str) -> ServiceUnavailable:
    return ServiceUnavailable(message, request_id=request_id, status=status, retry_after_s=_retry_after_s(headers))


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds of ``Retry-After``; its date form, which this service does not send, counts as none."""
    told = headers.get("retry-after", "")
    return float(told[:9]) if told.isascii() and told.isdigit() else 0.0
