"""What all routes of one service share, and where other parts of it hook in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request

from endcast.serving.bundles.holder import BundleHolder
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.settings import Settings
from endcast.survival import Forecast
from endcast.types import Landmark

if TYPE_CHECKING:
    from endcast.serving.bundles.reload import Reloader
    from endcast.serving.outcomes.service import OutcomeService


class Access(StrEnum):
    """Who may make a call."""

    OPEN = "open"  #: anybody: health, metrics
    CALL = "call"  #: whoever may ask for forecasts
    ADMIN = "admin"  #: whoever may change what is served


#: Told of forecasts that have been made and are about to be answered, in order; must be quick, and must not raise.
Served = Callable[[Sequence[Forecast], Sequence[Landmark]], None]
#: Raises ``ServiceError`` (401, 403, 429) for a call that may not be made, before its body is read.
Guard = Callable[[Request, Access], None]
#: Entered before the first call, left after the last one.
Life = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(eq=False)
class Context:
    """One service: settings, metrics, the bundle that is served, and lists of hooks that its parts append to."""

    settings: Settings
    metrics: Metrics
    bundles: BundleHolder
    served: list[Served] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    reloader: Reloader | None = None  #: loads what the bundle's folder has, where it came from one
    stream_folder: Path | None = None  #: where the processes of one service hand each other calls about streams
    outcomes: OutcomeService | None = None  #: set by the routes of outcomes; its ``figures`` say what was measured

    def tell_served(self, forecasts: Sequence[Forecast], landmarks: Sequence[Landmark]) -> None:
        """Call the ``served`` hooks; forecasts of one call may come in several parts, all of one bundle and state."""
        for hook in self.served:
            hook(forecasts, landmarks)
