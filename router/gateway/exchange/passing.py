"""Other paths of engines, passed on as they are: nothing is read, counted or retried."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from endcast.router.gateway.engines.upstream import UpstreamError, target_of
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.messages.answers import error_answer
from endcast.router.gateway.messages.headers import for_client, for_engine
from endcast.survival import next_forecast_id

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway


async def pass_on(gateway: Gateway, http: web.BaseRequest, pool: PoolAtWork, body: bytes) -> web.StreamResponse:
    """The answer of the pool's least busy worker to any call."""
    up = [worker for worker in pool.workers if pool.dispatcher.is_up(worker.index)]
    if not up:
        return error_answer(503, "no_worker", "no engine is reachable", 1.0)
    active = pool.core.active()
    worker = min(up, key=lambda worker: int(active[worker.index]))
    headers = for_engine(
        http.headers,
        request_id=next_forecast_id("r"),
        rank=worker.rank,
        engine_key=pool.config.engine_key,
        drop=gateway.not_for_engines,
    )
    try:
        response = await gateway.engines.call(http.method, worker.url + target_of(http), headers, body or None)
    except UpstreamError as error:
        gateway.failed(worker.url, error)
        return error_answer(502, "engine_failed", f"the engine failed: {type(error).__name__}")
    out = web.StreamResponse(status=response.status, reason=response.reason, headers=for_client(response.headers))
    try:
        if response.content_length is not None:
            out.content_length = response.content_length
        await out.prepare(http)
        while data := await response.readany():
            await out.write(data)
        await out.write_eof()
        return out
    except UpstreamError:
        if http.transport is not None:
            http.transport.abort()  # the client must see that the answer is not whole
        return out
    finally:
        response.close()


async def list_models(gateway: Gateway, http: web.BaseRequest) -> web.StreamResponse:
    """``/v1/models``: one pool's answer as it is, or all pools' lists in one."""
    if len(gateway.pools) == 1:
        return await pass_on(gateway, http, gateway.pools[0], b"")
    found = await asyncio.gather(*(_models_of(gateway, pool) for pool in gateway.pools))
    return web.Response(
        body=msgspec.json.encode({"object": "list", "data": [model for models in found for model in models]}),
        content_type="application/json",
    )


async def _models_of(gateway: Gateway, pool: PoolAtWork) -> list[object]:
    """What an engine of the pool lists, as far as the pool serves it; only the names where no engine answers."""
    named = [{"id": name, "object": "model", "owned_by": "endcast"} for name in pool.config.models]
    key = pool.config.engine_key
    headers = CIMultiDict() if key is None else CIMultiDict(Authorization=f"Bearer {key}")
    for worker in pool.workers:
        if not pool.dispatcher.is_up(worker.index):
            continue
        try:
            status, body = await gateway.engines.fetch(f"{worker.url}/v1/models", headers)
            listed = msgspec.json.decode(body, type=_Models).data if status == 200 else []
        except (*UpstreamError, msgspec.DecodeError):
            continue
        told = {str(model.get("id")): model for model in listed}
        return [told.get(str(model["id"]), model) for model in named]
    return list(named)


class _Models(msgspec.Struct):
    data: list[dict[str, object]]
