"""What an operator may set about the forecast service."""

from __future__ import annotations

from dataclasses import dataclass

from endcast.errors import InputError
from endcast.types import MAX_TOKENS


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and defaults of the service; ``docs/service.md`` states them for its users.

    ``default_horizons`` are tokens, each in [1, MAX_TOKENS]; ``default_quantiles`` lie strictly between 0 and 1.
    """

    max_body_bytes: int = 8 * 1024 * 1024
    inline_body_bytes: int = 64 * 1024  #: a larger call is worked on in a thread of its own, beside the event loop
    max_requests: int = 1_024  #: landmarks in one call
    default_horizons: tuple[int, ...] = (16, 32, 64, 80, 128)
    default_quantiles: tuple[float, ...] = (0.5, 0.9)

    def __post_init__(self) -> None:
        if self.max_body_bytes < 1:
            raise InputError("max_body_bytes", "must be at least 1")
        if self.inline_body_bytes < 0:
            raise InputError("inline_body_bytes", "must be at least 0")
        if self.max_requests < 1:
            raise InputError("max_requests", "must be at least 1")
        if not all(1 <= h <= MAX_TOKENS for h in self.default_horizons):
            raise InputError("default_horizons", f"must lie between 1 and {MAX_TOKENS}")
        if not all(0.0 < q < 1.0 for q in self.default_quantiles):
            raise InputError("default_quantiles", "must lie strictly between 0 and 1")
