"""endcast's routing core as the routing logic of vLLM production-stack's router (``vllm_router``, vllm-project/production-stack).

    python production_stack.py --slots 16 --service-discovery static --static-backends http://a:8000,http://b:8000 \\
        --static-models m,m --routing-logic roundrobin

starts that router with its own options and another routing logic in the place of the one named. Its interface is asked for an
engine and told nothing afterwards, so two things are done beside it. ``Router`` derives from ``SessionRouter``, whose
``route_request`` gets the body and is awaited: a request can wait in the pool there until a slot is free. ``Listener``, an ASGI
middleware, reads responses on their way to clients and ends a request in a ``finally``. Policy ``br_0``, or ``br_h`` with
``--bundle FOLDER``. Leave out ``--dynamic-config-yaml`` and ``-json``: a change there puts the logic named back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from typing import Any

import aiohttp
import uvicorn
from fastapi import HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from vllm_router.app import app, initialize_all
from vllm_router.parsers.parser import parse_args
from vllm_router.routers.routing_logic import SessionRouter

import endcast
from endcast.router.gateway.config import Limits, Pool, WorkerConfig, workers_of
from endcast.router.gateway.fleet.pools import Pair, warm_up
from endcast.router.gateway.fleet.turnover import fleet_change
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.messages.body import Body, parameters_of, prompt_of, read_body
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.dispatch import Dispatcher, NotServed
from endcast.router.gateway.routing.rebuild import rebuild
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.tickets import Intake, Phase, Ticket
from endcast.survival import NO_CAP
from endcast.types import EndReason

#: Paths of requests that generate. Others take no slot.
GENERATING = ("/v1/chat/completions", "/v1/completions")
#: An engine that failed gets nothing new for so long; it holds the fewest tokens, and would get everything.
PAUSE_S = 5.0
UNAVAILABLE = (502, 503, 504)


class Fleet:
    """The engines that serve a model: their core, and who waits for it."""

    def __init__(self, pool: Pool, forecasts: Pair | None) -> None:
        self.core = RoutingCore(pool, desk=forecasts and Inline(*forecasts, horizon=pool.horizon))
        self.dispatcher = Dispatcher(self.core, Limits())
        self.urls = {worker.url for worker in self.core.workers}

    def change(self, pool: Pool) -> None:
        """Other engines from now on. One that left takes nothing new, and keeps what runs there."""
        change = fleet_change(self.core.workers, workers_of(pool), self.core.active().tolist())
        rebuild(self.core, pool, change.workers, change.places, self.core.desk)
        self.dispatcher.moved(change.places)
        for worker in change.closed:
            self.dispatcher.accept(worker, False)
        self.urls = {worker.url for worker in workers_of(pool)}
        self.dispatcher.wake()

    def pause(self, url: str) -> None:
        """The engine at ``url`` failed."""
        self._accept(url, False)
        asyncio.get_running_loop().call_later(PAUSE_S, self._accept, url, True)

    def _accept(self, url: str, accepting: bool) -> None:
        for worker in self.core.workers:
            if worker.url == url and url in self.urls:
                self.dispatcher.accept(worker.index, accepting)


class Exchange:
    """One request, from its arrival to its end."""

    def __init__(self, fleet: Fleet, body: Body) -> None:
        self._fleet, self._body = fleet, body
        self._ticket: Ticket | None = None
        self._account: Account | None = None
        self._whole: list[bytes] = []

    async def place(self, request: Request) -> str:
        """The address of its engine, once one has a slot for it; a client that leaves is noticed within a second."""
        place = asyncio.ensure_future(self._place())
        try:
            while not (await asyncio.wait({place}, timeout=1.0))[0]:
                if await request.is_disconnected():
                    raise HTTPException(499, "the client left")
            return self._fleet.core.workers[await place].url
        finally:
            place.cancel()

    async def _place(self) -> int:
        """Enters and waits in one turn of the event loop: a round between the two would place it unheard."""
        dispatcher = self._fleet.dispatcher
        if self._ticket is None:
            self._ticket = dispatcher.enter(intake_of(self._body))
            clock = asyncio.get_running_loop().time
            self._account = Account(self._ticket, dispatcher, self._body, strips=False, keeps_text=False, clock=clock)
        else:  # another attempt
            dispatcher.again(self._ticket)
        return await dispatcher.place(self._ticket)

    def failed(self) -> None:
        """Its engine could not be reached, broke off, or is unavailable."""
        if self._ticket is not None and self._ticket.phase is Phase.RUNNING:
            self._fleet.pause(self._fleet.core.workers[self._ticket.worker].url)

    def hear(self, data: bytes) -> None:
        """What its client is sent."""
        if self._account is None or not self._body.streams:
            self._whole.append(data)
        else:
            self._account.feed(data)

    def over(self) -> None:
        """It ended. Where no engine said how, forecasts learn that it was cut off."""
        account = self._account
        if self._ticket is None or account is None:
            return  # it was turned away
        if self._whole:
            account.whole(b"".join(self._whole))
        end = account.ends.get(0, EndReason.ERROR if account.failed else EndReason.ABORT)
        tokens = (account.total_tokens or 0) // self._body.choices if self._whole else account.tokens.get(0, 0)
        self._fleet.dispatcher.leave(self._ticket, end, tokens)


class Router(SessionRouter):  # type: ignore[misc]  # production-stack may not be there
    """Its base class is what makes production-stack await it and hand it the body; nothing else of it is used."""

    def __init__(self, slots: int, bundle: str | None = None, failovers: int = 0) -> None:
        """Takes seconds. ``failovers``: production-stack's further attempts on other engines."""
        self._slots, self._bundle = slots, bundle
        self._forecasts = None if bundle is None else (endcast.load_forecaster(bundle), endcast.cold_start())
        warm_up(self._pool({"http://nowhere"}), self._forecasts and self._forecasts[1])
        self.max_instance_failover_reroute_attempts = failovers  #: read by production-stack
        self.fleets: list[Fleet] = []

    async def route_request(
        self,
        endpoints: list[Any],
        engine_stats: dict[str, Any],
        request_stats: dict[str, Any],
        request: Request,
        request_json: dict[str, Any],
    ) -> str:
        """The URL of one of ``endpoints``, after as long as it takes until one has a slot. The statistics are not read."""
        exchange: Exchange | None = getattr(request.state, "endcast", None)
        urls = {endpoint.url.rstrip("/") for endpoint in endpoints}
        try:
            if exchange is not None:  # another attempt, with the engines that are left
                exchange.failed()
            else:
                fleet = self._fleet_of(urls)
                if request.url.path not in GENERATING:
                    return least_loaded(fleet.core, urls)
                body = read_body(await request.body(), chat=request.url.path == GENERATING[0])
                exchange = request.state.endcast = Exchange(fleet, body)
            return await exchange.place(request)
        except NotServed as refused:
            after = {} if refused.retry_after_s is None else {"Retry-After": str(round(refused.retry_after_s))}
            raise HTTPException(refused.status, refused.message, after) from None

    def _fleet_of(self, urls: set[str]) -> Fleet:
        """The fleet with these engines: models that share one share their books."""
        fleet = next((fleet for fleet in self.fleets if fleet.urls & urls), None)
        if fleet is not None and fleet.urls == urls:
            return fleet
        if fleet is not None:
            fleet.change(self._pool(urls))
            return fleet
        self.fleets.append(Fleet(self._pool(urls), self._forecasts))
        return self.fleets[-1]

    def _pool(self, urls: set[str]) -> Pool:
        workers = tuple(WorkerConfig(url=url) for url in sorted(urls))
        policy = "br_h" if self._bundle else "br_0"
        return Pool(workers=workers, slots=self._slots, policy=policy, forecaster=self._bundle)


class Listener:
    """ASGI middleware: what clients are sent is told to the core, and so is the end of each request, whatever it was."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the application's own start and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})  # that of ``request.state``

        async def tell(message: Message) -> None:
            if "endcast" in state and message["type"] == "http.response.body":
                state["endcast"].hear(message.get("body", b""))
            elif "endcast" in state and message.get("status") in UNAVAILABLE:
                state["endcast"].failed()
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except aiohttp.ClientError:
            if "endcast" in state:
                state["endcast"].failed()
            raise
        finally:
            if "endcast" in state:
                state["endcast"].over()


def intake_of(body: Body) -> Intake:
    """A request as routing sees it. Its prompt is estimated, unless its client asks for usage: then it is told in the stream."""
    prompt, messages = prompt_of(body)
    request = endcast.Request(
        request_id=uuid.uuid4().hex,
        prompt_tokens=body.estimated_prompt,
        prompt=prompt,
        messages=messages,
        model=body.model,
        max_tokens=body.max_tokens,
        parameters=parameters_of(body),
    )
    cap = NO_CAP if body.max_tokens is None else body.max_tokens
    return Intake(prompt_tokens=body.estimated_prompt, width=body.choices, max_tokens=cap, request=request)


def least_loaded(core: RoutingCore, urls: set[str]) -> str:
    """Where the fewest KV tokens are held."""
    load = core.load()
    return min((worker for worker in core.workers if worker.url in urls), key=lambda worker: load[worker.index]).url


def main() -> None:
    """Start production-stack's router, as its own ``main`` does, with this routing logic."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--slots", type=int, default=64, help="requests that one engine runs at once")
    parser.add_argument("--bundle", help="folder of a forecast bundle; the policy is then br_h")
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    args = parse_args()
    initialize_all(app, args)
    app.state.router = Router(own.slots, own.bundle, args.max_instance_failover_reroute_attempts)
    app.add_middleware(Listener)
    uvicorn.run(app, host=args.host, port=args.port, root_path=args.root_path, log_level=args.log_level)


if __name__ == "__main__":
    main()
