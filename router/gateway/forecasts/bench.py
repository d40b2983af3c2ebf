"""A forecaster at work for routing: its streams, fed job by job by one thread at a time, and the forecasts that are due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from endcast.forecaster import Forecaster, ForecastStream
from endcast.router.gateway.tickets import Ticket
from endcast.router.soften import blend
from endcast.survival import IntArray, SurvivalBatch
from endcast.types import Completion, EndReason, Landmark, Request

Admitted = tuple[list[Ticket], SurvivalBatch]
News = tuple[list[Ticket], IntArray, SurvivalBatch]
#: Tokens between two forecasts of a running request, for forecasters that read outputs and do not say.
_EVERY = 32


class Poster(Protocol):
    """Tells a forecast service how requests ended, beside the forecasts; counts of completions."""

    @property
    def waiting(self) -> int:
        """Not told yet."""

    @property
    def posted(self) -> int:
        """Taken by the service."""

    @property
    def dropped(self) -> int:
        """Never told."""


@runtime_checkable
class _Closes(Protocol):
    """A forecaster with something to let go of."""

    def close(self) -> None:
        """It is not asked any more."""


@dataclass
class Job:
    """What happened since the last job: requests by key, texts in order, ends; ends of requests that it does not know."""

    opened: list[Ticket] = field(default_factory=list)
    texts: list[tuple[Ticket, str, int]] = field(default_factory=list)
    closed: list[tuple[int, EndReason, int, float | None]] = field(default_factory=list)
    learned: list[Completion] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.opened) + len(self.texts) + len(self.closed) + len(self.learned)


@dataclass
class Outcome:
    admitted: Admitted | None = None
    news: News | None = None


class Bench:
    """The forecaster and its streams; touched by one thread at a time."""

    def __init__(
        self, forecaster: Forecaster, prior: Forecaster, horizon: int, soften: float, tells_expected: bool
    ) -> None:
        self._forecaster, self._prior, self._horizon, self._soften = forecaster, prior, horizon, soften
        self._tells_expected = tells_expected
        self._streams: dict[int, ForecastStream] = {}

    @property
    def bundle(self) -> str:
        """The forecaster's; a service may change it."""
        return self._forecaster.bundle

    @property
    def every(self) -> int | None:
        """Tokens between two forecasts of a running request; ``None`` where outputs are not read, or not known to be yet."""
        every: int | None = getattr(self._forecaster, "refresh_every", None)
        return every

    @property
    def poster(self) -> Poster | None:
        """Who tells a service of ends; ``None`` for forecasters in this process, which learn at once."""
        poster: Poster | None = getattr(self._forecaster, "poster", None)
        return poster

    def tune(self, horizon: int, soften: float, tells_expected: bool) -> None:
        """From the next job on."""
        self._horizon, self._soften, self._tells_expected = horizon, soften, tells_expected

    def close(self) -> None:
        """The forecaster is not used any more."""
        close(self._forecaster)

    def prior(self, tickets: Sequence[Ticket]) -> SurvivalBatch:
        """What is known of requests that nobody forecasts."""
        at = [Landmark(request=request_of(ticket), generated_tokens=ticket.carried) for ticket in tickets]
        batch = self._prior.forecast_batch(at, self._horizon)
        return blend(batch, batch, 0.0)

    def work(self, job: Job) -> Outcome:
        """Feed the forecaster, and make the forecasts that are due."""
        try:
            return self._work(job)
        finally:
            for key, *_ in job.closed:
                self._streams.pop(key, None)  # also where it failed before it came to them

    def _work(self, job: Job) -> Outcome:
        outcome = Outcome()
        due: dict[int, Ticket] = {}
        every = self.every or _EVERY
        for ticket, text, generated in job.texts:
            stream = self._streams.get(ticket.key)
            if stream is None:
                continue
            before = stream.generated_tokens
            stream.append(text, max(generated, before))
            if stream.generated_tokens // every > before // every:
                due[ticket.key] = ticket
        for key, end, tokens, finished_s in job.closed:
            due.pop(key, None)
            stream = self._streams.pop(key, None)
            if stream is not None:
                stream.close(end=end, output_tokens=max(tokens, stream.generated_tokens), finished_s=finished_s)
        if job.learned:
            self._forecaster.observe(job.learned)
        if job.opened:
            for ticket in job.opened:
                if ticket.key not in self._streams:
                    self._streams[ticket.key] = self._forecaster.open(request_of(ticket))
                stream = self._streams[ticket.key]
                if ticket.carried > stream.generated_tokens:  # it goes on; forecasters that read outputs knew
                    stream.append("", ticket.carried)
            outcome.admitted = self._admit(job.opened)
        if due:
            tickets = list(due.values())
            streams = [self._streams[ticket.key] for ticket in tickets]
            made_at = np.array([stream.generated_tokens for stream in streams], dtype=np.int64)
            outcome.news = tickets, made_at, self._blended(streams, made_at)
        return outcome

    def _admit(self, tickets: list[Ticket]) -> Admitted:
        streams = [self._streams[ticket.key] for ticket in tickets]
        made_at = np.array([stream.generated_tokens for stream in streams], dtype=np.int64)
        batch = self._blended(streams, made_at)
        if self._tells_expected:
            for ticket, expected in zip(tickets, batch.expected_remaining.tolist(), strict=True):
                ticket.expected = ticket.expected if ticket.carried else expected
        return tickets, batch

    def _blended(self, streams: list[ForecastStream], generated: IntArray) -> SurvivalBatch:
        batch = self._forecaster.forecast_batch(streams, self._horizon)
        if self._soften == 0.0:
            return blend(batch, batch, 0.0)
        at = [Landmark(request=s.request, generated_tokens=int(g)) for s, g in zip(streams, generated, strict=True)]
        return blend(batch, self._prior.forecast_batch(at, self._horizon), self._soften)


def close(forecaster: Forecaster) -> None:
    """It is not used any more."""
    if isinstance(forecaster, _Closes):
        forecaster.close()


def request_of(ticket: Ticket) -> Request:
    """The request as forecasters see it."""
    intake = ticket.intake
    if intake.request is not None:
        return intake.request
    return Request(request_id=str(ticket.key), prompt_tokens=intake.prompt_tokens)
