"""Telling forecasters what happened, in the order of the log: between forecasts, some at a time, on the event loop that
makes them. Forecasters that start later, or were away, are told of the latest outcomes first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from endcast.curves import FloatArray
from endcast.errors import EndcastError
from endcast.serving.bundles.holder import Loaded
from endcast.serving.outcomes.record import Record, unpack
from endcast.types import Completion

#: Outcomes that a forecaster is told at once: about a millisecond for one that is given the hazards it had served.
CHUNK = 16


@runtime_checkable
class LearnsFromServed(Protocol):
    """A forecaster that need not run its model again to learn from what it had forecast."""

    def observe_served(
        self, completions: Sequence[Completion], hazards: Sequence[FloatArray | None], entered: Sequence[int]
    ) -> None:
        """Take in finished requests in order, with the hazards (K,) first served of each, at ``entered`` tokens."""


class Lessons:
    """What each forecaster has still to be told. ``tell`` from any thread, ``drain`` on the event loop.

    ``recalibrates``: whether outcomes correct hazards, besides being remembered.
    """

    def __init__(self, *, recalibrates: bool = True) -> None:
        self._recalibrates = recalibrates
        self._waiting: WeakKeyDictionary[Loaded, deque[Record]] = WeakKeyDictionary()  #: who is gone learns no more
        self.refused = 0  #: outcomes that a forecaster could not take in
        self.beside: Callable[[Sequence[Record]], None] | None = None  #: a shadow bundle, told as well

    @property
    def backlog(self) -> int:
        """Outcomes that the slowest forecaster has still to be told."""
        return max((len(records) for records in list(self._waiting.values())), default=0)

    def enrol(self, loaded: Loaded) -> None:
        """Tell this forecaster of all outcomes from now on."""
        self._waiting.setdefault(loaded, deque())

    def release(self, loaded: Loaded) -> list[Record]:
        """Tell it no more; what it has still not been told."""
        return list(self._waiting.pop(loaded, ()))

    def knows(self, loaded: Loaded) -> bool:
        """Whether it is told."""
        return loaded in self._waiting

    def tell(self, records: Sequence[Record]) -> None:
        """Outcomes, in order."""
        for waiting in list(self._waiting.values()):
            waiting.extend(records)
        if self.beside is not None:
            self.beside(records)

    async def drain(self) -> None:
        """Tell every forecaster all that waits; each is used alone meanwhile, for a chunk at a time."""
        for loaded, waiting in list(self._waiting.items()):
            while waiting:
                async with loaded.turns.change():
                    self.teach(loaded, [waiting.popleft() for _ in range(min(CHUNK, len(waiting)))])

    def teach(self, loaded: Loaded, records: Sequence[Record]) -> None:
        """Tell one forecaster, which nobody else is using; one that cannot take an outcome in goes without it."""
        until = _trained_until(loaded)
        for record in records:
            try:
                if not _in_training(record, until):
                    self._observe(loaded, record)
            except EndcastError:
                self.refused += 1

    def _observe(self, loaded: Loaded, record: Record) -> None:
        forecaster, completion = loaded.forecaster, record.completion()
        if not isinstance(forecaster, LearnsFromServed):
            forecaster.observe([completion])
            return
        hazards, entered = _hazards(record, forecaster.bundle) if self._recalibrates else (None, 0)
        forecaster.observe_served([completion], [hazards], [entered])


def _trained_until(loaded: Loaded) -> float:
    """Last arrival, in seconds since 1970, of the requests that the bundle was trained on: it remembers those."""
    training = loaded.manifest.get("training")
    window = training.get("window_ns") if isinstance(training, Mapping) else None
    return window[1] / 1e9 if window else -math.inf


def _in_training(record: Record, until: float) -> bool:
    arrival = None if record.request is None else record.request.arrival
    return (record.outcome.finished if arrival is None else arrival) <= until


def _hazards(record: Record, bundle: str) -> tuple[FloatArray | None, int]:
    """The hazards that ``bundle`` first gave, served or as a shadow, and at how many tokens."""
    served = record.served
    if served is None:
        return None, 0
    if served.bundle == bundle and served.hazards is not None:
        return unpack(served.hazards).astype(np.float64), served.entered
    shadow = served.shadow
    if shadow is not None and shadow.bundle == bundle and shadow.hazards is not None:
        return unpack(shadow.hazards).astype(np.float64), shadow.entered
    return None, 0
