"""Forecasts in the loop: a forecaster fed from streams, and what routing does while it is late or broken.

A forecaster is asked in *jobs*: what happened since the last one (requests opened, text, ends), and which forecasts are due.
``Inline`` works them on the spot, for library use and tests; ``Threaded`` on a thread of its own, so that a slow or hanging
forecaster delays no stream. One that fails, or is late, is *unhealthy* until a job ends in time: requests are then
admitted with the prior's forecasts, and policies run as BR-0.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from endcast.forecaster import Forecaster, ForecastStream
from endcast.router.gateway.tickets import Ticket
from endcast.router.soften import blend
from endcast.survival import IntArray, SurvivalBatch
from endcast.types import EndReason, Landmark, Request

Admitted = tuple[list[Ticket], SurvivalBatch]
News = tuple[list[Ticket], IntArray, SurvivalBatch]
#: Tokens between two forecasts of a running request, for forecasters that read outputs and do not say.
_EVERY = 32
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


@dataclass
class _Job:
    """What happened since the last job: requests by key, texts in order, ends."""

    opened: list[Ticket] = field(default_factory=list)
    texts: list[tuple[Ticket, str, int]] = field(default_factory=list)
    closed: list[tuple[int, EndReason, int, float | None]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.opened) + len(self.texts) + len(self.closed)


@dataclass
class _Outcome:
    admitted: Admitted | None = None
    news: News | None = None


class _Bench:
    """The forecaster and its streams; touched by one thread at a time."""

    def __init__(
        self, forecaster: Forecaster, prior: Forecaster, horizon: int, soften: float, tells_expected: bool
    ) -> None:
        self._forecaster, self._prior, self._horizon, self._soften = forecaster, prior, horizon, soften
        self._tells_expected = tells_expected
        self._streams: dict[int, ForecastStream] = {}
        every = getattr(forecaster, "refresh_every", None)
        self.reads = every is not None
        self._every = every or _EVERY

    def prior(self, tickets: Sequence[Ticket]) -> SurvivalBatch:
        """What is known of requests that nobody forecasts."""
        batch = self._prior.forecast_batch([Landmark(request=request_of(t)) for t in tickets], self._horizon)
        return blend(batch, batch, 0.0)

    def work(self, job: _Job) -> _Outcome:
        """Feed the forecaster, and make the forecasts that are due."""
        try:
            return self._work(job)
        finally:
            for key, *_ in job.closed:
                self._streams.pop(key, None)  # also where it failed before it came to them

    def _work(self, job: _Job) -> _Outcome:
        outcome = _Outcome()
        due: dict[int, Ticket] = {}
        for ticket, text, generated in job.texts:
            stream = self._streams.get(ticket.key)
            if stream is None:
                continue
            before = stream.generated_tokens
            stream.append(text, max(generated, before))
            if stream.generated_tokens // self._every > before // self._every:
                due[ticket.key] = ticket
        for key, end, tokens, finished_s in job.closed:
            due.pop(key, None)
            stream = self._streams.pop(key, None)
            if stream is not None:
                stream.close(end=end, output_tokens=max(tokens, stream.generated_tokens), finished_s=finished_s)
        if job.opened:
            for ticket in job.opened:
                if ticket.key not in self._streams:
                    self._streams[ticket.key] = self._forecaster.open(request_of(ticket))
            outcome.admitted = self._admit(job.opened)
        if due:
            tickets = list(due.values())
            streams = [self._streams[ticket.key] for ticket in tickets]
            made_at = np.array([stream.generated_tokens for stream in streams], dtype=np.int64)
            outcome.news = tickets, made_at, self._blended(streams, made_at)
        return outcome

    def _admit(self, tickets: list[Ticket]) -> Admitted:
        streams = [self._streams[ticket.key] for ticket in tickets]
        batch = self._blended(streams, np.zeros(len(streams), dtype=np.int64))
        if self._tells_expected:
            for ticket, expected in zip(tickets, batch.expected_remaining.tolist(), strict=True):
                ticket.expected = expected
        return tickets, batch

    def _blended(self, streams: list[ForecastStream], generated: IntArray) -> SurvivalBatch:
        batch = self._forecaster.forecast_batch(streams, self._horizon)
        if self._soften == 0.0:
            return blend(batch, batch, 0.0)
        at = [Landmark(request=s.request, generated_tokens=int(g)) for s, g in zip(streams, generated, strict=True)]
        return blend(batch, self._prior.forecast_batch(at, self._horizon), self._soften)


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
        self._bench = _Bench(forecaster, prior, horizon, soften, tells_expected)
        self.bundle = forecaster.bundle
        self.healthy = True
        self.failures = 0  #: jobs that failed
        self.late = 0  #: jobs that were late
        self.priors = 0  #: requests admitted with the prior
        self.problem = ""  #: what was wrong last
        self._job = _Job()
        self._open: set[int] = set()  # requests that the forecaster was or will be told of
        self._admitted: list[Admitted] = []
        self._news: list[News] = []

    @property
    def reads(self) -> bool:
        """Whether the forecaster reads outputs."""
        return self._bench.reads

    def open(self, ticket: Ticket) -> None:
        """A forecast is due."""
        self._open.add(ticket.key)
        self._job.opened.append(ticket)

    def text(self, ticket: Ticket, text: str) -> None:
        """Kept until the next job, unless far too much waits already."""
        if self._bench.reads and ticket.key in self._open and len(self._job.texts) < _MOST_PENDING:
            self._job.texts.append((ticket, text, ticket.generated[0]))

    def close(self, ticket: Ticket, end: EndReason, tokens: int, finished_s: float | None) -> None:
        """Kept until the next job."""
        if ticket.key in self._open:
            self._open.discard(ticket.key)
            self._job.closed.append((ticket.key, end, tokens, finished_s))

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

    def _take_job(self) -> _Job:
        job, self._job = self._job, _Job()
        return job

    def _deliver(self, outcome: _Outcome) -> None:
        self.healthy, self.problem = True, ""
        if outcome.admitted is not None:
            self._admitted.append(outcome.admitted)
        if outcome.news is not None:
            self._news.append(outcome.news)

    def _fail(self, error: BaseException) -> None:
        self.failures += 1
        self.healthy, self.problem = False, f"{type(error).__name__}: {error}"

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
        self._running: tuple[Future[_Outcome], _Job, float] | None = None
        self._given_up = False  # on the job that runs: its requests were admitted with the prior
        self._retry_at = 0.0

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

    def pump(self, now_s: float) -> None:
        """Fetch what is ready, give up on what is late, and start the next job."""
        self._fetch(now_s)
        if self._running is None and len(self._job) and (self.healthy or self._clock() >= self._retry_at):
            job = self._take_job()
            future = self._pool.submit(self._bench.work, job)
            self._running, self._given_up = (future, job, self._clock()), False
            future.add_done_callback(lambda _: self.wake())

    def stop(self) -> None:
        """Wait for nothing: the thread ends with its job."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, now_s: float) -> None:
        if self._running is None:
            return
        future, job, began_s = self._running
        if not future.done():
            if not self._given_up and self._clock() >= began_s + self._timeout_s:
                self.late += 1
                self._given_up = True
                self.healthy, self.problem = False, f"no answer within {self._timeout_s:g} s"
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

    def _give_up_on(self, job: _Job) -> None:
        waiting, self._job.opened = job.opened + self._job.opened, []
        self._admit_with_prior(waiting)


def request_of(ticket: Ticket) -> Request:
    """The request as forecasters see it."""
    intake = ticket.intake
    if intake.request is not None:
        return intake.request
    return Request(request_id=str(ticket.key), prompt_tokens=intake.prompt_tokens)
