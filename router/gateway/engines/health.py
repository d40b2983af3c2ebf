"""Which workers may be given requests: probes, pauses after failures, re-admission. Books are never touched here.

An address that failed (a refused connection, a 502 to 504 before the first byte, a failed probe) is paused: it gets no requests
for ``pause_s``, twice as long after each further failure, and is let in again when a probe succeeds after that. A lost connection
or a timeout is a failure the second time in a row; timeouts while this process is late itself are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from endcast.router.gateway.config import Health
from endcast.router.gateway.engines.response import NotConnected
from endcast.router.gateway.engines.upstream import UpstreamError

#: With so much lag of our own, an engine's timeout says nothing of the engine.
_MUCH_LAG_S = 0.5

Probe = Callable[[str], Awaitable[bool]]


class Circuit:
    """One address: ``failed`` and ``passed`` say what happened at which time; ``open`` whether it is paused."""

    def __init__(self, settings: Health) -> None:
        self.settings = settings
        self.failures = 0  #: in a row
        self.doubts = 0  #: doubtful events in a row
        self.total = 0
        self.paused_until: float | None = None

    @property
    def open(self) -> bool:
        """Whether it gets no requests."""
        return self.paused_until is not None

    def failed(self, now_s: float) -> None:
        """It failed: paused, longer each time. Failures while it is paused already count once a pause."""
        self.total += 1
        if self.paused_until is not None and now_s < self.paused_until:
            return
        self.failures += 1
        pause = self.settings.pause_s * 2.0 ** min(self.failures - 1, 30)
        self.paused_until = now_s + min(pause, self.settings.longest_pause_s)

    def doubtful(self, now_s: float) -> None:
        """It closed a connection without an answer, or took too long: once may be chance, twice in a row is a failure."""
        self.doubts += 1
        if self.doubts > 1:
            self.failed(now_s)

    def passed(self, now_s: float) -> None:
        """A probe succeeded: let in again, if its pause is over."""
        if self.paused_until is not None and now_s >= self.paused_until:
            self.paused_until = None

    def served(self) -> None:
        """It answered a request well: earlier failures are forgotten."""
        self.failures = self.doubts = 0


class HealthKeeper:
    """Keeps a ``Circuit`` for each address, probes them all, and tells who may be given requests."""

    def __init__(
        self,
        urls: set[str],
        settings: Health,
        probe: Probe,
        tell: Callable[[str, bool], None],
        lag: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``tell(url, up)`` is called with every verdict; ``lag`` says how late this process is itself, seconds."""
        self.circuits = {url: Circuit(settings) for url in urls}
        self._settings, self._probe, self._tell, self._lag = settings, probe, tell, lag
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._nudges = {url: asyncio.Event() for url in urls}

    def start(self) -> None:
        """Begin to probe."""
        for url in self.circuits.keys() - self._tasks.keys():
            self._tasks[url] = asyncio.create_task(self._watch(url), name=f"health of {url}")

    def change(self, urls: set[str], settings: Health) -> None:
        """Other addresses and settings from now on; what is known of those that stay is kept."""
        self._settings = settings
        for url in self.circuits.keys() - urls:
            del self.circuits[url], self._nudges[url]
            self._tasks.pop(url).cancel()
        for circuit in self.circuits.values():
            circuit.settings = settings
        for url in urls - self.circuits.keys():
            self.circuits[url], self._nudges[url] = Circuit(settings), asyncio.Event()
        self.start()

    async def stop(self) -> None:
        """Stop probing."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def failed(self, url: str, error: BaseException | None = None) -> None:
        """A call to ``url`` failed before its first byte: with ``error``, or with an answer that says so."""
        if url not in self.circuits:
            return  # no worker any more
        self._judge(self.circuits[url], error)
        self._tell(url, not self.circuits[url].open)
        self._nudges[url].set()

    def _judge(self, circuit: Circuit, error: BaseException | None) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, TimeoutError):
            if self._lag() < _MUCH_LAG_S:
                circuit.doubtful(now)
        elif error is None or isinstance(error, NotConnected):
            circuit.failed(now)
        else:
            circuit.doubtful(now)

    def served(self, url: str) -> None:
        """A call to ``url`` was answered."""
        if url in self.circuits:
            self.circuits[url].served()

    async def _watch(self, url: str) -> None:
        circuit, nudge, loop = self.circuits[url], self._nudges[url], asyncio.get_running_loop()
        while True:
            nudge.clear()
            try:
                ok = await self._probe(url)
            except UpstreamError as error:
                self._judge(circuit, error)
            else:
                if ok:
                    circuit.passed(loop.time())
                else:
                    circuit.failed(loop.time())
            self._tell(url, not circuit.open)
            wait = self._settings.interval_s
            if circuit.paused_until is not None:
                wait = min(wait, max(circuit.paused_until - loop.time(), 0.01))
            try:
                await asyncio.wait_for(nudge.wait(), wait)
            except TimeoutError:
                continue
            if circuit.paused_until is not None:
                await asyncio.sleep(max(circuit.paused_until - loop.time(), 0.0))
