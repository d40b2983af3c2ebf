"""How requests ended, told to the service in batches, by a thread of its own: whoever reports waits for nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from endcast.client.errors import CallRefused, ClientError
from endcast.client.sync import Client
from endcast.types import Completion

#: Completions in one call, and how many are kept while the service does not answer; the oldest are dropped then, counted.
_BATCH, _KEPT = 1_024, 50_000
#: The wait after a failure doubles, to this many seconds.
_LONGEST_WAIT_S = 30.0


class OutcomePoster:
    """Posts completions to ``/v1/outcomes`` of the service that ``client`` calls, ``every_s`` seconds' worth at a time."""

    def __init__(self, client: Client, *, every_s: float = 1.0) -> None:
        """``client`` is the poster's own: it is closed with it."""
        self._client, self._every_s = client, every_s
        self._kept: deque[Completion] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.posted = 0  #: completions that the service took
        self.dropped = 0  #: completions that it was not told of
        self.problem = ""  #: what was wrong with the last call

    @property
    def waiting(self) -> int:
        """Completions that are not told yet."""
        return len(self._kept)

    def put(self, completions: Sequence[Completion]) -> None:
        """To be told soon; those without an id cannot be joined with forecasts, and are dropped."""
        named = [one for one in completions if one.request.request_id]
        with self._changed:
            self.dropped += len(completions) - len(named)
            self._kept.extend(named)
            while len(self._kept) > _KEPT:
                self._kept.popleft()
                self.dropped += 1
            if self._thread is None and self._kept and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="endcast-outcomes", daemon=True)
                self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Tell what is left, for ``timeout_s`` at most, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._client.close()

    def _run(self) -> None:
        wait_s = self._every_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, wait_s)
                last = self._stopping
            told = self._post()
            wait_s = self._every_s if told else min(2.0 * wait_s, _LONGEST_WAIT_S)
            if last:
                return

    def _post(self) -> bool:
        """Tell all that waits; whether the service took it."""
        while self._kept:
            with self._changed:
                part = [self._kept[i] for i in range(min(len(self._kept), _BATCH))]
            try:
                self._client.outcomes(part)
            except CallRefused as error:  # it will not take them later either
                self.dropped += len(part)
                self.problem = error.message
            except ClientError as error:
                self.problem = error.message
                return False
            else:
                self.posted += len(part)
                self.problem = ""
            with self._changed:
                for _ in range(min(len(part), len(self._kept))):
                    self._kept.popleft()
        return True
