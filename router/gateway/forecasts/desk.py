"""Forecasts in the loop: a forecaster fed from streams, and what routing does while it is late or broken.

A forecaster is asked in *jobs*: what happened since the last one (requests opened, text, ends), and which forecasts are due.
``Inline`` works them on the spot, for library use and tests; ``Threaded`` on a thread of its own, so that a slow or hanging
forecaster delays no stream. One that fails, or is late, is *unhealthy* until a job ends in time: requests are then
admitted with the prior's forecasts, and policies run as BR-0.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from endcast.forecaster import Forecaster
from endcast.router.gateway.forecasts.bench import Admitted, Bench, Job, News, Outcome, Poster, request_of
from endcast.router.gateway.tickets import Ticket
from endcast.survival import SurvivalBatch
from endcast.types import Completion, EndReason

_LOG = logging.getLogger("endcast.router")

#: Forecasts that go and come back all the time are logged so often.
_LOG_EVERY_S = 10.0
#: Events that may wait for a forecaster that does not answer; then texts are no longer kept.
_MOST_PENDING = 20_000


class Desk(Protocol):
    """Where the core hands in events and gets forecasts."""

    @property
    def healthy(self) -> bool:
        """Whether forecasts come in time."""

    @property
    def reads(self) -> bool:
        """Whether texts are wanted."""

    def open(self, ticket: Ticket) -> None:
        """A request arrived, or waits for another attempt: a forecast is due before it is admitted."""

    def text(self, ticket: Ticket, text: str) -> None:
        """Its output goes on."""

    def close(self, ticket: Ticket, end: EndReason, tokens: int, finished_s: float | None) -> None:
        """It ended after ``tokens`` tokens."""

    def pump(self, now_s: float) -> None:
        """Get on with it: called once a round, and at the time of ``due_s``."""

    def admitted(self) -> list[Admitted]:
        """Forecasts at admission that are there by now, each once."""

    def prior(self, tickets: Sequence[Ticket]) -> SurvivalBatch:
        """What is known of requests that nobody forecasts."""

    def news(self) -> list[News]:
        """New forecasts of running requests, with the tokens at which they were made, each once."""


class _Base(ABC):
    """What both desks share: the events that wait for the next job, and the forecasts that wait to be fetched."""

    def __init__(
        self,
        forecaster: Forecaster,
        prior: Forecaster,
        *,
        horizon: int,
        soften: float = 0.0,
        tells_expected: bool = True,
    ) -> None:
        """``horizon`` in tokens; ``soften``: the prior's share in each forecast; ``prior`` must not fail.

        ``tells_expected``: whether tickets get the expected output at admission, for logs: as dear as the rest.
        """
        self._bench = Bench(forecaster, prior, horizon, soften, tells_expected)
        self.healthy = True
        self.failures = 0  #: jobs that failed
        self.late = 0  #: jobs that were late
        self.priors = 0  #: requests admitted with the prior
        self.problem = ""  #: what was wrong last
        self._job = Job()
        self._open: set[int] = set()  # requests that the forecaster was or will be told of
        self._admitted: list[Admitted] = []
        self._news: list[News] = []
        self._log_again_s, self._logged = 0.0, False

    @property
    def bundle(self) -> str:
        """What makes the forecasts."""
        return self._bench.bundle

    @property
    def poster(self) -> Poster | None:
        """Who tells a service of ends, where the forecaster is one."""
        return self._bench.poster

    @property
    def reads(self) -> bool:
        """Whether the forecaster reads outputs."""
        return self._bench.every is not None

    def open(self, ticket: Ticket) -> None:
        """A forecast is due."""
        self._open.add(ticket.key)
        self._job.opened.append(ticket)

    def text(self, ticket: Ticket, text: str) -> None:
        """Kept until the next job, unless far too much waits already."""
        if self.reads and ticket.key in self._open and len(self._job.texts) < _MOST_PENDING:
            self._job.texts.append((ticket, text, ticket.generated[0]))

    def close(self, ticket: Ticket, end: EndReason, tokens: int, finished_s: float | None) -> None:
        """Kept until the next job; what the forecaster did not forecast it learns from all the same."""
        if ticket.key in self._open:
            self._open.discard(ticket.key)
            self._job.closed.append((ticket.key, end, tokens, finished_s))
        elif len(self._job.learned) < _MOST_PENDING:  # admitted with the prior, or forecast by another forecaster
            request = request_of(ticket)
            self._job.learned.append(Completion(request=request, output_tokens=tokens, end=end, finished_s=finished_s))

    def prior(self, tickets: Sequence[Ticket]) -> SurvivalBatch:
        """What is known of requests that nobody forecasts."""
        return self._bench.prior(tickets)

    def admitted(self) -> list[Admitted]:
        """Each once."""
        admitted, self._admitted = self._admitted, []
        return admitted

    def news(self) -> list[News]:
        """Each once."""
        news, self._news = self._news, []
        return news

    @abstractmethod
    def pump(self, now_s: float) -> None:
        """Get on with it."""

    def _take_job(self) -> Job:
        job, self._job = self._job, Job()
        return job

    def _deliver(self, outcome: Outcome) -> None:
        self._judge("")
        if outcome.admitted is not None:
            self._admitted.append(outcome.admitted)
        if outcome.news is not None:
            self._news.append(outcome.news)

    def _fail(self, error: BaseException) -> None:
        self.failures += 1
        self._judge(f"{type(error).__name__}: {error}")

    def _judge(self, problem: str) -> None:
        """Forecasts come in time, or there is a ``problem``; a change is logged, not more often than each ten seconds."""
        now_s = time.monotonic()
        if self.healthy and problem and now_s >= self._log_again_s:
            self._log_again_s, self._logged = now_s + _LOG_EVERY_S, True
            _LOG.warning("no forecasts by %s, routing is br_0: %s", self.bundle, problem)
        elif self._logged and not problem:
            self._logged = False
            _LOG.warning("forecasts by %s are back", self.bundle)
        self.healthy, self.problem = not problem, problem

    def _admit_with_prior(self, tickets: list[Ticket]) -> None:
        if tickets:
            self.priors += len(tickets)
            self._admitted.append((tickets, self._bench.prior(tickets)))


class Inline(_Base):
    """Asks the forecaster on the spot; one that is slow delays the round, one that fails is BR-0 for that round."""

    def pump(self, now_s: float) -> None:
        """Work all that waits."""
        if not len(self._job):
            return
        job = self._take_job()
        try:
            self._deliver(self._bench.work(job))
        except Exception as error:  # noqa: BLE001 - whatever it does, requests are routed; it is counted and shown
            self._fail(error)
            self._admit_with_prior(job.opened)


class Threaded(_Base):
    """Asks the forecaster on a thread of its own, one job at a time, and waits ``timeout_s`` for a job at most."""

    def __init__(
        self,
        forecaster: Forecaster,
        prior: Forecaster,
        *,
        horizon: int,
        soften: float = 0.0,
        tells_expected: bool = True,
        timeout_s: float = 0.05,
        retry_s: float = 1.0,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wake`` is called, from any thread, when a job has ended; after a failure the next is tried in ``retry_s``."""
        super().__init__(forecaster, prior, horizon=horizon, soften=soften, tells_expected=tells_expected)
        self._timeout_s, self._retry_s, self._clock = timeout_s, retry_s, clock
        self.wake = wake
        self._pool = ThreadPoolExecutor(1, "endcast-forecasts")
        self._running: tuple[Future[Outcome], Job, float] | None = None
        self._given_up = False  # on the job that runs: its requests were admitted with the prior
        self._retry_at = 0.0
        self._before: list[Threaded] = []  # forecasters that this one took over from, while they have running requests

    def take_over(self, before: Threaded) -> None:
        """What ``before`` has forecast and runs by now stays with it; what it was asked for and still waits does not."""
        before.wake = lambda: None
        before._admitted.clear()
        self._before += [before, *before._before]
        before._before = []

    def let_go(self, ticket: Ticket) -> None:
        """Another forecaster is asked about ``ticket`` from now on."""
        self._open.discard(ticket.key)
        self._job.opened = [one for one in self._job.opened if one is not ticket]

    def tune(self, *, horizon: int, soften: float, tells_expected: bool, timeout_s: float) -> None:
        """Other settings, from the next job on."""
        self._bench.tune(horizon, soften, tells_expected)
        self._timeout_s = timeout_s

    @property
    def due_s(self) -> float | None:
        """When the job that runs becomes late; ``None`` if none does or it is late already."""
        return None if self._running is None or self._given_up else self._running[2] + self._timeout_s

    def open(self, ticket: Ticket) -> None:
        """While the forecaster is down, the prior admits it at once."""
        down = not self.healthy and (self._given_up or self._clock() < self._retry_at)
        if down:
            self._admit_with_prior([ticket])
        else:
            super().open(ticket)

    def text(self, ticket: Ticket, text: str) -> None:
        """Told to whichever forecaster has it."""
        super().text(ticket, text)
        for before in self._before:
            before.text(ticket, text)

    def close(self, ticket: Ticket, end: EndReason, tokens: int, finished_s: float | None) -> None:
        """Told to this forecaster, and to the one that has it."""
        super().close(ticket, end, tokens, finished_s)
        for before in self._before:
            if ticket.key in before._open:
                before.close(ticket, end, tokens, finished_s)

    def news(self) -> list[News]:
        """Each once, of all forecasters."""
        return [one for desk in (*self._before, self) for one in super(Threaded, desk).news()]

    def pump(self, now_s: float) -> None:
        """Fetch what is ready, give up on what is late, and start the next job."""
        for before in list(self._before):
            before.pump(now_s)
            before._admitted.clear()
            if not before._open and not len(before._job):
                before.stop()
                self._before.remove(before)
        self._fetch(now_s)
        if self._running is None and len(self._job) and (self.healthy or self._clock() >= self._retry_at):
            job = self._take_job()
            future = self._pool.submit(self._bench.work, job)
            self._running, self._given_up = (future, job, self._clock()), False
            future.add_done_callback(lambda _: self.wake())

    def stop(self) -> None:
        """Wait for nothing: the thread ends with its job; ends that were not told yet are told then."""
        job = self._take_job()
        job.opened, job.texts = [], []
        self._pool.submit(self._end, job)
        self._pool.shutdown(wait=False)

    def _end(self, job: Job) -> None:
        try:
            self._bench.work(job)
        finally:
            self._bench.close()

    def _fetch(self, now_s: float) -> None:
        if self._running is None:
            return
        future, job, began_s = self._running
        if not future.done():
            if not self._given_up and self._clock() >= began_s + self._timeout_s:
                self.late += 1
                self._given_up = True
                self._judge(f"no answer within {self._timeout_s:g} s")
                self._give_up_on(job)
            return
        late, self._running, self._given_up = self._given_up, None, False
        error = future.exception()
        if error is not None:
            self._fail(error)
            self._retry_at = self._clock() + self._retry_s
            if not late:
                self._give_up_on(job)
            return
        outcome = future.result()
        if late and outcome.admitted is not None:
            outcome.admitted = None  # the prior has admitted them long since
        self._deliver(outcome)

    def _give_up_on(self, job: Job) -> None:
        waiting, self._job.opened = job.opened + self._job.opened, []
        self._admit_with_prior(waiting)
