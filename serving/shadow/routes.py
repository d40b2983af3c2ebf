"""``/v1/bundle/shadow``: a bundle that is scored beside the served one on live outcomes, and may take its place."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from endcast.errors import EndcastError
from endcast.serving.api.endpoints import Answer, answer, json_of, json_route, read_body, refusals
from endcast.serving.api.problems import ServiceError
from endcast.serving.context import Access, Context
from endcast.serving.forecasts.codec import decode_body
from endcast.serving.outcomes.figures import Compared, Evidence
from endcast.serving.outcomes.schema import ComparisonReply, IntervalReply, ShadowCall, ShadowReply
from endcast.serving.outcomes.service import OutcomeService
from endcast.serving.shadow.comparison import Interval

TYPES: tuple[type, ...] = (ShadowCall, ShadowReply)
PATH = "/v1/bundle/shadow"
_DECODER = msgspec.json.Decoder(ShadowCall)
_REFUSED = {
    "409": "The bundle cannot be loaded or is served already, there is no shadow bundle, or there are several processes."
}
_BODY = {
    "400": "The body is no JSON.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "422": "A field is not what it has to be; `field` names it.",
}


def _operation(name: str, summary: str, *, body: type | None = None, fails: bool = True) -> dict[str, Any]:
    told = {"requestBody": {"required": True, "content": json_of(body)}} if body is not None else {}
    ok = {"description": "Which bundles there are, and the evidence.", "content": json_of(ShadowReply)}
    reasons = (_REFUSED if fails else {}) | (_BODY if body is not None else {})
    return {"operationId": name, "summary": summary, **told, "responses": {"200": ok, **refusals(reasons)}}


PATHS: dict[str, Any] = {
    PATH: {
        "get": _operation("shadow", "How a shadow bundle does beside the served one.", fails=False),
        "post": _operation("set_shadow", "Score a bundle beside the served one from now on.", body=ShadowCall),
        "delete": _operation("end_shadow", "Score no bundle beside the served one."),
    },
    f"{PATH}/promote": {
        "post": _operation("promote_shadow", "Serve the shadow bundle, and score the served one beside it.")
    },
}


def shadow_reply(context: Context, outcomes: OutcomeService, evidence: Evidence | None, skipped: int) -> ShadowReply:
    """The reply for evidence, which may be none."""
    shadow = outcomes.shadow
    return ShadowReply(
        served=context.bundles.current.id,
        shadow=None if shadow is None else shadow.loaded.id,
        compared=[] if evidence is None else [evidence.served, evidence.shadow],
        generations=0 if evidence is None else evidence.generations,
        forecasts=0 if evidence is None else evidence.forecasts,
        skipped=skipped,
        horizons={} if evidence is None else {str(h): _compared(one) for h, one in evidence.horizons.items()},
        overall=None if evidence is None else _interval(evidence.overall),
        verdict="no difference shown" if evidence is None else evidence.verdict,
    )


def _compared(one: Compared) -> ComparisonReply:
    return ComparisonReply(
        served_brier=_finite(one.served_brier),
        shadow_brier=_finite(one.shadow_brier),
        brier=_interval(one.brier),
        served_log=_finite(one.served_log),
        shadow_log=_finite(one.shadow_log),
        log=_interval(one.log),
    )


def _interval(interval: Interval) -> IntervalReply:
    return IntervalReply(mean=_finite(interval.mean), low=_finite(interval.low), high=_finite(interval.high))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _refused(error: EndcastError, path: str = "") -> ServiceError:
    """409; the ``path`` that was sent is not sent back."""
    message = error.message.replace(path, "the folder") if path else error.message
    return ServiceError(409, "bundle_refused", message, hint=error.hint)


def routes(context: Context) -> list[Route]:
    """The routes; admin calls, but for looking."""
    one_at_a_time = asyncio.Lock()

    def outcomes() -> OutcomeService:
        assert context.outcomes is not None  # its routes come first
        return context.outcomes

    async def evidence() -> tuple[Evidence | None, int]:
        figures = await outcomes().fresh_figures()
        return figures.live.evidence, outcomes().skipped

    async def look(_request: Request) -> Answer:
        return answer(shadow_reply(context, outcomes(), *await evidence()))

    async def begin(request: Request) -> Answer:
        call = decode_body(await read_body(request, context.settings.max_body_bytes), _DECODER)
        async with one_at_a_time:
            before = await evidence()
            try:
                _only_process(context)
                await asyncio.to_thread(outcomes().load_shadow, Path(call.path))
            except EndcastError as error:
                raise _refused(error, str(Path(call.path))) from error
            return answer(shadow_reply(context, outcomes(), *before))

    async def end(_request: Request) -> Answer:
        async with one_at_a_time:
            before = await evidence()
            try:
                _only_process(context)
            except EndcastError as error:
                raise _refused(error) from error
            await asyncio.to_thread(outcomes().set_shadow, None)
            return answer(shadow_reply(context, outcomes(), *before))

    async def promote(_request: Request) -> Answer:
        async with one_at_a_time:
            before = await evidence()
            try:
                _only_process(context)
                await outcomes().promote()
            except EndcastError as error:
                raise _refused(error) from error
            return answer(shadow_reply(context, outcomes(), *before))

    return [
        json_route(context, "GET", PATH, look),
        json_route(context, "POST", PATH, begin, access=Access.ADMIN),
        json_route(context, "DELETE", PATH, end, access=Access.ADMIN),
        json_route(context, "POST", f"{PATH}/promote", promote, access=Access.ADMIN),
    ]


def _only_process(context: Context) -> None:
    """What one process changes by itself, the others would not."""
    if context.settings.outcome_peers:
        raise EndcastError(
            "several processes serve forecasts, and this call reaches only one of them",
            hint="Set shadow_bundle and restart; to promote it, put it where the served bundle is and reload",
        )
