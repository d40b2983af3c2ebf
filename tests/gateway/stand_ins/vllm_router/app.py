"""A stand-in for production-stack's router: how it asks its routing logic, calls engines, and tries again.

It differs where that does not matter here: no health checks, aliases, callbacks or statistics, and ``endpoints`` can be changed.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from vllm_router.routers.routing_logic import RoundRobinRouter, SessionRouter


@dataclass
class EndpointInfo:
    """An engine, as service discovery tells."""

    url: str
    model_names: list[str]
    sleep: bool = False


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all calls to engines."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


def initialize_all(app: FastAPI, args: argparse.Namespace) -> None:
    """From the command line."""
    urls, models = args.static_backends.split(","), args.static_models.split(",")
    app.state.endpoints = [EndpointInfo(url, [model]) for url, model in zip(urls, models, strict=True)]
    app.state.router = RoundRobinRouter()


@app.post("/v1/chat/completions")
@app.post("/v1/completions")
@app.post("/v1/embeddings")
async def route(request: Request) -> Any:
    """One request."""
    body, told = await request.body(), await request.json()
    left = [one for one in app.state.endpoints if told["model"] in one.model_names and not one.sleep]
    if not left:
        return JSONResponse({"error": f"no model {told['model']}"}, 404)
    router, error = app.state.router, None
    for _ in range(router.max_instance_failover_reroute_attempts + 1):
        if isinstance(router, SessionRouter):
            url = await router.route_request(left, {}, {}, request, told)
        else:
            url = router.route_request(left, {}, {}, request)
        router.extract_session_id(request, told)
        answer = call(url + request.url.path, body)
        try:
            status, kind = await anext(answer)
        except aiohttp.ClientError as failure:
            error, left = failure, [one for one in left if one.url != url]
            if not left:
                break
            continue
        return StreamingResponse(answer, status, media_type=str(kind))
    assert error is not None
    raise error


async def call(url: str, body: bytes) -> AsyncIterator[Any]:
    """Status and content type, then what the engine sends."""
    headers = {"Content-Type": "application/json"}
    async with app.state.client.post(url, data=body, headers=headers) as answer:
        yield answer.status, answer.headers.get("Content-Type")
        async for chunk in answer.content.iter_any():
            yield chunk
