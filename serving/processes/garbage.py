"""Python's collector of cyclic garbage, kept from stopping the service.

A full collection looks at every object that is alive: with 100,000 forecasts that wait for their outcome it stops all threads
for more than 100 ms, and by default it comes whenever their number has grown by a quarter. So what has survived two young
collections is taken out of the collector's sight (``gc.freeze``); it is freed as always when nobody refers to it any more. Only
cycles that die old are left: a full collection takes them when what is out of sight has doubled.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("endcast.garbage")
#: Seconds between two looks at how much is out of sight (a look at 500,000 objects takes some milliseconds), and how many
#: objects are never too many.
LOOK_S, FEW = 60.0, 1_000_000


class SeldomFull:
    """The policy above, for one process at a time. ``few``: objects below which no full collection is made."""

    def __init__(self, few: int = FEW, look_s: float = LOOK_S) -> None:
        self._few, self._look_s = few, look_s
        self._most = few

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep to it."""
        gc.callbacks.append(_freeze_old)
        ended = threading.Event()
        looking = threading.Thread(target=self._look_often, args=(ended,), name="garbage", daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()
            gc.callbacks.remove(_freeze_old)
            gc.unfreeze()

    def _look_often(self, ended: threading.Event) -> None:
        while not ended.wait(self._look_s):
            self.look()

    def look(self) -> bool:
        """Collect everything if what is out of sight has doubled since the last time; whether that was done."""
        if gc.get_freeze_count() <= self._most:
            return False
        started = time.perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._most = max(2 * gc.get_freeze_count(), self._few)
        LOG.info("full collection", extra={"fields": {"found": found, "seconds": time.perf_counter() - started}})
        return True


def _freeze_old(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()
