"""Which bundle is served. A call takes hold of one at its start and keeps it to its end, so that no answer mixes two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endcast.forecaster import Forecaster
from endcast.predictors.bundle import MANIFEST, MANIFEST_DIGEST, digest
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.serving.bundles.turns import Turns
from endcast.serving.forecasts.reply import forecasts_json
from endcast.serving.operations.settings import Settings
from endcast.types import Landmark, Request


@dataclass(frozen=True, eq=False)
class Loaded:
    """A bundle in memory: its forecaster, what it says of itself, and who may use the forecaster when."""

    forecaster: Forecaster
    manifest: Mapping[str, Any] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    @property
    def id(self) -> str:
        """``sha256:…``."""
        return self.forecaster.bundle

    @property
    def state_version(self) -> int:
        """Completions that its forecaster has taken in."""
        return self.forecaster.state_version


def load_bundle(folder: Path, settings: Settings) -> Loaded:
    """The bundle of a folder, checked and tried out; ``BundleError`` if it must be refused."""
    forecaster = load_forecaster(folder, recalibrate=settings.recalibrate)
    loaded = Loaded(forecaster, forecaster.manifest)
    tried = Landmark(request=Request(request_id="", prompt_tokens=1))
    forecasts_json(forecaster.forecast([tried]), [None], horizons=[1], quantiles=[0.5], curve=True)
    return loaded


def folder_id(folder: Path) -> str | None:
    """The id that a bundle's folder claims, its other files unread; ``None`` if it is not even whole so far."""
    try:
        told = (folder / MANIFEST_DIGEST).read_text(encoding="ascii").strip()
        return told if digest((folder / MANIFEST).read_bytes()) == told else None
    except (OSError, UnicodeDecodeError):
        return None


class BundleHolder:
    """Holds the bundle that is served; ``swap`` puts another in its place between two calls.

    ``before_swap`` hooks prepare a bundle that is about to be served (such as: tell it of the latest outcomes); if one
    raises, the old bundle stays. They may take long, so they are called beside the event loop as well, before ``swap``,
    and must do nothing where they have done it already. ``after_swap`` hooks get the old and the new one.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._current = loaded
        self.before_swap: list[Callable[[Loaded], None]] = []
        self.after_swap: list[Callable[[Loaded, Loaded], None]] = []

    @property
    def current(self) -> Loaded:
        """The bundle that calls which begin now are answered with."""
        return self._current

    def prepare(self, loaded: Loaded) -> None:
        """Call the ``before_swap`` hooks."""
        for hook in self.before_swap:
            hook(loaded)

    def swap(self, loaded: Loaded) -> None:
        """Serve ``loaded`` from now on; calls on their way end with the bundle that they began with."""
        self.prepare(loaded)
        old, self._current = self._current, loaded
        for tell in self.after_swap:
            tell(old, loaded)
