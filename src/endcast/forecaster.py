"""The protocols between whoever forecasts and whoever asks. A router knows these and never a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from endcast.survival import Forecast, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request


@runtime_checkable
class ForecastStream(Protocol):
    """One running generation: holds the history seen at admission and what its text so far told."""

    @property
    def request(self) -> Request:
        """The request it was opened for."""

    @property
    def generated_tokens(self) -> int:
        """Tokens generated so far, as last told."""

    def append(self, text: str, generated_tokens: int) -> None:
        """Take in ``text``, the part that is new; ``generated_tokens`` counts all so far. O(len(text))."""

    def forecast(self) -> Forecast:
        """The forecast from what is known now."""

    def close(self, *, end: EndReason | str, output_tokens: int, finished_s: float | None = None) -> None:
        """Join what was forecast with what happened; the second call does nothing."""


@runtime_checkable
class Forecaster(Protocol):
    """Forecasts ends of generations, from one bundle and a state that learns from completions."""

    @property
    def bundle(self) -> str:
        """Id of the bundle, ``sha256:…``, or a short name for forecasters without one."""

    @property
    def state_version(self) -> int:
        """Number of completions taken in; each answer names it."""

    def forecast(self, landmarks: Sequence[Landmark]) -> list[Forecast]:
        """One forecast a landmark, in order, from the state as it is now."""

    def forecast_batch(self, landmarks: Sequence[Landmark | ForecastStream], horizon: int) -> SurvivalBatch:
        """The same as arrays, for routers; ``horizon`` in tokens, ≥ 0."""

    def observe(self, completions: Sequence[Completion]) -> None:
        """Take in finished requests, in the order in which they finished: history and recalibration."""

    def snapshot(self) -> bytes:
        """The state as bytes (no code in them), for ``restore``."""

    def restore(self, state: bytes) -> None:
        """Go back to a snapshot of the same bundle; ``BundleError`` if it is another's or damaged."""

    def open(self, request: Request) -> ForecastStream:
        """Begin a stream; freezes the history that the request sees."""
