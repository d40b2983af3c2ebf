"""The OpenAPI document, made from the declared types of ``schema``; ``docs/openapi.json`` pins it.

``python -m endcast.serving.openapi docs/openapi.json`` writes that file anew.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import endcast
from endcast.serving.schema import (
    BundleReply,
    ErrorReply,
    ForecastsCall,
    ForecastsReply,
    HealthReply,
    KnownParameters,
    ReadyReply,
)

_REF = "#/components/schemas/{name}"
_TYPES = (ForecastsCall, ForecastsReply, BundleReply, HealthReply, ReadyReply, ErrorReply, KnownParameters)
_REFUSALS = {
    "400": "The body is no JSON.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "422": "A field is not what it has to be; `field` names it.",
    "500": "The service failed.",
}
_EXAMPLE = {
    "horizons": [16, 64],
    "quantiles": [0.5, 0.9],
    "requests": [
        {
            "request_id": "r1",
            "model": "m",
            "prompt_tokens": 374,
            "parameters": {"max_tokens": 512},
            "generated_tokens": 64,
            "output": "text so far",
        }
    ],
}


@cache
def openapi_document() -> dict[str, Any]:
    """The document that ``/openapi.json`` answers with."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "endcast",
            "version": endcast.__version__,
            "description": "Forecasts of when LLM generations will end. docs/service.md states every field.",
            "license": {"name": "Apache-2.0"},
        },
        "paths": {
            "/v1/forecasts": {"post": _forecasts()},
            "/v1/bundle": {"get": _read("bundle", "Which bundle is served.", BundleReply)},
            "/healthz": {"get": _read("healthz", "Whether the process answers.", HealthReply)},
            "/readyz": {"get": _read("readyz", "Whether forecasts are served, and by which bundle.", ReadyReply)},
            "/metrics": {"get": _metrics()},
        },
        "components": {"schemas": components},
    }


def _forecasts() -> dict[str, Any]:
    body: dict[str, Any] = _json(ForecastsCall)
    body["application/json"]["example"] = _EXAMPLE
    refusals = {status: {"description": why, "content": _json(ErrorReply)} for status, why in _REFUSALS.items()}
    return {
        "operationId": "forecasts",
        "summary": "Forecast when generations will end; nothing is kept of the call.",
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The forecasts.", "content": _json(ForecastsReply)}, **refusals},
    }


def _read(operation: str, summary: str, reply: type) -> dict[str, Any]:
    ok = {"description": summary, "content": _json(reply)}
    return {"operationId": operation, "summary": summary, "responses": {"200": ok}}


def _metrics() -> dict[str, Any]:
    summary = "Metrics in Prometheus' text format."
    ok = {"description": summary, "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"operationId": "metrics", "summary": summary, "responses": {"200": ok}}


def _json(schema: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=schema.__name__)}}}


def document_text() -> str:
    """The document as the pinned file holds it."""
    encoded = msgspec.json.encode(openapi_document(), order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document_text(), encoding="utf-8")
