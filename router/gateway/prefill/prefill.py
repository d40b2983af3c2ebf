"""Prefill on other engines than decode (pull): what both are sent, and the books of the prefill workers of a pool.

A prefill worker computes the prompt's KV, says where it lies (``kv_transfer_params``) and how many tokens the prompt has; the decode
worker that routing then chooses is sent the client's request with that object, and fetches the KV. Where the object cannot be had
the decode worker computes the prompt itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from endcast.router.gateway.config import Pool
from endcast.router.gateway.messages.body import Body
from endcast.router.gateway.messages.lenient import UNREADABLE
from endcast.router.gateway.streams.frames import count

#: Asks a prefill worker to keep the KV for whoever comes with what it answers.
_KEEP: Final = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_ONE, _FALSE, _NONE = msgspec.Raw(b"1"), msgspec.Raw(b"false"), msgspec.Raw(b'"none"')
_TRANSFER = "kv_transfer_params"
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: A choice of tools that forces none.
_UNFORCED = (b'"auto"', b'"none"', b"null")


class Prefilled(msgspec.Struct, frozen=True):
    """What a prefill worker told: its object as it is (``None``: none), and the prompt's tokens, all and those cached."""

    transfer: bytes | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def can_be_prefilled(body: Body) -> bool:
    """Whether the prompt can be computed elsewhere: one prompt that can be read. Of the rest the decode worker thinks its own."""
    if not body.readable:
        return False
    try:
        prompt = _MEMBERS.decode(body.plain).get("prompt")
        told = None if prompt is None else msgspec.json.decode(prompt)
    except UNREADABLE:
        return False  # reading skips what it does not need, faults included
    if prompt is None:
        return body.chat
    return isinstance(told, str) or (isinstance(told, list) and (len(told) == 1 or type(next(iter(told), "")) is int))


def prefill_body(body: Body, transfer: bytes = _KEEP) -> bytes:
    """The client's request for one token of one answer, not streamed, its KV kept; other members as they are.

    With another ``transfer`` it is what a decode worker is sent so that it fetches the KV, for nobody.

    The least of one token keeps the end of a text from being that token: then there would be nothing to hand over.
    A tool that must be called cannot be within one token.
    """
    members = _MEMBERS.decode(body.plain)
    members.pop("stream_options", None)
    members |= {"stream": _FALSE, "max_tokens": _ONE, "min_tokens": _ONE, _TRANSFER: msgspec.Raw(transfer)}
    members |= {name: _ONE for name in ("max_completion_tokens", "n", "best_of") if name in members}
    if bytes(members.get("tool_choice", msgspec.Raw(b"null"))) not in _UNFORCED:
        members["tool_choice"] = _NONE
    return msgspec.json.encode(members)


def handed_over(raw: bytes, transfer: bytes) -> bytes:
    """``raw``, a JSON object, with a prefill worker's object; every other byte stays, unless the client sent one too."""
    if f'"{_TRANSFER}"'.encode() in raw:
        try:
            return msgspec.json.encode(_MEMBERS.decode(raw) | {_TRANSFER: msgspec.Raw(transfer)})
        except UNREADABLE:
            return raw  # JSON that only the engine reads, with an object of the client's own
    brace = raw.index(b"{") + 1
    return b"".join((raw[:brace], f'"{_TRANSFER}":'.encode(), transfer, b",", raw[brace:]))


def read_prefilled(data: bytes) -> Prefilled:
    """A prefill worker's answer; nothing where it is none that is known."""
    try:
        answer = _ANSWER.decode(data)
    except UNREADABLE:
        return Prefilled()
    usage, transfer = answer.usage or _Usage(), bytes(answer.kv_transfer_params)
    details = usage.prompt_tokens_details or _Details()
    return Prefilled(
        transfer if transfer.startswith(b"{") else None, count(usage.prompt_tokens), count(details.cached_tokens)
    )


class PrefillWorker:
    """One prefill worker's books: requests and prompt tokens (as estimated) that it was given and has not answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.up = True
        self.requests = self.tokens = 0


class Prefill:
    """A pool's prefill workers; none unless the pool has them."""

    def __init__(self, pool: Pool) -> None:
        self.workers: list[PrefillWorker] = []
        self.done = self.failed = 0  #: calls that were answered, and those that failed
        self.without_transfer = 0  #: prompts that decode workers computed for want of an object
        self.handoffs = 0  #: KV fetched for nobody, so that it is freed
        self.stranded = 0  #: KV that no decode worker could be sent for; it lies there until the engine's own limit
        self._came_up = asyncio.Event()
        self.change(pool)

    def change(self, pool: Pool) -> None:
        """The workers of ``pool`` from now on; books of those that stay are kept."""
        before = {worker.url: worker for worker in self.workers}
        urls = [told.url.rstrip("/") for told in pool.prefill]
        self.workers = [before.get(url) or PrefillWorker(url) for url in urls]

    @property
    def urls(self) -> Sequence[str]:
        """Their addresses."""
        return [worker.url for worker in self.workers]

    @property
    def requests(self) -> int:
        """Requests that are being prefilled."""
        return sum(worker.requests for worker in self.workers)

    @property
    def any_up(self) -> bool:
        """Whether one may be given requests; also where there are none at all."""
        return not self.workers or any(worker.up for worker in self.workers)

    def tell_health(self, url: str, up: bool) -> None:
        """The worker at ``url`` may, or may not, be given requests."""
        for worker in self.workers:
            if worker.url == url:
                worker.up = up
        if up:
            self._came_up.set()

    async def choose(self, patience_s: float) -> PrefillWorker | None:
        """The worker with the fewest prompt tokens to compute; ``None`` if none is up for ``patience_s`` seconds."""
        try:
            async with asyncio.timeout(patience_s):
                while not (ready := [worker for worker in self.workers if worker.up]):
                    self._came_up.clear()
                    await self._came_up.wait()
        except TimeoutError:
            return None
        return min(ready, key=lambda worker: (worker.tokens, worker.requests))
