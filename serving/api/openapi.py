"""The OpenAPI document, made from what each route module declares; ``docs/openapi.json`` pins it.

``python -m endcast.serving.api.openapi docs/openapi.json`` writes that file anew.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import endcast
from endcast.serving.api.route_list import ROUTE_MODULES
from endcast.serving.api.schema import ErrorReply


@cache
def openapi_document() -> dict[str, Any]:
    """The document that ``/openapi.json`` answers with."""
    types = [declared for module in ROUTE_MODULES for declared in module.TYPES]
    conditions = {name: told for module in ROUTE_MODULES for name, told in getattr(module, "CONDITIONS", {}).items()}
    _, components = msgspec.json.schema_components([*types, ErrorReply], ref_template="#/components/schemas/{name}")
    for name, condition in conditions.items():
        components[name] |= condition
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "endcast",
            "version": endcast.__version__,
            "description": "Forecasts of when LLM generations will end. docs/service.md states every field.",
            "license": {"name": "Apache-2.0"},
        },
        "paths": {path: item for module in ROUTE_MODULES for path, item in module.PATHS.items()},
        "components": {"schemas": components},
    }


def document_text() -> str:
    """The document as the pinned file holds it."""
    encoded = msgspec.json.encode(openapi_document(), order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document_text(), encoding="utf-8")
