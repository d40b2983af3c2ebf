"""Who waits for a place, and when rounds run: the asyncio side of a pool's ``RoutingCore``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from endcast.router.gateway.config import Limits
from endcast.router.gateway.forecasts.desk import Threaded
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.tickets import NOWHERE, Intake, Phase, Ticket
from endcast.types import EndReason

#: Share of a step, and seconds, that a round waits after an end for other ends of the same step.
_GATHER_STEPS, _GATHER_S = 0.25, 0.005


class NotServed(Exception):
    """A request that the router itself turns away: HTTP status, a code and words for the client, seconds to wait."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after_s = status, code, message, retry_after_s


class Dispatcher:
    """One pool: requests enter with ``enter``, get their worker by ``place``, and leave by ``leave``."""

    def __init__(self, core: RoutingCore, limits: Limits) -> None:
        self.core = core
        self.turned_away: dict[str, int] = {"queue_full": 0, "wait_exceeded": 0, "no_worker": 0, "shed": 0}
        self.limits = limits
        self.on_freed: Callable[[], None] | None = None  #: told, soon, of every end; for fleets that change
        self._loop = asyncio.get_running_loop()
        self._futures: dict[Ticket, tuple[asyncio.Future[int], float]] = {}  # and until when; longest waiting first
        self._sweep_s = min(limits.max_wait_s / 4, 1.0)
        self._expiry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_s = 0.0
        self._down_since: float | None = None
        self._down = 0
        self._up = [True] * len(core.workers)
        self.placed = [(0, 0)] * len(core.workers)  #: slots and prompt tokens ever placed on each worker
        self._listen_to_desk()

    # ---- requests

    def enter(self, intake: Intake) -> Ticket:
        """A new request; ``NotServed`` 429 where too many wait already."""
        self.refuse_beyond_queue()
        return self.core.open(intake)

    def refuse_beyond_queue(self, others: int = 0) -> None:
        """``NotServed`` 429 where too many wait already, ``others`` with them that do not wait here yet."""
        if self.core.waiting + others >= self.limits.max_waiting:
            self.turned_away["queue_full"] += 1
            raise NotServed(429, "queue_full", "too many requests wait for a slot", self._retry_after())

    async def place(self, ticket: Ticket) -> int:
        """The worker for a request that waits; ``NotServed`` 503 where there is none in time."""
        if ticket.phase is Phase.RUNNING:
            return ticket.worker  # a round came before anybody asked
        future: asyncio.Future[int] = self._loop.create_future()
        if ticket.phase is Phase.REFUSED:
            self._refuse(future, "shed")
        self._futures[ticket] = future, self._loop.time() + self.limits.max_wait_s
        self.wake()
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._sweep_s, self._expire)
        if self._down_since is not None:
            self._loop.call_later(self.limits.no_worker_wait_s, self._all_down)
        try:
            await future
            return ticket.worker
        finally:
            del self._futures[ticket]

    def give_back(self, ticket: Ticket, generated: int) -> None:
        """Its engine gave it back after so many tokens: nothing is held for it until it is tried ``again``."""
        self.core.give_back(ticket, generated)
        self._freed()

    def again(self, ticket: Ticket) -> None:
        """Its worker failed before it answered, or gave it back: ``place`` it anew."""
        self.core.again(ticket)
        self._freed()

    def leave(self, ticket: Ticket, end: EndReason, output_tokens: int) -> None:
        """The request is over, however; ``output_tokens`` of its first answer."""
        self.core.on_end(ticket, end, output_tokens=output_tokens, finished_s=time.time())
        self._freed()

    def stepped(self) -> None:
        """A decode step began: time for a round if anything waits, or is read."""
        if self.core.waiting or self.core.reads:
            self.wake()

    # ---- workers

    def accept(self, worker: int, accepting: bool) -> None:
        """Whether ``worker`` may be given requests."""
        if self._up[worker] == accepting:
            return
        self._up[worker] = accepting
        self.core.accept(worker, accepting)
        self._down += 1 if not accepting else -1
        if self._down < len(self._up):
            self._down_since = None
            self.wake()
        elif self._down_since is None:
            self._down_since = self._loop.time()
            self._loop.call_later(self.limits.no_worker_wait_s, self._all_down)

    def moved(self, places: Sequence[int]) -> None:
        """Workers were numbered anew: each one's new index or ``NOWHERE``. All may be given requests, until told otherwise."""
        placed, self.placed = self.placed, [(0, 0)] * len(self.core.workers)
        for before, place in enumerate(places):
            if place != NOWHERE:
                self.placed[place] = placed[before]
        self._up, self._down, self._down_since = [True] * len(self.core.workers), 0, None
        self._listen_to_desk()

    def _listen_to_desk(self) -> None:
        if isinstance(self.core.desk, Threaded):
            self.core.desk.wake = self._wake_from_thread

    @property
    def up(self) -> int:
        """Workers that may be given requests."""
        return len(self._up) - self._down

    def is_up(self, worker: int) -> bool:
        """Whether ``worker`` may be given requests."""
        return self._up[worker]

    # ---- rounds

    def wake(self, after_s: float = 0.0) -> None:
        """Run a round soon, at the latest in ``after_s``."""
        when = self._loop.time() + after_s
        if self._timer is not None:
            if when >= self._timer_s:
                return
            self._timer.cancel()
        self._timer_s = when if after_s else 0.0
        self._timer = self._loop.call_later(after_s, self._round) if after_s else self._loop.call_soon(self._round)

    def _wake_from_thread(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self.wake)

    def _round(self) -> None:
        self._timer = None
        core = self.core
        for ticket in core.decide(self._loop.time()):
            if ticket.phase is Phase.RUNNING:
                slots, tokens = self.placed[ticket.worker]
                self.placed[ticket.worker] = slots + ticket.intake.width, tokens + ticket.to_prefill
            future, _ = self._futures.get(ticket, (None, 0.0))
            if future is None or future.done():
                continue
            if ticket.phase is Phase.REFUSED:
                self._refuse(future, "shed")
            else:
                future.set_result(ticket.worker)
        if isinstance(core.desk, Threaded) and core.desk.due_s is not None:
            self.wake(max(core.desk.due_s - time.monotonic(), 0.0) + 1e-4)

    def _freed(self) -> None:
        if self.on_freed is not None:
            self._loop.call_soon(self.on_freed)
        if self.core.waiting:
            step = self.core.beats.step_s
            self.wake(0.0 if step is None else min(_GATHER_STEPS * step, _GATHER_S))
        elif self.core.desk is not None:
            self.wake(_GATHER_S)  # so that the forecaster learns of the end

    def _expire(self) -> None:
        """Turn away what has waited too long, and look again later if anything waits."""
        self._expiry = None
        now = self._loop.time()
        for future, until_s in list(self._futures.values()):
            if until_s > now:
                break
            if not future.done():
                self._refuse(future, "wait_exceeded")
        if self._futures:
            self._expiry = self._loop.call_later(self._sweep_s, self._expire)

    def _all_down(self) -> None:
        """No worker has been up for as long as requests may wait for one."""
        since = self._down_since
        if since is None or self._loop.time() < since + self.limits.no_worker_wait_s - 1e-3:
            return
        for future, _ in list(self._futures.values()):
            if not future.done():
                self._refuse(future, "no_worker")

    def _refuse(self, future: asyncio.Future[int], why: str) -> None:
        self.turned_away[why] += 1
        message = {
            "wait_exceeded": "no slot became free in time",
            "no_worker": "no engine is reachable",
            "shed": "the fleet is overloaded",
        }[why]
        future.set_exception(NotServed(503, why, message, self._retry_after()))

    def _retry_after(self) -> float:
        """Seconds after which another try makes sense: about what the queue needs to move on by a slot."""
        step = self.core.beats.step_s or 0.0
        return max(1.0, min(60.0, 100.0 * step))
