"""A bare asyncio proxy that lets endcast's routing core choose the engine of each request.

    python asyncio_proxy.py --slots 16 http://127.0.0.1:8001 http://127.0.0.1:8002

A request is opened when it arrives, waits in the pool until a round places it, tells the core what its stream says, and is
ended in a ``finally``. A round runs when something arrived, a decode step began or a slot became free. Policy ``br_0``, or
``br_h`` with ``--bundle FOLDER``. Retries, limits on waiting and on silence, keys and a log are left out: `endcast route` has them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import aiohttp
from aiohttp import web

import endcast
from endcast.router.gateway.config import Pool, WorkerConfig
from endcast.router.gateway.fleet.pools import warm_up
from endcast.router.gateway.forecasts.desk import Inline
from endcast.router.gateway.messages.body import Body, asking_for_usage, parameters_of, prompt_of, read_body
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.streams.events import EventSplitter, data_of
from endcast.router.gateway.streams.frames import count, read_frame, text_of, usage_of, without_usage
from endcast.router.gateway.tickets import Intake, Ticket
from endcast.survival import NO_CAP
from endcast.types import EndReason

#: An engine that failed gets nothing new for so long; it holds the fewest tokens, and would get everything.
PAUSE_S = 5.0
ENDS = {"length": EndReason.LENGTH, "abort": EndReason.ABORT, "error": EndReason.ERROR}
UNAVAILABLE = (502, 503, 504)
PASSED = ("Authorization", "Content-Type", "X-Request-Id")
BROKEN = b'data: {"error": {"message": "the engine failed", "code": 502}}\n\ndata: [DONE]\n\n'


class EngineFailed(Exception):
    """The call to an engine broke off."""


class Proxy:
    """The pool of waiting requests, and the handler of each."""

    def __init__(self, core: RoutingCore, engines: aiohttp.ClientSession) -> None:
        self.core, self._engines = core, engines
        self._loop = asyncio.get_running_loop()
        self._places: dict[Ticket, asyncio.Future[None]] = {}
        self._round_due = False

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """One request from its arrival to its end, however it ends."""
        body = read_body(await http.read(), chat=http.path.endswith("/chat/completions"))
        ticket = self.core.open(intake_of(body))
        response = web.StreamResponse()
        answer = Answer(self, ticket, body)
        try:
            self._places[ticket] = self._loop.create_future()
            self.wake()
            await self._places[ticket]
            passed = await self._pass_on(http, body, answer, response, self.core.workers[ticket.worker].url)
            if passed.status in UNAVAILABLE:
                self._pause(ticket.worker)
            return passed
        except EngineFailed as error:
            answer.end = EndReason.ERROR
            self._pause(ticket.worker)
            if not response.prepared:
                return web.json_response({"error": {"message": f"the engine failed: {error}", "code": 502}}, status=502)
            with suppress(ConnectionResetError):
                await response.write(BROKEN)
            return response
        except ConnectionResetError:  # its client left
            return response
        finally:
            del self._places[ticket]
            self.core.on_end(ticket, answer.end, output_tokens=answer.tokens, finished_s=time.time())
            self.wake()

    async def _pass_on(
        self, http: web.Request, body: Body, answer: Answer, response: web.StreamResponse, url: str
    ) -> web.StreamResponse:
        sent = {name: http.headers[name] for name in PASSED if name in http.headers}
        async with aclosing(self._call(url + http.path, asking_for_usage(body), sent, response)) as chunks:
            async for data in chunks:
                if response.content_type != "text/event-stream":
                    answer.read(data)
                    return web.Response(status=response.status, headers=response.headers, body=data)
                if not response.prepared:
                    await response.prepare(http)
                await response.write(answer.feed(data))
        if not response.prepared:
            raise EngineFailed("its answer is empty")
        await response.write(answer.events.rest)
        return response

    async def _call(
        self, url: str, data: bytes, headers: dict[str, str], response: web.StreamResponse
    ) -> AsyncGenerator[bytes]:
        """What the engine sends: a stream as it comes, anything else at once. Its head goes to ``response``."""
        try:
            async with self._engines.post(url, data=data, headers=headers) as told:
                response.set_status(told.status)
                response.headers["Content-Type"] = told.headers.get("Content-Type", "application/json")
                if told.content_type == "text/event-stream":
                    async for chunk in told.content.iter_any():
                        yield chunk
                else:
                    yield await told.read()
        except aiohttp.ClientError as error:
            raise EngineFailed(str(error)) from error

    def wake(self) -> None:
        """Run a round soon; all that happens in this turn of the event loop shares it."""
        if not self._round_due:
            self._round_due = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._round_due = False
        for ticket in self.core.decide(self._loop.time()):  # br_0 and br_h refuse none: it has a worker
            place = self._places[ticket]
            if not place.done():  # its client is leaving at this very moment
                place.set_result(None)

    def _pause(self, worker: int) -> None:
        self.core.accept(worker, False)
        self._loop.call_later(PAUSE_S, self._resume, worker)

    def _resume(self, worker: int) -> None:
        self.core.accept(worker, True)
        self.wake()

    async def loads(self, _: web.Request) -> web.Response:
        """The books: requests that wait and run, KV tokens on each engine."""
        urls, load = [worker.url for worker in self.core.workers], self.core.load().tolist()
        told = {"waiting": self.core.waiting, "running": self.core.running, "load": dict(zip(urls, load, strict=True))}
        return web.json_response(told)


class Answer:
    """What an engine says, told to the core; the client does not get usage that it did not ask for."""

    def __init__(self, proxy: Proxy, ticket: Ticket, body: Body) -> None:
        self._proxy, self._core, self._ticket, self._body = proxy, proxy.core, ticket, body
        self._strips = asking_for_usage(body) is not body.raw
        self.events = EventSplitter()
        self.end = EndReason.ABORT  #: how the first answer ended; until the engine says, only its client can end it
        self.tokens: int | None = None  #: output of the first answer, where it was not streamed

    def feed(self, data: bytes) -> bytes:
        """The events of a stream that ``data`` completes, for the client."""
        return b"".join([self._event(event) for event in self.events.feed(data)])

    def read(self, data: bytes) -> None:
        """A whole answer; usage counts all its choices."""
        frame = read_frame(data)
        if frame is None or not frame.choices:
            self.end = EndReason.ERROR
            return
        self.end = ENDS.get(str(frame.choices[0].finish_reason), EndReason.STOP)
        usage = usage_of(frame)
        tokens = count(usage.completion_tokens) if usage else None
        self.tokens = None if tokens is None else tokens // self._body.choices

    def _event(self, event: bytes) -> bytes:
        frame = read_frame(data_of(event))
        if frame is None:  # [DONE], a comment
            return event
        if frame.is_error:
            self.end = EndReason.ERROR
        usage = usage_of(frame)
        prompt, tokens = (count(usage.prompt_tokens), count(usage.completion_tokens)) if usage else (None, None)
        if prompt is not None:
            self._core.on_prompt(self._ticket, prompt)
        for choice in frame.choices or ():
            answer = choice.index if type(choice.index) is int else 0
            stepped = self._core.on_tokens(self._ticket, tokens or 0, asyncio.get_running_loop().time(), answer)
            if stepped and (self._core.waiting or self._core.reads):
                self._proxy.wake()
            if answer == 0:
                self._core.on_text(self._ticket, text_of(choice))
            if choice.finish_reason is not None:
                self._core.on_answer_end(self._ticket, answer)
                if answer == 0:
                    self.end = ENDS.get(str(choice.finish_reason), EndReason.STOP)
        if not self._strips or usage is None:
            return event
        if frame.choices:
            return without_usage(event, frame)
        return event if self._body.wants_usage else b""


def intake_of(body: Body) -> Intake:
    """A request as routing sees it. Its prompt is estimated here, and told by the engine later."""
    prompt, messages = prompt_of(body)
    request = endcast.Request(
        request_id=uuid.uuid4().hex,
        arrival_s=time.time(),
        prompt_tokens=body.estimated_prompt,
        prompt=prompt,
        messages=messages,
        model=body.model,
        max_tokens=body.max_tokens,
        parameters=parameters_of(body),
    )
    cap = NO_CAP if body.max_tokens is None else body.max_tokens
    return Intake(prompt_tokens=body.estimated_prompt, width=body.choices, max_tokens=cap, request=request)


def core_for(urls: list[str], slots: int, bundle: str | None) -> RoutingCore:
    """The routing core, with its kernels loaded; takes seconds."""
    workers = tuple(WorkerConfig(url=url) for url in urls)
    pool = Pool(workers=workers, slots=slots, policy="br_h" if bundle else "br_0", forecaster=bundle)
    if bundle is None:
        warm_up(pool, None)
        return RoutingCore(pool)
    prior = endcast.cold_start()
    warm_up(pool, prior)
    return RoutingCore(pool, desk=Inline(endcast.load_forecaster(bundle), prior, horizon=pool.horizon))


async def serve(core: RoutingCore, host: str, port: int) -> None:
    """Until stopped. A client that leaves cancels its handler, which closes the call to the engine."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, connect=5.0),
        headers={"Accept-Encoding": "identity"},
    ) as engines:
        proxy = Proxy(core, engines)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", proxy.generate)
        app.router.add_post("/v1/completions", proxy.generate)
        app.router.add_get("/loads", proxy.loads)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        print(f"routing to {len(core.workers)} workers at http://{host}:{runner.addresses[0][1]}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="Places requests among engines with endcast's routing core.")
    parser.add_argument("workers", nargs="+", metavar="URL", help="address of an engine")
    parser.add_argument("--slots", type=int, default=64, help="requests that one engine runs at once")
    parser.add_argument("--bundle", help="folder of a forecast bundle; the policy is then br_h")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    told = parser.parse_args()
    asyncio.run(serve(core_for(told.workers, told.slots, told.bundle), told.host, told.port))


if __name__ == "__main__":
    main()
