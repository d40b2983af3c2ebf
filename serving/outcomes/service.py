"""The parts of taking outcomes in, put together for one service: ledger, log, live measures, lessons, a shadow bundle."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from endcast.errors import BundleError, EndcastError
from endcast.predictors.grid import IntervalGrid
from endcast.serving.bundles.holder import Loaded, load_bundle
from endcast.serving.context import Context
from endcast.serving.operations.settings import Settings
from endcast.serving.outcomes.book import Book, BookLimits
from endcast.serving.outcomes.disk import Calls, DiskLog, Limits
from endcast.serving.outcomes.figures import BookFigures
from endcast.serving.outcomes.ledger import Ledger, LedgerLimits
from endcast.serving.outcomes.lessons import Lessons
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import Record
from endcast.serving.outcomes.schema import Status
from endcast.serving.outcomes.waiting import Told
from endcast.serving.shadow.beside import Shadow
from endcast.survival import Forecast
from endcast.types import Landmark

LOG = logging.getLogger("endcast.outcomes")
#: Seconds that a call waits, after its outcomes are on disk, for the forecasters to have learned from them.
LEARNING_S = 1.0
DAY_S = 86_400.0


class OutcomeService:
    """One process's. It begins with the first call that needs it, or with ``life``; safe to be asked in any thread."""

    def __init__(self, context: Context, calls: Calls | None = None) -> None:
        self._context, self._calls = context, calls or Calls()
        settings = context.settings
        self._limits = _ledger_limits(settings)
        self.ledger = Ledger(self._limits, self._calls.clock, self._calls.monotonic)
        self.lessons = Lessons(recalibrates=settings.recalibrate)
        self.live = Live(self._limits.horizons, self._limits.quantiles)
        self._measure(context.bundles.current)
        if settings.learn_from_outcomes:
            self.lessons.enrol(context.bundles.current)
        self._opening = threading.Lock()
        self._book: Book | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._promoting = False
        self.shadow: Shadow | None = None
        context.served.append(self.served)
        context.lives.append(self.life)
        context.bundles.before_swap.append(self.prepare)
        context.bundles.after_swap.append(self._swapped)

    def served(self, forecasts: Sequence[Forecast], landmarks: Sequence[Landmark]) -> None:
        """Keep what was just forecast, and let the shadow bundle forecast the same."""
        scored = self.ledger.served(forecasts, landmarks)
        shadow = self.shadow
        if shadow is not None and len(scored) == len(landmarks):
            shadow.offer(scored, landmarks)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[None]:
        """Open the log and learn what it tells, before the first call; write what waits, after the last."""
        self._loop = asyncio.get_running_loop()
        book = await self._loop.run_in_executor(None, self.open)
        await self.lessons.drain()
        book.start()
        if (folder := self._context.settings.shadow_bundle) is not None:
            await asyncio.to_thread(self.load_shadow, folder)
        try:
            yield
        finally:
            await self._loop.run_in_executor(None, self.close)

    def open(self) -> Book:
        """The book, with all that the log tells taken in."""
        with self._opening:
            if self._book is None:
                self._book = self._opened()
            return self._book

    def _opened(self) -> Book:
        settings = self._context.settings
        log = None
        if settings.outcome_log is not None:
            log = DiskLog(settings.outcome_log, _disk_limits(settings), self._calls)
            log.begin(settings.outcome_replay)
        limits = BookLimits(texts=settings.outcome_texts, peers=settings.outcome_peers)
        book = Book(limits, self.ledger, self.live, self.lessons, log, aborts=self._aborts, wall=self._calls.clock)
        book.told = self._drain_soon
        book.replay()
        if log is not None:
            found = book.figures
            fields = {"outcomes": found.taken, "torn_lines": log.torn, "damaged_lines": found.damaged_lines}
            LOG.log(logging.WARNING if log.torn else logging.INFO, "outcome log read", extra={"fields": fields})
        return book

    def close(self) -> None:
        """Write what waits, and end all threads."""
        with self._opening:
            book, self._book = self._book, None
        if book is not None:
            book.close()
        if self.shadow is not None:
            self.shadow.close()

    async def take(self, outcomes: Sequence[Told]) -> list[Status]:
        """Take these in, durably; ``LogRefused`` if that cannot be done. Forecasters have learned from them afterwards,
        unless that takes longer than ``LEARNING_S``."""
        self._loop = asyncio.get_running_loop()
        book = await self._opened_book()
        statuses = await asyncio.wrap_future(book.submit(outcomes))
        learning = asyncio.ensure_future(self.lessons.drain())
        await asyncio.wait([learning], timeout=LEARNING_S)
        return statuses

    def figures(self) -> BookFigures:
        """Counts and measures, at most some seconds old."""
        return self.open().figures

    async def fresh_figures(self) -> BookFigures:
        """Counts and measures as they are now."""
        book = await self._opened_book()
        await asyncio.wrap_future(book.between(book.measure))
        return book.figures

    async def _opened_book(self) -> Book:
        book = self._book
        return book if book is not None else await asyncio.get_running_loop().run_in_executor(None, self.open)

    @property
    def skipped(self) -> int:
        """Forecasts that the shadow bundle was too busy for."""
        return 0 if self.shadow is None else self.shadow.skipped

    def prepare(self, loaded: Loaded) -> None:
        """Tell a bundle that is about to be served of the latest outcomes, and of all that follow. Takes seconds where the
        log is long: not for the event loop."""
        if self._context.settings.learn_from_outcomes and not self.lessons.knows(loaded):
            self._between(lambda: self._enrol(loaded))

    def load_shadow(self, folder: Path) -> None:
        """``set_shadow`` with the bundle of a folder; ``BundleError`` if it must be refused."""
        try:
            loaded = load_bundle(folder, self._context.settings)
        except (OSError, ValueError) as error:  # such as a name that no file can have
            raise BundleError(f"{folder} cannot be read: {type(error).__name__}") from error
        self.set_shadow(loaded)

    def set_shadow(self, loaded: Loaded | None) -> None:
        """Score this bundle beside the served one from now on, or none. Takes as long as ``prepare``."""
        if loaded is not None and loaded.id == self._context.bundles.current.id:
            raise EndcastError("that bundle is served already", hint="Load another one as the shadow")
        self._between(lambda: self._put_shadow(loaded))

    async def promote(self) -> Loaded:
        """Serve the shadow bundle, as learned as the served one, and score that one beside it from now on: so promoting
        once more goes back. Answers with the bundle that was served."""
        shadow, bundles = self.shadow, self._context.bundles
        if shadow is None:
            raise EndcastError("there is no shadow bundle", hint="Load one first")
        old = bundles.current
        await asyncio.to_thread(self._between, lambda: self._free(shadow))
        self._promoting = True
        try:
            bundles.swap(shadow.loaded)
        finally:
            self._promoting = False
        async with old.turns.change():  # all calls that began with it have ended
            left = self.lessons.release(old)
        await asyncio.to_thread(self._between, lambda: self._put_shadow(old, left))
        LOG.info("shadow bundle promoted", extra={"fields": {"bundle": shadow.loaded.id, "before": old.id}})
        return old

    def _free(self, shadow: Shadow) -> None:
        """End the scoring of the shadow bundle; its forecaster is told of outcomes as the served one is."""
        self._end_shadow()
        if self._context.settings.learn_from_outcomes:
            self.lessons.enrol(shadow.loaded)

    def _between(self, work: Callable[[], None]) -> None:
        """Do it in the thread that takes outcomes in, and wait."""
        self.open().between(work).result()

    def _enrol(self, loaded: Loaded) -> None:
        self._teach_recent(loaded)
        self.lessons.enrol(loaded)

    def _teach_recent(self, loaded: Loaded) -> None:
        book = self._book
        if book is not None and self._context.settings.learn_from_outcomes:
            for records in book.recent(self._context.settings.outcome_replay):
                self.lessons.teach(loaded, records)

    def _put_shadow(self, loaded: Loaded | None, left: Sequence[Record] | None = None) -> None:
        """In the thread that takes outcomes in, so that the shadow bundle misses none of them; ``left`` are those that it
        has still to be told, if it was served until now."""
        self._end_shadow()
        self.live.compare(None if loaded is None else loaded.id)
        if loaded is None:
            return
        if left is None:
            self._teach_recent(loaded)
        self.shadow = Shadow(loaded, self._limits.horizons, self.lessons.teach)
        self.shadow.tell(left or ())
        if self._context.settings.learn_from_outcomes:
            self.lessons.beside = self.shadow.tell

    def _end_shadow(self) -> None:
        old, self.shadow, self.lessons.beside = self.shadow, None, None
        if old is not None:
            old.close()

    def _swapped(self, old: Loaded, new: Loaded) -> None:
        shadow = self.shadow
        if shadow is not None and shadow.loaded.id == new.id:  # loaded once more, by a reload
            self._between(self._end_shadow)
        self._measure_soon(new)
        if not self._promoting:
            self.lessons.release(old)

    def _measure_soon(self, loaded: Loaded) -> None:
        if self._book is None:
            self._measure(loaded)
        else:
            self._book.between(lambda: self._measure(loaded))

    def _measure(self, loaded: Loaded) -> None:
        shadow = self.live.shadow
        self.live.serve(loaded.id, _grid(loaded))
        if shadow is not None and shadow != loaded.id:
            self.live.compare(shadow)

    def _aborts(self) -> bool:
        return bool(getattr(self._context.bundles.current.forecaster, "aborts", False))

    def _drain_soon(self) -> None:
        """From any thread: let the event loop tell forecasters what waits."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        task = asyncio.get_running_loop().create_task(self.lessons.drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _grid(loaded: Loaded) -> IntervalGrid | None:
    grid = getattr(loaded.forecaster, "grid", None)
    return grid if isinstance(grid, IntervalGrid) else None


def _ledger_limits(settings: Settings) -> LedgerLimits:
    return LedgerLimits(
        forecasts=settings.ledger_forecasts,
        age_s=settings.ledger_age_s,
        scored_per_s=settings.scored_per_s,
        texts=settings.outcome_texts,
        horizons=tuple(sorted(set(settings.calibration_horizons))),
        quantiles=tuple(sorted(set(settings.calibration_quantiles))),
    )


def _disk_limits(settings: Settings) -> Limits:
    days = settings.outcome_keep_days
    return Limits(
        segment_bytes=settings.outcome_segment_bytes,
        segment_age_s=settings.outcome_segment_s,
        keep_bytes=settings.outcome_keep_bytes,
        keep_age_s=None if days == 0.0 else days * DAY_S,
    )
