"""The access log, which is a training log: JSON Lines whose columns are the canonical trace's, one a generated answer.

``endcast train``, ``evaluate`` and ``simulate`` read it as it is. What is no column (worker, reason, timings, forecast)
lies in ``attributes``. Prompts and outputs are written only where the operator switched them on.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from endcast.errors import EndcastError
from endcast.router.gateway.config import Log
from endcast.router.gateway.messages.body import Body, parameters_of, prompt_of
from endcast.router.gateway.tickets import Ticket
from endcast.types import EndReason

if TYPE_CHECKING:
    from endcast.router.gateway.fleet.pools import PoolAtWork
    from endcast.router.gateway.seen.outcome import Outcome
    from endcast.router.gateway.streams.account import Account

#: Seconds that lines are gathered for.
_GATHER_S = 0.5
#: Lines kept while the disk does not take any; the oldest are lost then, and counted.
_MOST_LINES = 100_000
_ENCODER = msgspec.json.Encoder()


class AccessLog:
    """Appends to one file; lines are written twice a second, off the event loop, and at the end."""

    def __init__(self, settings: Log, path: Path) -> None:
        """``EndcastError`` if the file cannot be opened."""
        self._settings = settings
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        except OSError as error:
            raise EndcastError(
                f"cannot write the access log {path}: {error.strerror}", hint="Correct log.path"
            ) from None
        self._lines: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self.lost = 0  #: lines that could not be written

    def write(
        self,
        outcome: Outcome,
        *,
        body: Body,
        ticket: Ticket,
        account: Account | None,
        tokens: list[int],
        pool: PoolAtWork,
        request_id: str,
        client_id: str | None,
        tenant: str | None,
    ) -> None:
        """One line for each answer of a request that has ended."""
        shared: dict[str, Any] = {
            "arrival_s": round(outcome.arrival_s, 6),
            "finished_s": round(outcome.arrival_s + outcome.duration_s, 6),
            "prompt_tokens": account.prompt_tokens if account and account.prompt_tokens is not None else None,
            "max_tokens": body.max_tokens,
            "context_limit": pool.config.context_limit,
            "model": body.model,
            "tenant": tenant,
            "parameters": parameters_of(body),
        }
        if shared["prompt_tokens"] is None and body.exact_prompt:
            shared["prompt_tokens"] = body.estimated_prompt
        if ticket.intake.prefix_blocks:
            shared["prefix_blocks"] = ticket.intake.prefix_blocks
        if self._settings.prompts:
            shared["prompt"], shared["messages"] = prompt_of(body)
        attributes = _attributes(outcome, ticket, body, pool, client_id)
        for answer, count in enumerate(tokens):
            end = outcome.end
            if account is not None and end not in (EndReason.ABORT, EndReason.ERROR):
                end = account.ends.get(answer, end)
            line = {
                "request_id": request_id if len(tokens) == 1 else f"{request_id}#{answer}",
                **shared,
                "output_tokens": count,
                "end": end.value,
                "attributes": attributes,
            }
            if self._settings.outputs and account is not None:
                line["output"] = "".join(account.texts.get(answer, ()))
            self._lines.append(_ENCODER.encode(line))

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._keep_writing(), name="access log")

    async def stop(self) -> None:
        """Write what is left and close the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await self._writing  # lines that were taken by then
        self._write(self._take())
        os.close(self._file)

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(_GATHER_S)
            lines = self._take()
            if lines:
                self._writing = asyncio.create_task(asyncio.to_thread(self._write, lines))
                await asyncio.shield(self._writing)

    def _take(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        self.lost += max(len(lines) - _MOST_LINES, 0)
        return lines[-_MOST_LINES:]

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        data = memoryview(b"\n".join([*lines, b""]))
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            self.lost += len(lines)  # shown in /metrics; requests are served all the same


def _attributes(
    outcome: Outcome, ticket: Ticket, body: Body, pool: PoolAtWork, client_id: str | None
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "pool": pool.name,
        "worker": outcome.worker or None,
        "reason": ticket.reason or None,
        "attempts": outcome.attempts,
        "recomputed": outcome.recomputed or None,
        "status": outcome.status,
        "problem": outcome.problem or None,
        "stream": body.streams,
        "choices": body.choices,
        "booked_prompt_tokens": ticket.intake.prompt_tokens,
        "wait_s": round(outcome.wait_s, 6),
        "prefill_worker": outcome.prefill_worker or None,
        "cached_prompt_tokens": outcome.cached_tokens,
        "prefill_s": None if outcome.prefill_s is None else round(outcome.prefill_s, 6),
        "first_byte_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 6),
        "client_request_id": client_id,
    }
    if pool.desk is not None:
        told["forecast"] = {"bundle": pool.desk.bundle, "expected_output_tokens": ticket.expected}
    return {name: value for name, value in told.items() if value is not None}
