"""``POST /v1/outcomes``: what really happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from endcast.serving.api.endpoints import Answer, answer, json_of, json_route, read_body, refusals
from endcast.serving.api.problems import ServiceError, contradiction, invalid_field
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import decode_body, landmark_of
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.disk import LogRefused
from endcast.serving.outcomes.record import RequestPart
from endcast.serving.outcomes.schema import OutcomesCall, OutcomesReply, OutcomeTold
from endcast.serving.outcomes.service import OutcomeService
from endcast.serving.outcomes.waiting import Told

TYPES: tuple[type, ...] = (OutcomesCall, OutcomesReply)
CONDITIONS: dict[str, Any] = {
    "OutcomeTold": {
        "anyOf": [
            {"required": [name], "properties": {name: {"type": "string", "minLength": 1}}}
            for name in ("forecast_id", "request_id")
        ]
    }
}
#: Seconds after which a refused call may be sent again.
RETRY_S = 5
_DECODER = msgspec.json.Decoder(OutcomesCall)
_REFUSALS = {
    "400": "The body is no JSON.",
    "408": "The body did not arrive in time.",
    "409": "The outcome and its request have different ids.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "422": "A field is not what it has to be; `field` names it.",
    "500": "The service failed.",
    "503": "The outcomes cannot be kept now, and none was; `Retry-After` says when to send them again.",
}
_EXAMPLE = {
    "outcomes": [{"request_id": "r1", "output_tokens": 280, "end": "stop", "finished": 1700000009.5}],
}


def _operation() -> dict[str, Any]:
    body = json_of(OutcomesCall)
    body["application/json"]["example"] = _EXAMPLE
    return {
        "operationId": "outcomes",
        "summary": "Tell how generations turned out; each is counted once, however often it is told.",
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "What became of each.", "content": json_of(OutcomesReply)},
            **refusals(_REFUSALS),
        },
    }


PATHS: dict[str, Any] = {"/v1/outcomes": {"post": _operation()}}


def decode_outcomes(body: bytes, settings: Settings) -> list[Told]:
    """A checked body; ``ServiceError`` 400 if it is no JSON, 422 with the field if it breaks a bound."""
    call = decode_body(body, _DECODER)
    if len(call.outcomes) > settings.max_requests:
        raise invalid_field("outcomes", f"must be at most {settings.max_requests}", "Send several batches")
    return [_told(told, f"outcomes[{i}]", settings) for i, told in enumerate(call.outcomes)]


def _told(told: OutcomeTold, path: str, settings: Settings) -> Told:
    if not told.forecast_id and not told.request_id:
        raise invalid_field(path, "forecast_id or request_id must be given")
    if told.request is None:
        return Told(told, None)
    request = landmark_of(told.request, f"{path}.request").request
    if told.request_id and request.request_id not in ("", told.request_id):
        raise contradiction(f"{path}.request.request_id", "is another one than the outcome's request_id")
    named = msgspec.structs.replace(request, request_id=request.request_id or told.request_id or "")
    return Told(told, RequestPart.of(named, arrival=None, texts=settings.outcome_texts))


def unavailable(error: LogRefused) -> ServiceError:
    """503: nothing was kept."""
    headers = {"Retry-After": str(RETRY_S)}
    return ServiceError(503, "outcomes_unavailable", error.message, hint=error.hint, headers=headers)


def routes(context: Context) -> list[Route]:
    """The route; what takes outcomes in becomes ``context.outcomes``."""
    service = OutcomeService(context)
    context.outcomes = service

    async def outcomes(request: Request) -> Answer:
        body = await read_body(request, context.settings.max_body_bytes, context.settings.body_timeout_s)
        if len(body) <= context.settings.inline_body_bytes:
            told = decode_outcomes(body, context.settings)
        else:
            told = await asyncio.to_thread(decode_outcomes, body, context.settings)
        try:
            statuses = await service.take(told)
        except LogRefused as error:
            raise unavailable(error) from error
        counts = Counter(statuses)
        return answer(
            OutcomesReply(
                statuses=statuses,
                accepted=counts["accepted"],
                pending=counts["pending"],
                duplicate=counts["duplicate"],
                late=counts["late"],
                unknown=counts["unknown"],
                durable=context.settings.outcome_log is not None,
            )
        )

    return [json_route(context, "POST", "/v1/outcomes", outcomes)]
