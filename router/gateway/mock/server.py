"""The mock fleet's HTTP: the parts of an OpenAI-compatible engine that the router uses, as ``docs/deploying.md`` lists them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from aiohttp import web

from endcast.router.gateway.http_server import http_server
from endcast.router.gateway.mock.answers import Stream, abort, whole_answer
from endcast.router.gateway.mock.engine import Generation, MockSettings, Rank, Steps, tokens_in, word

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class MockFleet:
    """Engines on free ports of the loopback; an async context manager. ``urls`` says where, ``ranks`` are all ranks."""

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        each = settings.ranks or 1
        self.ranks = [Rank(i, settings) for i in range(settings.workers * each)]
        self.steps = Steps(self.ranks, settings)
        self.pinned: set[str] = set()  #: transfers whose KV a prefill still holds
        self.prefilled: list[dict[str, Any]] = []  #: bodies of prefills, in order
        self.given_back = 0  #: requests that were
        self.urls: list[str] = []
        self._engines = [Engine(self, self.ranks[i * each : (i + 1) * each]) for i in range(settings.workers)]
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.urls = [await engine.start() for engine in self._engines]
        self._task = asyncio.create_task(self.steps.run(), name="mock fleet")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, *(engine.stop() for engine in self._engines), return_exceptions=True)

    async def kill(self, worker: int) -> None:
        """The engine is gone: connections break off, new ones are refused."""
        await self._engines[worker].stop()

    async def revive(self, worker: int) -> None:
        """It is back, at its old address and empty."""
        await self._engines[worker].start()


class Engine:
    """One address with its ranks."""

    def __init__(self, fleet: MockFleet, ranks: list[Rank]) -> None:
        self._fleet, self._ranks, self._settings = fleet, ranks, fleet.settings
        self._runner: web.ServerRunner | None = None
        self._port = 0
        self._open: dict[int, web.BaseRequest] = {}

    async def start(self) -> str:
        """Listen, at the old port if there was one: the address."""
        self._runner = web.ServerRunner(
            http_server(self._handle, lambda: 1 << 30), access_log=None, shutdown_timeout=0.5
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Break off everything."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for http in list(self._open.values()):
            abort(http)
        await runner.cleanup()
        for rank in self._ranks:
            rank.running.clear()
            rank.waiting.clear()

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        self._open[id(http)] = http
        try:
            return await self._answer(http)
        finally:
            self._open.pop(id(http), None)

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.path == "/metrics" and self._settings.metrics:
            lines = [line for i, rank in enumerate(self._ranks) for line in rank.metrics(i)]
            return web.Response(text="\n".join(lines) + "\n")
        if http.path == "/health":
            return web.Response(status=503 if any(rank.faults.unavailable < 0 for rank in self._ranks) else 200)
        if self._settings.key is not None and http.headers.get("Authorization") != f"Bearer {self._settings.key}":
            return _error(401, "Unauthorized")
        if http.path == "/v1/models":
            listed = {"id": self._settings.model, "object": "model", "max_model_len": self._settings.context_limit}
            return web.json_response({"object": "list", "data": [listed]})
        if http.method == "POST" and http.path in (_CHAT, _COMPLETIONS):
            return await self._generate(http)
        if http.path == "/echo":
            told = {name: value for name, value in http.headers.items() if name.lower() != "host"}
            return web.json_response({"path": http.path_qs, "headers": told, "body": (await http.text())})
        return _error(404, f"no {http.path}")

    def _rank(self, http: web.BaseRequest) -> Rank | None:
        """The pinned rank, ``None`` for one that does not exist; a pin that is no number is ignored, as engines do."""
        pin = http.headers.get("X-data-parallel-rank", "")
        if pin.isdecimal():
            return self._ranks[int(pin)] if int(pin) < len(self._ranks) else None
        return min(self._ranks, key=lambda rank: len(rank.running) + len(rank.waiting))

    async def _generate(self, http: web.BaseRequest) -> web.StreamResponse:
        rank = self._rank(http)
        if rank is None:
            return _error(400, "data_parallel_rank is out of range")
        raw = await http.read()
        rank.seen += 1
        rank.request_ids.append(http.headers.get("X-Request-Id", ""))
        faults = rank.faults
        if faults.unavailable:
            faults.unavailable -= faults.unavailable > 0
            return _error(503, "overloaded")
        if faults.reset:
            faults.reset -= 1
            abort(http)
            await asyncio.sleep(3600)
        if faults.hang:
            await asyncio.sleep(3600)
        try:
            body = json.loads(raw)
        except ValueError:
            return _error(400, "no JSON")
        if not isinstance(body, dict) or (body.get("stream_options") and body.get("stream") is not True):
            return _error(400, "stream_options need stream")
        transfer = body.get("kv_transfer_params") or {}
        if transfer.get("do_remote_decode"):
            return await self._prefill(body)
        if transfer.get("do_remote_prefill"):
            key = str(transfer.get("remote_engine_id"))
            if key not in self._fleet.pinned:
                return _error(500, "there is no such KV")
            self._fleet.pinned.discard(key)
        return await self._decode(http, body, rank, chat=http.path == _CHAT)

    async def _prefill(self, body: dict[str, Any]) -> web.Response:
        """A prefill worker's answer: one token, and where its KV is, if it ended by length."""
        if body.get("tool_choice") == "required" or body.get("stream") or body.get("max_tokens") != 1:
            return _error(400, "this is no prefill")
        if prompt_tokens(body) >= self._settings.context_limit:
            return _error(400, "the context is too long")
        await asyncio.sleep(self._settings.prefill_s)
        self._fleet.prefilled.append(body)
        key = f"prefill-{len(self._fleet.prefilled)}"
        kept = body.get("min_tokens") == 1
        if kept:
            self._fleet.pinned.add(key)
        where = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": key,
            "remote_block_ids": [1, 2],
        }
        usage = {
            "prompt_tokens": prompt_tokens(body),
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": word(0, 0)}, "finish_reason": "length"}
        return web.json_response({"choices": [choice], "usage": usage, "kv_transfer_params": where if kept else None})

    async def _decode(
        self, http: web.BaseRequest, body: dict[str, Any], rank: Rank, *, chat: bool
    ) -> web.StreamResponse:
        generation = self._make(http, body, chat=chat)
        if isinstance(generation, web.Response):
            return generation
        if rank.faults.recompute and min(generation.lengths) > rank.faults.recompute_after:
            rank.faults.recompute -= 1
            self._fleet.given_back += 1
            generation.given_back = True
            generation.lengths = [min(length, rank.faults.recompute_after) for length in generation.lengths]
        rank.waiting.append(generation)
        self._fleet.steps.wake()
        try:
            if body.get("stream") is True:
                return await Stream(http, body, generation, rank.faults, self._settings, chat=chat).send()
            while generation.active:
                generation.news.clear()
                await generation.news.wait()
            return web.json_response(whole_answer(body, generation, self._settings, chat=chat))
        finally:
            rank.abort(generation)

    def _make(self, http: web.BaseRequest, body: dict[str, Any], *, chat: bool) -> Generation | web.Response:
        prompt = prompt_tokens(body)
        left = self._settings.context_limit - prompt
        cap = body.get("max_completion_tokens") if chat else None
        cap = body.get("max_tokens") if cap is None else cap
        cap = (left if chat else 16) if cap is None else cap
        if type(cap) is not int or not cap >= 1:
            return _error(400, "max_tokens must be at least 1")
        if left < 1 or cap > left or prompt > self._settings.kv_capacity:
            return _error(400, "the context is too long")
        first = tokens_in(_prompt_text(body, chat=chat)) if self._fleet.given_back else 0
        wanted = max(int(body.get("mock_output_tokens", self._settings.output_tokens)) - first, 1)
        answers = body.get("n") or 1
        lengths = [min(wanted + i, cap) for i in range(answers)]
        capped = [wanted + i > cap for i in range(answers)]
        return Generation(http.headers.get("X-Request-Id", "none"), prompt, lengths, capped, first)


def _prompt_text(body: dict[str, Any], *, chat: bool) -> str | list[int]:
    """What an answer would go on behind: a text or token ids; empty for none."""
    last = (body.get("messages") or [{}])[-1]
    found = (last.get("content") if body.get("continue_final_message") else "") if chat else body.get("prompt")
    return found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else found or ""


def prompt_tokens(body: dict[str, Any]) -> int:
    """What this engine's tokenizer makes of a prompt: an id each, or three characters each."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return max(len(prompt), 1)
    return max(len(json.dumps(body.get("messages") or prompt, ensure_ascii=False)) // 3, 1)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status)
