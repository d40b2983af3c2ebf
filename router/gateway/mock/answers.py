"""What the mock fleet's engines answer: streams as server-sent events, and answers that are not streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from endcast.router.gateway.mock.engine import Faults, Generation, MockSettings, ids_of, text_of


class Stream:
    """A response as server-sent events, in the order in which engines send them."""

    def __init__(
        self,
        http: web.BaseRequest,
        body: dict[str, Any],
        generation: Generation,
        faults: Faults,
        settings: MockSettings,
        *,
        chat: bool,
    ) -> None:
        self._http, self._generation, self._faults, self._settings = http, generation, faults, settings
        self._chat = chat
        options = body.get("stream_options") or {}
        self._usage = bool(options.get("include_usage"))
        self._tells_ids = bool(body.get("return_token_ids"))
        self._running_usage = self._usage and bool(options.get("continuous_usage_stats"))
        self._out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Mock": "1"})

    async def send(self) -> web.StreamResponse:
        """All of it, or as much as faults let through."""
        generation, told = self._generation, [0] * len(self._generation.lengths)
        await self._out.prepare(self._http)
        if self._faults.empty:
            self._faults.empty -= 1
            await self._out.write_eof()
            return self._out
        begun = False
        while any(made < length for made, length in zip(told, generation.lengths, strict=True)):
            generation.news.clear()
            if told == generation.made:
                await generation.news.wait()
            if not begun:
                begun = True
                for answer in range(len(told)) if self._chat else ():
                    await self._event(self._chunk(answer, {"delta": {"role": "assistant", "content": ""}}, 0))
            for answer, made in enumerate(list(generation.made)):
                if made > told[answer]:
                    await self._event(self._chunk(answer, self._said(answer, told[answer], made), made))
                    told[answer] = made
                    if made == generation.lengths[answer]:
                        await self._end(answer)
            if await self._fault(sum(told)):
                return self._out
        if not begun:  # given back before its first token
            await self._end(0)
        if self._usage:
            await self._event(self._frame([], usage_of(generation)))
        await self._bytes(f"data: [DONE]{2 * self._faults.line_end}".encode())
        await self._out.write_eof()
        return self._out

    async def _fault(self, made: int) -> bool:
        """Whether the stream ends here."""
        faults = self._faults
        if faults.cut_after is not None and made >= faults.cut_after:
            abort(self._http)
            return True
        if faults.silent_after is not None and made >= faults.silent_after:
            await asyncio.sleep(3600)
        if faults.error_after is not None and made >= faults.error_after:
            await self._event({"error": {"message": "the engine broke", "type": "InternalServerError", "code": 500}})
            await self._bytes(b"data: [DONE]\n\n")
            await self._out.write_eof()
            return True
        return False

    async def _end(self, answer: int) -> None:
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        made = self._generation.made[answer]
        await self._event(self._chunk(answer, {**empty, **end_of(self._generation, answer)}, made))

    def _said(self, answer: int, start: int, end: int) -> dict[str, Any]:
        """What a choice says of the tokens from ``start`` on and before ``end``."""
        first = self._generation.first
        text = text_of(answer, first + start, first + end)
        said: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        if self._tells_ids:
            said |= {"prompt_token_ids": None if start else [1, 2, 3], "token_ids": ids_of(first + start, first + end)}
        return said

    def _chunk(self, answer: int, what: dict[str, Any], made: int) -> dict[str, Any]:
        choice = {"index": answer, "logprobs": None, "finish_reason": None} | what
        prompt = self._generation.prompt_tokens
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        return self._frame([choice], counts if self._running_usage else None)

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        kind, prefix = ("chat.completion.chunk", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        frame: dict[str, Any] = {
            "id": f"{prefix}-{self._generation.request_id}",
            "object": kind,
            "created": 1_700_000_000,
            "model": self._settings.model,
            "choices": choices,
        }
        return frame if usage is None else frame | {"usage": usage}

    async def _event(self, frame: dict[str, Any]) -> None:
        text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
        await self._bytes(f"data: {text}{2 * self._faults.line_end}".encode())

    async def _bytes(self, data: bytes) -> None:
        size = self._faults.piece or len(data)
        for start in range(0, len(data), size):
            await self._out.write(data[start : start + size])
            if self._faults.piece:
                await asyncio.sleep(0)


def end_of(generation: Generation, answer: int) -> dict[str, Any]:
    """How an answer ended."""
    if generation.given_back:
        return {"finish_reason": "stop", "stop_reason": "recomputed"}
    return {"finish_reason": "length" if generation.capped[answer] else "stop", "stop_reason": None}


def usage_of(generation: Generation) -> dict[str, int]:
    """Counts over all answers."""
    made = sum(generation.made)
    prompt = generation.prompt_tokens
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}


def whole_answer(body: dict[str, Any], generation: Generation, settings: MockSettings, *, chat: bool) -> dict[str, Any]:
    """A response that is not streamed."""
    choices = []
    for answer, made in enumerate(generation.made):
        text = text_of(answer, generation.first, generation.first + made)
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if body.get("return_token_ids"):
            content["token_ids"] = ids_of(generation.first, generation.first + made)
        choices.append({"index": answer, **content, **end_of(generation, answer)})
    kind = "chat.completion" if chat else "text_completion"
    return {"id": f"x-{generation.request_id}", "object": kind, "choices": choices, "usage": usage_of(generation)}


def abort(http: web.BaseRequest) -> None:
    """Break the connection off."""
    if http.transport is not None:
        http.transport.abort()
