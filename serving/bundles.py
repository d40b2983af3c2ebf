"""Which bundle is served. A call takes hold of one at its start and keeps it to its end, so that no answer mixes two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from endcast.forecaster import Forecaster
from endcast.serving.turns import Turns


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


class BundleHolder:
    """Holds the bundle that is served; ``swap`` puts another in its place between two calls.

    ``before_swap`` hooks prepare a bundle that is about to be served (such as: tell it of the latest outcomes); if one
    raises, the old bundle stays. ``after_swap`` hooks get the old and the new one.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._current = loaded
        self.before_swap: list[Callable[[Loaded], None]] = []
        self.after_swap: list[Callable[[Loaded, Loaded], None]] = []

    @property
    def current(self) -> Loaded:
        """The bundle that calls which begin now are answered with."""
        return self._current

    def swap(self, loaded: Loaded) -> None:
        """Serve ``loaded`` from now on; calls on their way end with the bundle that they began with."""
        for prepare in self.before_swap:
            prepare(loaded)
        old, self._current = self._current, loaded
        for tell in self.after_swap:
            tell(old, loaded)
