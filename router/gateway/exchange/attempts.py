"""The way of a request to an engine that answers: its prompt computed elsewhere where that is so, then worker after worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

from endcast.router.gateway.config import Worker
from endcast.router.gateway.engines.response import EngineResponse
from endcast.router.gateway.engines.upstream import UNAVAILABLE, UpstreamError, target_of
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.messages.answers import error_answer
from endcast.router.gateway.messages.body import Body, asking_for_usage
from endcast.router.gateway.messages.coding import Read, coding_of, decoding, is_known
from endcast.router.gateway.messages.headers import for_engine
from endcast.router.gateway.prefill.handoff import Handoff
from endcast.router.gateway.prefill.leg import PrefillLeg
from endcast.router.gateway.prefill.prefill import Prefilled, can_be_prefilled, handed_over, prefill_body
from endcast.router.gateway.seen.outcome import Outcome
from endcast.router.gateway.tickets import Ticket

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway

_EVENT_STREAM = "text/event-stream"


def streams(response: EngineResponse) -> bool:
    """Whether it is a stream of events that can be read."""
    return response.headers.get("Content-Type", "").lower().startswith(_EVENT_STREAM) and is_known(coding(response))


def coding(response: EngineResponse) -> str:
    """Its content coding; empty for none."""
    return coding_of(response.headers.get("Content-Encoding"))


def estimated_prompt(pool: PoolAtWork, body: Body) -> int:
    """Prompt tokens by the text, as engines' counts have corrected that so far; exact where it is token ids."""
    estimate = body.estimated_prompt
    return estimate if body.exact_prompt else pool.prompt_sizes.corrected(estimate)


class _Empty(ConnectionError):
    """A stream that ended before it began."""


class Attempts:
    """What is sent for one request, and the engine's response to it. ``end`` it whatever happens."""

    def __init__(
        self, gateway: Gateway, pool: PoolAtWork, http: web.BaseRequest, outcome: Outcome, body: Body, request_id: str
    ) -> None:
        """``request_id`` is what engines are told."""
        self._gateway, self._pool, self._http, self._outcome = gateway, pool, http, outcome
        self._body, self._id = body, request_id
        self._sent = asking_for_usage(body) if pool.config.usage_options else body.raw
        self._response: EngineResponse | None = None
        self._handoff: Handoff | None = None
        self.read: Read  #: more of the response, once there is one
        self.prefilled = Prefilled()
        #: Whether the prompt is to be computed on another engine first.
        self.elsewhere = bool(pool.prefill.workers) and can_be_prefilled(body)

    def instead(self, body: Body, request_id: str) -> Attempts:
        """The same for another body, when this one has ended."""
        return Attempts(self._gateway, self._pool, self._http, self._outcome, body, request_id)

    @property
    def asks_usage(self) -> bool:
        """Whether engines are asked for usage on the router's behalf."""
        return self._sent is not self._body.raw

    def end(self) -> None:
        """The request needs its engine no more; a prompt's KV that was computed is fetched all the same."""
        self.drop_response()
        if self._handoff is not None:
            self._handoff.settle()

    def drop_response(self) -> None:
        """Close the response, which aborts it in the engine unless it was read to its end."""
        if self._response is not None:
            self._response.close()
            self._response = None

    async def prefill(self, watched: Watched) -> web.Response | None:
        """Have the prompt computed; an engine's refusal, if that is what it came to."""
        pool, gateway = self._pool, self._gateway
        body, target = prefill_body(self._body), target_of(self._http)
        leg = PrefillLeg(gateway, pool, target, self._headers(None), body, estimated_prompt(pool, self._body))
        found = await leg.run(self._outcome, watched)
        if isinstance(found, web.Response):
            return found
        self.prefilled, self._outcome.cached_tokens = found, found.cached_tokens
        if found.transfer is None:
            pool.prefill.without_transfer += 1
            self._handoff = None
        else:
            self._handoff = Handoff(pool, self._send, gateway.background)
        return None

    async def run(self, ticket: Ticket, watched: Watched) -> tuple[EngineResponse, bytes] | web.Response:
        """A worker's response, with its first bytes if it streams, else its whole body; what the client is told if none came."""
        outcome, limits = self._outcome, self._gateway.config.limits
        for attempt in range(limits.retries + 1):
            worker = self._pool.workers[await self._pool.dispatcher.place(ticket)]
            outcome.attempts, outcome.worker = outcome.attempts + 1, worker.name
            watched.alive_s, watched.patience_s = self._gateway.clock(), limits.first_byte_timeout_s
            found = await self._call(worker, last=attempt == limits.retries)
            if found is not None:
                outcome.problem = ""
                return found
            watched.patience_s = math.inf
            outcome.failed_on.append(worker.name)
            self.drop_response()
            if attempt < limits.retries:
                if self._handoff is not None and not self._handoff.owed:  # the KV may have been fetched by what failed
                    refusal = await self.prefill(watched)
                    if refusal is not None:
                        return refusal
                self._pool.dispatcher.again(ticket)
        outcome.status = 502
        return error_answer(502, "engine_failed", "the engine failed before it answered")

    def _headers(self, rank: int | None) -> CIMultiDict[str]:
        headers = for_engine(
            self._http.headers,
            request_id=self._id,
            rank=rank,
            engine_key=self._pool.config.engine_key,
            drop=self._gateway.not_for_engines,
        )
        headers["Accept-Encoding"] = "identity"  # what is compressed cannot be read on its way
        return headers

    async def _send(self, worker: Worker, whole: bool = True) -> EngineResponse:
        """The request to ``worker``; not ``whole``: only what makes it fetch the prompt's KV."""
        body, transfer = self._sent, self.prefilled.transfer
        if transfer is not None:
            body = handed_over(body, transfer) if whole else prefill_body(self._body, transfer)
        url = worker.url + target_of(self._http)
        return await self._gateway.engines.call("POST", url, self._headers(worker.rank), body)

    async def _call(self, worker: Worker, *, last: bool) -> tuple[EngineResponse, bytes] | None:
        """The worker's response, with its first bytes if it streams, else its whole body; ``None`` if it failed."""
        gateway, handoff = self._gateway, self._handoff
        self._outcome.engine = worker.url
        try:
            response = await (self._send(worker) if handoff is None else handoff.call(worker))
            self._response = response
            if response.status in UNAVAILABLE and not last:
                self._outcome.problem = f"the engine answered {response.status}"
                gateway.failed(worker.url)
                return None
            self.read = decoding(response.readany, coding(response) if streams(response) else "")
            data = await (self.read() if streams(response) else response.read())
            if not data and response.status == 200:
                raise _Empty("the engine answered with nothing")
        except UpstreamError as error:
            self._outcome.problem = f"{type(error).__name__}: {error}"
            gateway.failed(worker.url, error)
            return None
        gateway.served(worker.url)
        return response, data
