"""Rewards by name: what starting a request now is worth. A new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from endcast.registry import Registry
from endcast.router.olp.settings import OlpSettings
from endcast.survival import FloatArray


class Reward(Protocol):
    """Made from ``OlpSettings`` by what the registry names; knows nothing of prices."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts whose sum the reward is, such as ``latency``."""

    def __call__(self, wait_s: FloatArray, service_s: FloatArray, step_s: float) -> FloatArray:
        """(parts, n), all ≥ 0: of requests that have waited ``wait_s`` (n,) ≥ 0 seconds when they start and are forecast
        to run ``service_s`` (n,) > 0 seconds; a decode step takes ``step_s``."""


_HERE = "endcast.router.olp.rewards"

REWARDS: Registry[Callable[[OlpSettings], Reward]] = Registry(
    "reward",
    (
        ("urgency", f"{_HERE}.urgency:Urgency"),
        ("published", f"{_HERE}.published:Published"),
    ),
)
