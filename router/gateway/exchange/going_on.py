"""A request that its engine gave back goes on elsewhere, and its client sees one answer.

The marker that says so is kept (``streams/so_far.py``); the prompt is sent again with the output so far and what is left of the
caps (``messages/continuing.py``), as another attempt: through prefill workers where the pool has them, then through a routing
round. What comes is told as the same stream (``streams/splice.py``), or put together into one answer (``streams/joined.py``).
Where that does not come about, the client gets the marker as its engine sent it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from endcast.router.gateway.engines.response import EngineResponse
from endcast.router.gateway.engines.upstream import UpstreamError
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.exchange.attempts import Attempts, coding, streams
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.messages.body import Body
from endcast.router.gateway.messages.coding import Read
from endcast.router.gateway.messages.continuing import continued, stops_of, without_begun_stop
from endcast.router.gateway.routing.dispatch import NotServed
from endcast.router.gateway.seen.outcome import Outcome
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.streams.events import data_of
from endcast.router.gateway.streams.frames import count, read_frame, text_of, usage_of
from endcast.router.gateway.streams.joined import joined
from endcast.router.gateway.streams.so_far import SoFar, is_marker
from endcast.router.gateway.streams.splice import Before, Splice, before_of
from endcast.router.gateway.tickets import Ticket

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway

T = TypeVar("T")
#: What stands behind a marker comes at once, if it comes.
_BEHIND_S = 1.0


async def _nothing() -> bytes:
    return b""


class GoingOn:
    """One request of ``body``, from its first engine on. ``attempts`` are those of the engine that it is at."""

    def __init__(
        self,
        gateway: Gateway,
        pool: PoolAtWork,
        body: Body,
        attempts: Attempts,
        account: Account,
        so_far: SoFar,
        outcome: Outcome,
        *,
        ticket: Ticket,
        watched: Watched,
        request_id: str,
    ) -> None:
        """``request_id`` is the first engine's; later ones are told others."""
        self._gateway, self._pool, self._body, self._id = gateway, pool, body, request_id
        self._account, self._so_far, self._outcome = account, so_far, outcome
        self._ticket, self._watched = ticket, watched
        self.attempts = attempts
        self._problem = ""
        self._sent = 0  # how often it was sent on
        self._tokens = 0  # of the answer, when it was sent on last
        self._in_vain = 0  # how often in a row nothing came of that
        self._read: Read = attempts.read

    @property
    def problem(self) -> str:
        """Why it does not go on, where it does not."""
        return self._problem or self._so_far.obstacle

    # ---- streams

    async def read(self) -> bytes:
        """More of the client's one stream, as ``Attempts.read``: the next engine's, where one has given the request back."""
        if self._so_far.kept:
            return await self._beyond()
        return await self._read()

    async def _beyond(self) -> bytes:
        """What comes after a marker: the first of the next engine's stream, or the marker."""
        account, so_far = self._account, self._so_far
        await self._hear_behind()
        tokens = max(account.tokens.get(0, 0), so_far.told_tokens)
        before = before_of(data_of(so_far.kept[0]), account.prompt_tokens, tokens, so_far.usage)
        told = await self._in_time(self._streamed_on(so_far.text, tokens, before))
        if told is None:
            self._read = _nothing
            return account.pass_on()
        so_far.take_kept()
        account.tokens[0] = tokens
        self._went_on()
        return told

    async def _hear_behind(self) -> None:
        """The rest of what the engine says that gave the request back: its counts, if it tells them only there."""
        with suppress(*UpstreamError):
            async with asyncio.timeout(_BEHIND_S):
                while data := await self._read():
                    self._account.feed(data)

    async def _streamed_on(self, text: str, tokens: int, before: Before) -> bytes | None:
        """The first events of the next engine; another one is tried where one fails before it has told any."""
        while (answered := await self._sent_on(text, tokens, streamed=True)) is not None:
            splice, data = Splice(before), answered
            try:
                while data and not (told := splice.feed(data)):
                    data = await self.attempts.read()
            except UpstreamError as error:
                self._gateway.failed(self._outcome.engine, error)
                continue
            if data:
                self._read = self._spliced(splice)
                return told
        return None

    def _spliced(self, splice: Splice) -> Read:
        async def read() -> bytes:
            while data := await self.attempts.read():
                self._watched.alive_s = self._gateway.clock()
                if told := splice.feed(data):
                    return told
            return splice.take_rest()

        return read

    # ---- answers that are not streamed

    async def whole(self, answer: bytes) -> bytes:
        """The client's one answer: the first engine's ``answer`` and what goes on from it."""
        first, before, text = answer, before_of(answer, None, 0), ""
        while (said := self._said_until_given_back(answer, text, before)) is not None:
            longer, told = said
            found = await self._in_time(self._sent_on(longer, told.tokens, streamed=False))
            if found is None:
                break
            text, before, answer = longer, told, found
            self._went_on()
        return answer if answer is first else joined(answer, before, text)

    def _said_until_given_back(self, answer: bytes, text: str, before: Before) -> tuple[str, Before] | None:
        """The text up to the end of an ``answer`` that goes on, and what stands before the next one; else ``None``."""
        frame, so_far = read_frame(answer), self._so_far
        choice = None if frame is None else next(filter(is_marker, frame.choices or ()), None)
        if frame is None or choice is None:
            return None
        so_far.hear(choice, text_of(choice), answer)
        usage = usage_of(frame)
        tokens = None if usage is None else count(usage.completion_tokens)
        if not so_far.keeps(choice):
            return None
        if usage is None or tokens is None:
            so_far.obstacle = "usage that was not told"
            return None
        if before.tokens == 0:
            before = before_of(answer, count(usage.prompt_tokens), 0, bytes(frame.usage))
            self._pool.core.on_prompt(self._ticket, before.prompt_tokens or self._ticket.prompt)
        return without_begun_stop(text + text_of(choice), stops_of(self._body)), before.after(tokens)

    # ---- from one engine to the next

    def _went_on(self) -> None:
        self._problem = ""
        self._outcome.recomputed += 1
        self._pool.recomputed["continued"] += 1

    async def _in_time(self, work: Coroutine[Any, Any, T | None]) -> T | None:
        """What comes of ``work``; ``None``, with a problem, where the router turned it away or an engine did not answer in time."""
        watched = self._watched
        try:
            return await work
        except NotServed as refusal:
            self._problem = refusal.code
        except asyncio.CancelledError:
            if not watched.overdue:
                raise
            watched.task.uncancel()
            watched.overdue, self._problem = False, "first_byte_timeout"
            self._gateway.failed(self._outcome.engine)
        finally:
            watched.alive_s = self._gateway.clock()
            watched.patience_s = self._gateway.config.limits.inter_chunk_timeout_s
            self._outcome.status = 200  # what the client has been told, or will be
        return None

    async def _sent_on(self, text: str, tokens: int, *, streamed: bool) -> bytes | None:
        """Have the request go on after ``tokens`` tokens that read ``text``: the first that the next engine says, or the whole
        of it; ``None``, with a problem, where there is none."""
        limits, so_far = self._gateway.config.limits, self._so_far
        self._in_vain = self._in_vain + 1 if tokens <= self._tokens else 0
        body = continued(self._body, text, tokens, so_far.token_ids if so_far.wants_ids else None)
        if self._outcome.recomputed >= self._pool.config.most_continuations:
            self._problem = "given back too often"
        elif self._in_vain > limits.retries:
            self._problem = self._problem or "nothing came of it"
        elif body is None:
            self._problem = "no tokens are left"
        else:
            self._tokens, self._sent = tokens, self._sent + 1
            found = await self._answered(body, tokens)
            if isinstance(found, web.Response):
                self._problem = f"{found.status} from the next engine"
                return None
            response, data = found
            if response.status == 200 and streams(response) == streamed and (streamed or not coding(response)):
                return data
            self._problem = f"{response.status} from the next engine"
        return None

    async def _answered(self, body: Body, tokens: int) -> tuple[EngineResponse, bytes] | web.Response:
        """Another engine's response to ``body``."""
        dispatcher, ticket, watched = self._pool.dispatcher, self._ticket, self._watched
        self.attempts.end()
        dispatcher.give_back(ticket, tokens)
        self.attempts = self.attempts.instead(body, f"{self._id}-{self._sent}")
        watched.patience_s = math.inf
        if self.attempts.elsewhere:
            refusal = await self.attempts.prefill(watched)
            if refusal is not None:
                return refusal
        dispatcher.again(ticket)
        return await self.attempts.run(ticket, watched)
