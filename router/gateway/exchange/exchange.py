"""One request's life: waiting, attempts, the response, and how it ended. Everything is given back in one ``finally``."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

from endcast.router.gateway.config import Worker
from endcast.router.gateway.engines.response import EngineResponse
from endcast.router.gateway.engines.upstream import UNAVAILABLE, UpstreamError, target_of
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.messages.answers import error_answer, error_frames
from endcast.router.gateway.messages.body import Body, asking_for_usage, parameters_of, prompt_of
from endcast.router.gateway.messages.coding import Read, coding_of, decoded, decoding, is_known
from endcast.router.gateway.messages.headers import for_client, for_engine
from endcast.router.gateway.prefill.handoff import Handoff
from endcast.router.gateway.prefill.leg import PrefillLeg
from endcast.router.gateway.prefill.prefill import Prefilled, can_be_prefilled, handed_over, prefill_body
from endcast.router.gateway.routing.dispatch import NotServed
from endcast.router.gateway.seen.outcome import Outcome
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.streams.relay import ClientLeft, Relay, to_client
from endcast.router.gateway.tickets import Intake, Phase, Ticket
from endcast.router.length_class import supposed_tokens
from endcast.survival import NO_CAP, next_forecast_id
from endcast.types import EndReason, Request

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway

_EVENT_STREAM = "text/event-stream"


def _streams(response: EngineResponse) -> bool:
    return response.headers.get("Content-Type", "").lower().startswith(_EVENT_STREAM) and is_known(_coding(response))


def _coding(response: EngineResponse) -> str:
    return coding_of(response.headers.get("Content-Encoding"))


class _Empty(ConnectionError):
    """A stream that ended before it began."""


class Exchange:
    """A call to ``/v1/completions`` or ``/v1/chat/completions``."""

    def __init__(
        self, gateway: Gateway, pool: PoolAtWork, http: web.BaseRequest, body: Body, tenant: str | None
    ) -> None:
        self._gateway, self._pool, self._http, self._body, self._tenant = gateway, pool, http, body, tenant
        self._clock = gateway.clock
        self._began_s = self._clock()
        self._id = next_forecast_id("r")
        self._outcome = Outcome(time.time())
        self._sent = asking_for_usage(body) if pool.config.usage_options else body.raw
        self._account: Account | None = None
        self._response: EngineResponse | None = None
        self._read: Read
        self._prefilled = Prefilled()
        self._handoff: Handoff | None = None

    async def run(self) -> web.StreamResponse:
        """The answer; ``NotServed`` where the router turns it away. The books are clean when it returns."""
        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        outcome, dispatcher = self._outcome, self._pool.dispatcher
        elsewhere = bool(self._pool.prefill.workers) and can_be_prefilled(self._body)
        ticket = dispatcher.enter(self._intake()) if not elsewhere else self._not_entered()
        watched = Watched(task, math.inf, self._began_s)
        self._gateway.watch.add(watched)
        try:
            if elsewhere:
                refusal = await self._prefill(watched)
                if refusal is not None:
                    return refusal
                ticket = dispatcher.enter(self._intake())
            return await self._attempts(ticket, watched)
        except NotServed as refusal:
            outcome.status, outcome.problem = refusal.status, refusal.code
            raise
        except asyncio.CancelledError:
            if watched.overdue:
                task.uncancel()
                outcome.status, outcome.problem = 504, "first_byte_timeout"
                self._gateway.failed(outcome.engine)
                return error_answer(504, outcome.problem, "the engine did not answer in time")
            outcome.end, outcome.problem = EndReason.ABORT, "client_left"
            raise
        except ClientLeft:
            outcome.end, outcome.problem = EndReason.ABORT, "client_left"
            return web.Response(status=499)  # nobody reads it
        finally:
            self._gateway.watch.remove(watched)
            if self._response is not None:
                self._response.close()  # aborts it in the engine, unless it was read to its end
            if self._handoff is not None:
                self._handoff.settle()
            outcome.duration_s = self._clock() - self._began_s
            outcome.wait_s = max((ticket.placed_s or self._clock()) - self._began_s, 0.0)
            self._finish(ticket)

    def _intake(self) -> Intake:
        body, pool = self._body, self._pool
        tokens = min(self._prefilled.prompt_tokens or self._estimated_prompt(), pool.largest_prompt)
        flags = pool.config.policy == "length_bucket"
        return Intake(
            prompt_tokens=tokens,
            width=body.choices,
            max_tokens=NO_CAP if body.max_tokens is None else body.max_tokens,
            tenant=pool.tenant_number(self._tenant),
            weight=2.0 ** -min(max(body.priority, -10.0), 10.0),
            supposed=supposed_tokens(parameters_of(body)) if flags else 0,
            request=None if pool.desk is None else self._request(tokens),
        )

    def _estimated_prompt(self) -> int:
        estimate = self._body.estimated_prompt
        return estimate if self._body.exact_prompt else self._pool.prompt_sizes.corrected(estimate)

    def _request(self, prompt_tokens: int) -> Request:
        """The request as forecasters see it."""
        body = self._body
        prompt, messages = prompt_of(body)
        return Request(
            request_id=self._id,
            arrival_s=self._outcome.arrival_s,
            prompt_tokens=prompt_tokens,
            prompt=prompt,
            messages=messages,
            model=body.model,
            tenant=self._tenant,
            max_tokens=body.max_tokens,
            context_limit=self._pool.config.context_limit,
            parameters=parameters_of(body),
        )

    # ---- the prompt computed elsewhere

    def _not_entered(self) -> Ticket:
        """Stands for the request until its prompt has been computed: nothing of it is in the books of decode."""
        self._pool.dispatcher.refuse_beyond_queue(self._pool.prefill.requests)
        ticket = Ticket(0, self._intake())
        ticket.phase = Phase.GONE
        return ticket

    async def _prefill(self, watched: Watched) -> web.Response | None:
        """Have the prompt computed; an engine's refusal, if that is what it came to."""
        pool, gateway = self._pool, self._gateway
        body, target = prefill_body(self._body), target_of(self._http)
        leg = PrefillLeg(gateway, pool, target, self._headers(None), body, self._estimated_prompt())
        found = await leg.run(self._outcome, watched)
        if isinstance(found, web.Response):
            return found
        self._prefilled, self._outcome.cached_tokens = found, found.cached_tokens
        if found.transfer is None:
            pool.prefill.without_transfer += 1
            self._handoff = None
        else:
            self._handoff = Handoff(pool, self._send, gateway.background)
        return None

    # ---- attempts

    async def _attempts(self, ticket: Ticket, watched: Watched) -> web.StreamResponse:
        outcome, limits = self._outcome, self._gateway.config.limits
        for attempt in range(limits.retries + 1):
            worker = self._pool.workers[await self._pool.dispatcher.place(ticket)]
            outcome.attempts, outcome.worker = attempt + 1, worker.name
            watched.alive_s, watched.patience_s = self._clock(), limits.first_byte_timeout_s
            found = await self._call(worker, last=attempt == limits.retries)
            if found is not None:
                outcome.problem = ""
                response, data = found
                if _streams(response):
                    return await self._stream(ticket, watched, response, data)
                return self._whole(ticket, response, data)
            watched.patience_s = math.inf
            outcome.failed_on.append(worker.name)
            self._drop_response()
            if attempt < limits.retries:
                if self._handoff is not None and not self._handoff.owed:  # the KV may have been fetched by what failed
                    refusal = await self._prefill(watched)
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
        body, transfer = self._sent, self._prefilled.transfer
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
            self._read = decoding(response.readany, _coding(response) if _streams(response) else "")
            data = await (self._read() if _streams(response) else response.read())
            if not data and response.status == 200:
                raise _Empty("the engine answered with nothing")
        except UpstreamError as error:
            self._outcome.problem = f"{type(error).__name__}: {error}"
            gateway.failed(worker.url, error)
            return None
        gateway.served(worker.url)
        return response, data

    def _drop_response(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _account_for(self, ticket: Ticket) -> Account:
        self._account = Account(
            ticket,
            self._pool.dispatcher,
            self._body,
            strips=self._sent is not self._body.raw,
            keeps_text=self._gateway.config.log.outputs,
            clock=self._clock,
        )
        return self._account

    def _whole(self, ticket: Ticket, response: EngineResponse, data: bytes) -> web.Response:
        outcome, account = self._outcome, self._account_for(ticket)
        outcome.status = response.status
        if response.status == 200:
            account.whole(decoded(data, _coding(response)))
            outcome.ttft_s = self._clock() - self._began_s
            outcome.end = EndReason.ERROR if account.failed else account.ends.get(0, EndReason.ERROR)
        return web.Response(
            status=response.status, reason=response.reason, headers=for_client(response.headers), body=data
        )

    async def _stream(
        self, ticket: Ticket, watched: Watched, response: EngineResponse, data: bytes
    ) -> web.StreamResponse:
        """Relay a stream whose first bytes are ``data``, until it or the client ends."""
        outcome, account = self._outcome, self._account_for(ticket)
        outcome.status = response.status
        outcome.ttft_s = self._clock() - self._began_s
        watched.patience_s = self._gateway.config.limits.inter_chunk_timeout_s
        headers = for_client(response.headers)
        if _coding(response):
            del headers["Content-Encoding"]
        out = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
        relay = Relay(out, account, watched, self._read, self._clock, None if _coding(response) else response)
        problem = ""
        try:
            problem = await relay.run(self._http, data, ends_well=response.status == 200)
        except asyncio.CancelledError:
            if not watched.overdue:
                raise
            watched.task.uncancel()
            if relay.writing:  # it is the client who does not go on
                if self._http.transport is not None:
                    self._http.transport.abort()
                raise ClientLeft from None
            problem = "" if account.complete else "inter_chunk_timeout"
        outcome.problem = problem
        if problem:
            self._drop_response()
            await to_client(out.write(error_frames(502, problem, "the engine's stream broke off")))
        elif response.status == 200 and not account.failed:
            outcome.end = account.ends.get(0, EndReason.ERROR)
        await to_client(out.write_eof())
        return out

    # ---- afterwards

    def _finish(self, ticket: Ticket) -> None:
        account, outcome, pool = self._account, self._outcome, self._pool
        tokens = answer_tokens(account, self._body.choices)
        pool.dispatcher.leave(ticket, outcome.end, tokens[0])
        pool.calibration.ended(ticket.expected, tokens[0], outcome.end)
        if account is not None and account.prompt_tokens is not None and not self._body.exact_prompt:
            pool.prompt_sizes.learn(self._body.estimated_prompt, account.prompt_tokens)
        self._gateway.metrics.finished(pool, outcome, sum(tokens))
        if self._gateway.log is not None:
            self._gateway.log.write(
                outcome,
                body=self._body,
                ticket=ticket,
                account=account,
                tokens=tokens,
                pool=pool,
                request_id=self._id,
                client_id=self._http.headers.get("X-Request-Id"),
                tenant=self._tenant,
            )


def answer_tokens(account: Account | None, answers: int) -> list[int]:
    """Output tokens of each answer, as well as the response told."""
    if account is None:
        return [0] * answers
    tokens = [account.tokens.get(i, 0) for i in range(answers)]
    total = account.total_tokens
    if total is None or (any(tokens) and answers > 1):
        return tokens
    share, rest = divmod(total, answers)  # told together only
    return [share + (i < rest) for i in range(answers)]
