"""The first leg of a request to a pool with prefill workers: its prompt is computed before a decode worker is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

from endcast.router.gateway.engines.upstream import UNAVAILABLE, UpstreamError
from endcast.router.gateway.engines.watch import Watched
from endcast.router.gateway.messages.answers import error_answer
from endcast.router.gateway.messages.headers import for_client
from endcast.router.gateway.prefill.prefill import Prefilled, PrefillWorker, read_prefilled
from endcast.router.gateway.routing.dispatch import NotServed

if TYPE_CHECKING:
    from endcast.router.gateway.fleet.pools import PoolAtWork
    from endcast.router.gateway.gateway import Gateway
    from endcast.router.gateway.seen.outcome import Outcome


class PrefillLeg:
    """One request's calls to prefill workers, at ``target``, with ``headers`` and ``body``; ``tokens`` as estimated."""

    def __init__(
        self,
        gateway: Gateway,
        pool: PoolAtWork,
        target: str,
        headers: CIMultiDict[str],
        body: bytes,
        tokens: int,
    ) -> None:
        self._gateway, self._prefill = gateway, pool.prefill
        self._target, self._headers, self._body, self._tokens = target, headers, body, tokens

    async def run(self, outcome: Outcome, watched: Watched) -> Prefilled | web.Response:
        """What a prefill worker told, or its refusal for the client. ``NotServed`` 503 where none is up."""
        limits = self._gateway.config.limits
        begun_s = self._gateway.clock()
        for attempt in range(limits.retries + 1):
            worker = await self._prefill.choose(limits.no_worker_wait_s)
            if worker is None:
                raise NotServed(503, "no_worker", "no engine that computes prompts is reachable", 1.0)
            outcome.engine = outcome.prefill_worker = worker.url
            watched.alive_s, watched.patience_s = self._gateway.clock(), limits.first_byte_timeout_s
            with self._in_books(worker):
                found = await self._call(worker, outcome, last=attempt == limits.retries)
            watched.patience_s = math.inf
            outcome.prefill_s = self._gateway.clock() - begun_s
            if found is not None:
                return found
            self._prefill.failed += 1
            outcome.failed_on.append(worker.url)
        outcome.status = 502
        return error_answer(502, "engine_failed", "the engine failed before it had computed the prompt")

    @contextmanager
    def _in_books(self, worker: PrefillWorker) -> Iterator[None]:
        worker.requests, worker.tokens = worker.requests + 1, worker.tokens + self._tokens
        try:
            yield
        finally:
            worker.requests, worker.tokens = worker.requests - 1, worker.tokens - self._tokens

    async def _call(self, worker: PrefillWorker, outcome: Outcome, *, last: bool) -> Prefilled | web.Response | None:
        """``None`` if it failed."""
        try:
            response = await self._gateway.engines.call("POST", worker.url + self._target, self._headers, self._body)
            try:
                if response.status in UNAVAILABLE and not last:
                    outcome.problem = f"the engine answered {response.status}"
                    self._gateway.failed(worker.url)
                    return None
                data = await response.read()
            finally:
                response.close()
        except UpstreamError as error:
            outcome.problem = f"{type(error).__name__}: {error}"
            self._gateway.failed(worker.url, error)
            return None
        if response.status != 200:
            outcome.status = response.status
            return web.Response(
                status=response.status, reason=response.reason, headers=for_client(response.headers), body=data
            )
        self._gateway.served(worker.url)
        self._prefill.done += 1
        outcome.problem = ""
        return read_prefilled(data)
