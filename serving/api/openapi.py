"""The OpenAPI document, made from what each route module declares; ``docs/openapi.json`` pins it.

``python -m endcast.serving.api.openapi docs/openapi.json`` writes that file anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import endcast
from endcast.serving.api.endpoints import refusals
from endcast.serving.api.route_list import ROUTE_MODULES
from endcast.serving.api.schema import ErrorReply
from endcast.serving.context import Access
from endcast.serving.operations.auth import is_loopback
from endcast.serving.operations.settings import Settings

#: How a key is sent; each is enough.
_SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
#: Operations that are open to all, and those that change what is served.
_OPEN = frozenset({"healthz", "readyz", "page"})
_ADMIN = frozenset({"reload", "set_shadow", "end_shadow", "promote_shadow"})
_NO_KEY = {"401": "The call needs a key that the service knows."}
_NO_ADMIN = {"403": "The call needs an admin key."}


class Keys(NamedTuple):
    """Which calls of a service need a key."""

    calls: bool = False
    admin: bool = False
    metrics: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Keys:
        """Those of a service with these settings."""
        calls = bool(settings.api_keys) or settings.api_keys_file is not None
        admin = calls or bool(settings.admin_keys) or settings.admin_keys_file is not None
        return cls(calls, admin or not is_loopback(settings.host), calls and not settings.public_metrics)

    def needed(self, access: Access, path: str) -> bool:
        """Whether a call of that kind needs one."""
        if path == "/metrics":
            return self.metrics
        return {Access.OPEN: False, Access.CALL: self.calls, Access.ADMIN: self.admin}[access]


WITHOUT_KEYS = Keys()


@cache
def openapi_document(keys: Keys = WITHOUT_KEYS) -> dict[str, Any]:
    """The document that ``/openapi.json`` of a service answers with; that of one without keys is pinned."""
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
        "paths": {
            path: {method: _with_access(path, operation, keys) for method, operation in item.items()}
            for module in ROUTE_MODULES
            for path, item in module.PATHS.items()
        },
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def access_of(operation: Mapping[str, Any]) -> Access:
    """Who may make a call, by its ``operationId``."""
    name = operation["operationId"]
    return Access.OPEN if name in _OPEN else Access.ADMIN if name in _ADMIN else Access.CALL


def _with_access(path: str, operation: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The operation with the keys that it needs, and how a call without them is answered."""
    access = access_of(operation)
    if access is Access.OPEN:
        return {**operation, "security": []}
    reasons = _NO_KEY | (_NO_ADMIN if access is Access.ADMIN else {})
    any_of: list[dict[str, Any]] = [{name: []} for name in _SCHEMES]
    return {
        **operation,
        "responses": {**operation["responses"], **refusals(reasons)},
        "security": any_of if keys.needed(access, path) else [{}, *any_of],
    }


def document_text() -> str:
    """The document as the pinned file holds it."""
    encoded = msgspec.json.encode(openapi_document(), order="sorted")
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document_text(), encoding="utf-8")
