"""One request's life: waiting, attempts, the response, and how it ended. Everything is given back in one ``finally``."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from aiohttp import web

from endcast.router.gateway.engines.response import EngineResponse
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.exchange.attempts import Attempts, coding, estimated_prompt, streams
from endcast.router.gateway.exchange.going_on import GoingOn
from endcast.router.gateway.fleet.pools import PoolAtWork
from endcast.router.gateway.messages.answers import error_answer, error_frames
from endcast.router.gateway.messages.body import Body, parameters_of, prompt_of
from endcast.router.gateway.messages.coding import decoded
from endcast.router.gateway.messages.continuing import obstacle, wants_token_ids
from endcast.router.gateway.messages.headers import for_client
from endcast.router.gateway.messages.prefixes import leading_blocks
from endcast.router.gateway.routing.dispatch import NotServed
from endcast.router.gateway.seen.outcome import Outcome
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.streams.relay import ClientLeft, Relay, to_client
from endcast.router.gateway.streams.so_far import SoFar
from endcast.router.gateway.tickets import Intake, Phase, Ticket
from endcast.router.length_class import supposed_tokens
from endcast.survival import NO_CAP, next_forecast_id
from endcast.types import EndReason, Request

if TYPE_CHECKING:
    from endcast.router.gateway.gateway import Gateway


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
        self._attempts = Attempts(gateway, pool, http, self._outcome, body, self._id)
        self._account: Account | None = None
        self._going_on: GoingOn | None = None

    async def run(self) -> web.StreamResponse:
        """The answer; ``NotServed`` where the router turns it away. The books are clean when it returns."""
        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        outcome, dispatcher, elsewhere = self._outcome, self._pool.dispatcher, self._attempts.elsewhere
        ticket = dispatcher.enter(self._intake()) if not elsewhere else self._not_entered()
        watched = Watched(task, math.inf, self._began_s)
        self._gateway.watch.add(watched)
        try:
            if elsewhere:
                refusal = await self._attempts.prefill(watched)
                if refusal is not None:
                    return refusal
                ticket = dispatcher.enter(self._intake())
            return await self._answer(ticket, watched)
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
            (self._attempts if self._going_on is None else self._going_on.attempts).end()
            outcome.duration_s = self._clock() - self._began_s
            if self._account is None:  # else it was placed for the first time when that was made
                outcome.wait_s = max((ticket.placed_s or self._clock()) - self._began_s, 0.0)
            self._finish(ticket)

    def _intake(self) -> Intake:
        body, pool = self._body, self._pool
        told = self._attempts.prefilled.prompt_tokens
        tokens = min(told or estimated_prompt(pool, body), pool.largest_prompt)
        flags = pool.config.policy == "length_bucket"
        blocks = leading_blocks(body) if pool.core.policy.needs_prefix else ()
        return Intake(
            prompt_tokens=tokens,
            width=body.choices,
            max_tokens=NO_CAP if body.max_tokens is None else body.max_tokens,
            tenant=pool.tenant_number(self._tenant),
            weight=2.0 ** -min(max(body.priority, -10.0), 10.0),
            supposed=supposed_tokens(parameters_of(body)) if flags else 0,
            prefix_blocks=blocks,
            request=None if pool.desk is None else self._request(tokens, blocks),
        )

    def _request(self, prompt_tokens: int, prefix_blocks: tuple[int, ...]) -> Request:
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
            prefix_blocks=prefix_blocks,
        )

    # ---- the prompt computed elsewhere

    def _not_entered(self) -> Ticket:
        """Stands for the request until its prompt has been computed: nothing of it is in the books of decode."""
        self._pool.dispatcher.refuse_beyond_queue(self._pool.prefill.requests)
        ticket = Ticket(0, self._intake())
        ticket.phase = Phase.GONE
        return ticket

    # ---- the answer

    async def _answer(self, ticket: Ticket, watched: Watched) -> web.StreamResponse:
        found = await self._attempts.run(ticket, watched)
        if isinstance(found, web.Response):
            return found
        self._outcome.wait_s = max(ticket.placed_s - self._began_s, 0.0)
        self._account = self._account_for(ticket, watched)
        self._outcome.status = found[0].status
        return await (self._stream if streams(found[0]) else self._whole)(watched, self._account, *found)

    def _account_for(self, ticket: Ticket, watched: Watched) -> Account:
        pool, so_far = self._pool, None
        if pool.config.most_continuations:
            so_far = SoFar(lambda: obstacle(self._body), wants_ids=wants_token_ids(self._body))
        account = Account(
            ticket,
            pool.dispatcher,
            self._body,
            strips=self._attempts.asks_usage,
            keeps_text=self._gateway.config.log.outputs,
            clock=self._clock,
            so_far=so_far,
        )
        if so_far is not None:
            self._going_on = GoingOn(
                self._gateway,
                pool,
                self._body,
                self._attempts,
                account,
                so_far,
                self._outcome,
                ticket=ticket,
                watched=watched,
                request_id=self._id,
            )
        return account

    async def _whole(self, watched: Watched, account: Account, response: EngineResponse, data: bytes) -> web.Response:
        outcome, going_on = self._outcome, self._going_on
        if response.status == 200:
            outcome.ttft_s = self._clock() - self._began_s
            if going_on is not None and not coding(response):
                data = await going_on.whole(data)
            account.whole(decoded(data, coding(response)))
            outcome.end = EndReason.ERROR if account.failed else account.ends.get(0, EndReason.ERROR)
        return web.Response(
            status=response.status, reason=response.reason, headers=for_client(response.headers), body=data
        )

    async def _stream(
        self, watched: Watched, account: Account, response: EngineResponse, data: bytes
    ) -> web.StreamResponse:
        """Relay a stream whose first bytes are ``data``, until it or the client ends."""
        outcome, going_on = self._outcome, self._going_on
        outcome.ttft_s = self._clock() - self._began_s
        watched.patience_s = self._gateway.config.limits.inter_chunk_timeout_s
        headers = for_client(response.headers)
        if coding(response):
            del headers["Content-Encoding"]
        out = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
        read = self._attempts.read if going_on is None else going_on.read
        relay = Relay(out, account, watched, read, self._clock, None if coding(response) else response)
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
            (self._attempts if going_on is None else going_on.attempts).drop_response()
            await to_client(out.write(error_frames(502, problem, "the engine's stream broke off")))
        elif response.status == 200 and not account.failed:
            outcome.end = account.ends.get(0, EndReason.ERROR)
        await to_client(out.write_eof())
        return out

    # ---- afterwards

    def _finish(self, ticket: Ticket) -> None:
        account, outcome, pool = self._account, self._outcome, self._pool
        tokens = answer_tokens(account, self._body.choices)
        if account is not None and EndReason.UNFINISHED in account.ends.values():
            pool.recomputed["passed_on"] += 1
            if self._going_on is not None:
                outcome.problem = f"not_continued: {self._going_on.problem}"
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
