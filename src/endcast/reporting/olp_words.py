"""Settings of rewards and prices as they are typed on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from endcast.router.olp.settings import OlpSettings


def written(value: object) -> str:
    """A setting's value as ``--olp`` takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def olp_arguments(told: Mapping[str, Any]) -> list[str]:
    """``NAME=VALUE`` for ``--olp`` of what differs from the defaults."""
    defaults = asdict(OlpSettings())
    return [f"{name}={written(value)}" for name, value in told.items() if value != defaults[name]]
