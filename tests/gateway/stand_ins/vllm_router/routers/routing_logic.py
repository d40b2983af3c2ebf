"""A stand-in for production-stack's module of the same name: what the example needs, with the signatures of the real one.

Written from the project's sources as of August 2026 (``src/vllm_router``, commit a6c01db0), no code taken.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, ClassVar

from fastapi import Request


class OneOfEach(ABCMeta):
    """Of each class there is one object, made by the first call."""

    made: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args, **options)
        return cls.made[cls]


class RoutingInterface(metaclass=OneOfEach):
    """Asked for an engine's URL, and told nothing afterwards."""

    def extract_session_id(self, request: Request, request_json: dict[str, Any]) -> str | None:
        """Called for the log, after each choice."""
        key = getattr(self, "session_key", None)
        return None if key is None else request.headers.get(key) or request_json.get(key)

    @abstractmethod
    def route_request(
        self, endpoints: list[Any], engine_stats: dict[str, Any], request_stats: dict[str, Any], request: Request
    ) -> Any:
        """Plain logics: called, without the body."""


class RoundRobinRouter(RoutingInterface):
    """What the command line can name."""

    max_instance_failover_reroute_attempts = 0

    def route_request(
        self, endpoints: list[Any], engine_stats: dict[str, Any], request_stats: dict[str, Any], request: Request
    ) -> str:
        raise AssertionError("another logic should be in its place")


class SessionRouter(RoutingInterface):
    """Logics derived from it: awaited, with the body."""

    def __init__(self, session_key: str) -> None:
        self.session_key = session_key

    async def route_request(  # type: ignore[override]
        self,
        endpoints: list[Any],
        engine_stats: dict[str, Any],
        request_stats: dict[str, Any],
        request: Request,
        request_json: dict[str, Any],
    ) -> str:
        raise NotImplementedError
