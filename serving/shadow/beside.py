"""A shadow bundle: forecasts, in a thread of its own, some of what the served bundle forecasts, and learns from the same
outcomes; nobody is answered with it. What it cannot keep up with it skips, and counts; outcomes it takes in all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from endcast.errors import EndcastError
from endcast.serving.bundles.holder import Loaded
from endcast.serving.outcomes.ledger import Scored, batch_of
from endcast.serving.outcomes.record import Record
from endcast.types import Landmark

#: Forecasts that wait for the shadow bundle at most, and that it makes at once.
MOST_WAITING, CHUNK = 2_048, 64


class Shadow:
    """The thread that alone uses the shadow bundle's forecaster; ``teach`` tells a forecaster what happened."""

    def __init__(
        self, loaded: Loaded, horizons: Sequence[int], teach: Callable[[Loaded, Sequence[Record]], None]
    ) -> None:
        self.loaded = loaded
        self.skipped = 0  #: forecasts that it was too busy for, or could not make
        self._horizons = np.array(horizons, dtype=np.int64)[:, None]
        self._teach = teach
        self._forecasts: deque[tuple[Scored, Landmark]] = deque()
        self._lessons: deque[Record] = deque()
        self._wake = threading.Condition()
        self._busy = self._closing = False
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def offer(self, scored: Sequence[Scored], landmarks: Sequence[Landmark]) -> None:
        """Forecast these as well, if there is time; quick."""
        with self._wake:
            room = max(MOST_WAITING - len(self._forecasts), 0)
            self.skipped += max(len(scored) - room, 0)
            self._forecasts.extend(zip(scored[:room], landmarks[:room], strict=True))
            self._wake.notify()

    def tell(self, records: Sequence[Record]) -> None:
        """Learn from these outcomes, in order."""
        with self._wake:
            self._lessons.extend(records)
            self._wake.notify()

    @property
    def idle(self) -> bool:
        """Whether it has done all that it was given."""
        with self._wake:
            return not (self._busy or self._forecasts or self._lessons)

    def close(self) -> None:
        """End, once all outcomes that it was told of are taken in; the forecaster is free then."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                while not (self._forecasts or self._lessons or self._closing):
                    self._wake.wait()
                self._busy = True
                lessons, self._lessons = list(self._lessons), deque()
                some = [] if self._closing else _some(self._forecasts)
                if self._closing and not lessons:
                    return
            self._teach(self.loaded, lessons)
            try:
                self._forecast(some)
            except EndcastError:
                self.skipped += len(some)

    def _forecast(self, some: Sequence[tuple[Scored, Landmark]]) -> None:
        if not some:
            return
        made = self.loaded.forecaster.forecast([landmark for _, landmark in some])
        ends = (1.0 - batch_of(made).survival_at(self._horizons)).astype(np.float32)  # as exact as the served ones
        for (scored, _), forecast, row in zip(some, made, ends.T.tolist(), strict=True):
            generation = scored.generation
            if forecast.hazards is not None and (
                generation.shadow_hazards is None or generation.shadow_hazards[0] != forecast.bundle
            ):
                hazards = forecast.hazards[0].astype(np.float32)
                generation.shadow_hazards = (forecast.bundle, scored.generated, hazards)
            scored.shadow, scored.shadow_bundle = tuple(row), forecast.bundle


def _some(waiting: deque[tuple[Scored, Landmark]]) -> list[tuple[Scored, Landmark]]:
    return [waiting.popleft() for _ in range(min(CHUNK, len(waiting)))]
