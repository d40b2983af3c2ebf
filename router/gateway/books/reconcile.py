"""The books beside the engines' own: ``/metrics`` of each address polled, differences shown, foreign load adopted.

What an engine counts beyond every request of ours that it can possibly still count is foreign: it was dispatched by another
router, or by this one before a restart. Ours are bounded from above (what ran before the poll, and all that was placed since), so
none of them is taken for foreign; what ended before is given time to end in the engine. After an address's first poll
an excess counts once two polls in a row saw it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from endcast.router.gateway.books.adopted import Adopted
from endcast.router.gateway.config import workers_of
from endcast.router.gateway.engines.metrics import RankMetrics, read_metrics, together
from endcast.router.gateway.engines.upstream import UpstreamError
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.tickets import NOWHERE

#: What ended in the books has so long, or so many steps, to end in the engine.
_GRACE_S, _GRACE_STEPS, _LONGEST_GRACE_S = 0.25, 4.0, 2.0
#: The router's start waits so long for engines' first answers.
_FIRST_S = 1.0
#: Adopted load of an address that has not told for so long is let go.
_STALE_S = 60.0

Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]


class Own(msgspec.Struct, frozen=True):
    """A worker's books: slots taken, KV tokens, and all that was ever placed there (requests' slots, prompts' tokens)."""

    active: int
    load: int
    placed: int
    placed_tokens: int


class Compared(msgspec.Struct, frozen=True):
    """One worker at its last poll: what its engine told, and what the books had by then of the router's own."""

    requests: int | None
    kv_tokens: int | None
    own_requests: int
    own_tokens: int
    seen_s: float


def foreign(told: RankMetrics, before: Own, now: Own) -> tuple[int, int]:
    """Requests, and their KV tokens, that cannot be ours: polled between ``before`` and ``now``.

    KV that is held without a foreign request is none; where KV is not told, a foreign request is as large as ours are.
    """
    ours = before.active + now.placed - before.placed
    requests = max((told.requests or 0) - ours, 0)
    if requests == 0:
        return 0, 0
    if told.kv_tokens is None:
        return requests, requests * (now.load // max(now.active, 1))
    most = max(before.load + now.placed_tokens - before.placed_tokens, now.load) + ours * told.block_size
    return requests, max(told.kv_tokens - most, 0)


class Books:
    """One pool's: what was told of each worker, and what was adopted there."""

    def __init__(self, pool: PoolAtWork) -> None:
        self.pool = pool
        self.adopted = Adopted(pool.core)
        self.compared: dict[int, Compared] = {}
        self._excess: dict[int, tuple[int, int]] = {}
        self.generation = 0  #: of the workers' numbers
        pool.on_moved = self.moved

    def moved(self, places: Sequence[int]) -> None:
        """The pool's workers were numbered anew: each one's new index or ``NOWHERE``. What was adopted is taken in again."""
        before, compared, excess = self.adopted, self.compared, self._excess
        self.adopted, self.generation = Adopted(self.pool.core), self.generation + 1
        kept = [(old, new) for old, new in enumerate(places) if new != NOWHERE]
        self.compared = {new: compared[old] for old, new in kept if old in compared}
        self._excess = {new: excess[old] for old, new in kept if old in excess}
        for old, new in kept:
            self.adopted.adopt(new, int(before.requests[old]), int(before.tokens[old]))

    def own(self, worker: int) -> Own:
        """The books of ``worker`` without what was adopted."""
        placed = self.pool.dispatcher.placed[worker]
        return Own(int(self.adopted.own_active()[worker]), int(self.adopted.own_load()[worker]), *placed)

    def take(self, worker: int, told: RankMetrics, before: Own, now_s: float) -> None:
        """An engine told of ``worker``; ``before`` are its books from before it was asked."""
        if told.requests is None:
            return
        now = self.own(worker)
        self.compared[worker] = Compared(told.requests, told.kv_tokens, now.active, now.load, now_s)
        found = foreign(told, before, now)
        last = self._excess.get(worker, found)
        self._excess[worker] = found
        self._adopt(worker, min(last[0], found[0]), found[1])

    def stale(self, worker: int, now_s: float) -> None:
        """``worker`` could not be asked: what it told counts for a while longer."""
        seen = self.compared.get(worker)
        if seen is not None and now_s > seen.seen_s + _STALE_S:
            del self.compared[worker]
            self._excess.pop(worker, None)
            self._adopt(worker, 0, 0)

    def _adopt(self, worker: int, requests: int, tokens: int) -> None:
        if self.adopted.adopt(worker, requests, tokens) and self.pool.core.waiting:
            self.pool.dispatcher.wake()


class Reconciler:
    """Polls every address each ``every_s`` seconds; 0 never."""

    def __init__(self, pools: Sequence[PoolAtWork], fetch: Fetch, every_s: float) -> None:
        """``fetch`` is a GET: status and body, or one of ``UpstreamError``, in bounded time and size."""
        self.books = [Books(pool) for pool in pools]
        self._fetch, self._every_s = fetch, every_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clock = asyncio.get_running_loop().time

    async def start(self) -> None:
        """Begin; waits for the first answers, a second at most."""
        first = self._follow()
        if not first:
            return
        waits = [asyncio.create_task(event.wait()) for event in first]
        _, late = await asyncio.wait(waits, timeout=_FIRST_S)
        for task in late:
            task.cancel()

    def change(self, pools: Sequence[PoolAtWork], every_s: float) -> None:
        """Other pools, or other workers in them, from now on."""
        known = {books.pool: books for books in self.books}
        self.books = [known.get(pool) or Books(pool) for pool in pools]
        self._every_s = every_s
        self._follow()

    def _follow(self) -> list[asyncio.Event]:
        """Poll the addresses that there are: an event for each new one, set at its first answer."""
        urls = (
            {worker.url for books in self.books for worker in workers_of(books.pool.config)} if self._every_s else set()
        )
        for url in self._tasks.keys() - urls:
            self._tasks.pop(url).cancel()
        first = []
        for url in sorted(urls - self._tasks.keys()):
            first.append(asyncio.Event())
            self._tasks[url] = asyncio.create_task(self._watch(url, first[-1]), name=f"metrics of {url}")
        return first

    async def stop(self) -> None:
        """Stop polling."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _watch(self, url: str, first: asyncio.Event) -> None:
        while True:
            await self.poll(url)
            first.set()
            await asyncio.sleep(self._every_s)

    async def poll(self, url: str) -> None:
        """Ask the engine at ``url`` once, and bring the books of its workers up to date."""
        asked = [(books, worker) for books in self.books for worker in books.pool.workers if worker.url == url]
        before = [books.own(worker.index) for books, worker in asked]
        generations = [books.generation for books, _ in asked]
        if any(own.placed for own in before):
            steps = [books.pool.core.beats.step_s or 0.0 for books, _ in asked]
            await asyncio.sleep(min(max(_GRACE_S, _GRACE_STEPS * max(steps)), _LONGEST_GRACE_S))
        ranks = await self._told(url)
        for (books, worker), own, generation in zip(asked, before, generations, strict=True):
            if books.generation != generation:
                continue  # its workers have other numbers by now
            told = together(ranks) if worker.rank is None else ranks.get(worker.rank, RankMetrics())
            if told.requests is None:
                books.stale(worker.index, self._clock())
            else:
                books.take(worker.index, told, own, self._clock())

    async def _told(self, url: str) -> dict[int, RankMetrics]:
        try:
            status, body = await self._fetch(f"{url}/metrics")
            return read_metrics(body.decode()) if status == 200 else {}
        except (*UpstreamError, ValueError):
            return {}  # without metrics a worker is routed to as the books have it
