"""Taking outcomes in: joined, written in groups, folded in the order of the log. One thread does it all, so that forecasts
wait neither for the disk nor for a lock; whoever sends outcomes waits until they are on disk.

Several processes share one log (``disk``). Each reads all that is appended, by whom ever, and takes in every generation
once, by its key: so all learn the same, in the same order, within ``follow_s`` and the time that learning takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from endcast.errors import EndcastError
from endcast.serving.outcomes.disk import DiskLog, LogRefused
from endcast.serving.outcomes.figures import BookFigures
from endcast.serving.outcomes.joining import alone, joined, outcome_part, told_by, told_names
from endcast.serving.outcomes.ledger import Ledger
from endcast.serving.outcomes.lessons import Lessons
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import OutcomePart, Record, decode_line, encode_line
from endcast.serving.outcomes.schema import Status
from endcast.serving.outcomes.waiting import Batch, Job, Told, fail

LOG = logging.getLogger("endcast.outcomes")


@dataclass(frozen=True, kw_only=True)
class BookLimits:
    """``queue``: outcomes that wait to be written at most; ``names``: outcomes that a repetition is known of;
    ``pending_s``: how long another process has to find a forecast; ``follow_s``: how often the log is looked at when
    nothing comes; ``figures_s``: how old figures may be."""

    queue: int = 20_000
    names: int = 200_000
    pending_s: float = 60.0
    follow_s: float = 0.25
    figures_s: float = 2.0
    texts: bool = False
    peers: bool = False  #: whether other processes serve forecasts under the same address


class Book:
    """See the head of this file. ``aborts``: whether forecasts that are served now carry the chance of an abort."""

    def __init__(
        self,
        limits: BookLimits,
        ledger: Ledger,
        live: Live,
        lessons: Lessons,
        log: DiskLog | None,
        *,
        aborts: Callable[[], bool],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._limits, self._ledger, self._live, self._lessons, self._log = limits, ledger, live, lessons, log
        self._aborts, self._wall = aborts, wall
        self._queue: deque[Batch] = deque()
        self._jobs: deque[Job] = deque()
        self._waiting = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._names: OrderedDict[str, None] = OrderedDict()
        self._pending: OrderedDict[str, tuple[Record, float]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._last_commit_s = 0.0
        self._figures_at = -float("inf")
        self._dirty = True
        self.told: Callable[[], None] = lambda: None  #: called when forecasters have something to be told
        self.figures = self._make_figures()

    @property
    def durable(self) -> bool:
        """Whether there is a log."""
        return self._log is not None

    def start(self) -> None:
        """Begin, if it has not."""
        with self._wake:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="outcomes", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self._log is not None:
            self._log.close()

    def submit(self, outcomes: Sequence[Told]) -> Future[list[Status]]:
        """Take these in; the answer comes once they are on disk. ``LogRefused`` if too many wait already."""
        with self._wake:
            before = self._waiting + self._lessons.backlog
            if self._closing or (before and before + len(outcomes) > self._limits.queue):
                raise LogRefused("too many outcomes wait to be taken in", hint="Send them again later")
            batch = Batch(outcomes)
            self._queue.append(batch)
            self._waiting += len(outcomes)
            self._wake.notify()
        self.start()
        return batch.answer

    def between(self, work: Callable[[], None]) -> Future[None]:
        """Let ``work`` run in the thread that takes outcomes in, between two groups of them."""
        job = Job(work)
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()
        self.start()
        return job.done

    def replay(self) -> None:
        """Take in what is in the log already, from where it was told to begin; before ``start``."""
        if self._log is not None:
            while lines := self._log.follow():
                self._take_lines(lines)
        self.measure()

    def recent(self, outcomes: int) -> Iterator[list[Record]]:
        """At least so many of the latest outcomes, each generation once, in order; in the thread that takes them in."""
        seen: set[str] = set()
        for lines in () if self._log is None else self._log.recent(outcomes):
            news = []
            for record in self._decoded(lines):
                if not record.pending and record.key not in seen:
                    seen.add(record.key)
                    news.append(record)
            yield news

    def _run(self) -> None:
        batches: list[Batch] = []
        jobs: list[Job] = []
        try:
            while True:
                with self._wake:
                    if not self._queue and not self._jobs and not self._closing:
                        self._wake.wait(self._limits.follow_s)
                    batches, self._queue = list(self._queue), deque()
                    jobs, self._jobs = list(self._jobs), deque()
                    self._waiting, closing = 0, self._closing
                self._commit(batches)
                while jobs:
                    jobs.pop(0).run()  # and no trace of it stays: what it is about may be large
                self._expire()
                self._refresh()
                if closing and not self._queue:
                    return
        except BaseException as error:  # a fault of ours: nobody is left waiting, and the next call begins a new thread
            for batch in batches:
                fail(batch.answer, error)
            for job in jobs:
                fail(job.done, error)
            self._thread = None
            raise

    def _commit(self, batches: list[Batch]) -> None:
        """Write all outcomes of these calls in one group, and answer the calls."""
        chosen: list[Record] = []
        statuses: list[list[Status]] = []
        started = time.perf_counter()

        def choose() -> list[bytes]:
            chosen.extend(self._resolved())
            statuses.extend(self._decide(batches, chosen))
            return [encode_line(record) for record in chosen]

        try:
            if self._log is None:
                choose()
            elif batches or self._resolvable():
                self._log.append(self._take_lines, choose)
            else:
                while lines := self._log.follow():
                    self._take_lines(lines)
        except (LogRefused, OSError) as error:
            self._counts["refused"] += len(batches)
            LOG.error("outcomes refused", extra={"fields": {"calls": len(batches), "why": str(error)}})
            for batch in batches:
                batch.answer.set_exception(error)
            return
        self._take(chosen)
        if chosen:
            self._counts["commits"] += 1
            self._last_commit_s = time.perf_counter() - started
        self._dirty = self._dirty or bool(batches)
        for batch, answer in zip(batches, statuses, strict=True):
            self._counts.update(answer)
            batch.answer.set_result(answer)
        self._tidy(bool(chosen))

    def _decide(self, batches: list[Batch], chosen: list[Record]) -> list[list[Status]]:
        """What becomes of each outcome, in the order in which they finished; records to write are added to ``chosen``."""
        now = self._wall()
        answers: list[list[Status]] = [["unknown"] * len(batch.outcomes) for batch in batches]
        new = {name for record in chosen for name in record.names}
        each = [
            (outcome_part(told.told, now, texts=self._limits.texts), told, b, i)
            for b, batch in enumerate(batches)
            for i, told in enumerate(batch.outcomes)
        ]
        for part, told, b, i in sorted(each, key=lambda one: one[0].finished):
            status, record = self._one(told, part, now, new)
            answers[b][i] = status
            if record is not None:
                chosen.append(record)
                new.update(record.names)
        return answers

    def _one(self, told: Told, part: OutcomePart, now: float, new: set[str]) -> tuple[Status, Record | None]:
        forecast_id, request_id = told.told.forecast_id, told.told.request_id
        found = self._ledger.find(forecast_id, request_id)
        names = {f"f:{forecast_id}"} if forecast_id is not None else set()
        names |= {found.key} if found is not None else {f"r:{request_id}"} if request_id else set()
        if self._ledger.was_answered(forecast_id) or any(n in self._names or n in new for n in names):
            return "duplicate", None
        if found is not None:
            record = joined(part, found, self._live, self._ledger.limits, now, aborts=self._aborts())
            return "accepted", told_by(record, forecast_id)
        if told.request is not None:
            return "accepted", alone(told.told, part, told.request, now)
        if self._ledger.was_here(forecast_id, request_id):
            return "late", None
        if not self._limits.peers or self._log is None:
            return "unknown", None
        return ("duplicate", None) if names & self._pending.keys() else ("pending", alone(told.told, part, None, now))

    def _take_lines(self, lines: list[bytes]) -> None:
        self._take(self._decoded(lines))

    def _decoded(self, lines: list[bytes]) -> list[Record]:
        records = []
        for line in lines:
            try:
                records.append(decode_line(line))
            except EndcastError:
                self._counts["damaged"] += 1
        return records

    def _take(self, records: Sequence[Record]) -> None:
        """Fold records in, in the order of the log; each generation once."""
        lessons = [record for record in records if self._is_news(record)]
        if lessons:
            self._counts["taken"] += len(lessons)
            self._dirty = True
            self._lessons.tell(lessons)
            self.told()

    def _is_news(self, record: Record) -> bool:
        """Whether this is a generation that has not been taken in; if so, it is now."""
        if record.pending:
            if not any(name in self._names for name in record.names):
                self._pending[record.key] = (record, time.monotonic())
            return False
        for name in record.names:
            self._pending.pop(name, None)
        if record.key in self._names:
            return False
        self.remember(record)
        self._ledger.take(record.key)
        self._live.take(record)
        return True

    def remember(self, record: Record) -> None:
        """Know the generation when it is told again."""
        for name in record.names:
            self._names[name] = None
        while len(self._names) > self._limits.names:
            self._names.popitem(last=False)

    def _resolvable(self) -> bool:
        return any(self._ledger.find(*told_names(record)) is not None for record, _ in self._pending.values())

    def _resolved(self) -> list[Record]:
        """Whole records of pending outcomes whose forecasts this process knows."""
        out = []
        for record, _ in self._pending.values():
            found = self._ledger.find(*told_names(record))
            if found is not None and found.key not in self._names:
                limits = self._ledger.limits
                whole = joined(record.outcome, found, self._live, limits, record.at, aborts=self._aborts())
                out.append(told_by(whole, record.forecast_id))
        return out

    def _expire(self) -> None:
        """Give up pending outcomes that no process has found in time."""
        oldest = time.monotonic() - self._limits.pending_s
        while self._pending and next(iter(self._pending.values()))[1] < oldest:
            self._pending.popitem(last=False)
            self._counts["unresolved"] += 1

    def _tidy(self, written: bool) -> None:
        if written and self._log is not None:
            try:
                self._log.tidy()
            except (LogRefused, OSError):
                self._counts["untidy"] += 1

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._dirty and now - self._figures_at >= self._limits.figures_s:
            self.measure()

    def measure(self) -> None:
        """Make figures anew now; in the thread that takes outcomes in, or before it begins."""
        self._figures_at, self._dirty = time.monotonic(), False
        before, self.figures = self.figures.live.drift, self._make_figures()
        drift = self.figures.live.drift
        if drift is not None and drift.alarm != (before is not None and before.alarm):
            message = "drift alarm" if drift.alarm else "drift alarm over"
            LOG.warning(message, extra={"fields": {"bundle": self.figures.live.bundle, "why": drift.explanation}})

    def _make_figures(self) -> BookFigures:
        counts, log = self._counts, self._log
        return BookFigures(
            statuses={name: counts[name] for name in ("accepted", "pending", "duplicate", "late", "unknown")},
            taken=counts["taken"],
            unresolved=counts["unresolved"],
            waiting=self._waiting,
            backlog=self._lessons.backlog,
            refused=counts["refused"],
            commits=counts["commits"],
            last_commit_s=self._last_commit_s,
            ledger=len(self._ledger),
            torn_lines=0 if log is None else log.torn,
            lost_segments=0 if log is None else log.lost,
            damaged_lines=counts["damaged"],
            live=self._live.figures(),
        )
