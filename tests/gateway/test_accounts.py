"""Streams as the books see them: cut at every byte, several answers, odd frames; bytes out are bytes in without usage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from endcast.router.gateway.config import Limits, Pool, WorkerConfig
from endcast.router.gateway.messages.body import read_body
from endcast.router.gateway.routing.core import RoutingCore
from endcast.router.gateway.routing.dispatch import Dispatcher
from endcast.router.gateway.streams.account import Account
from endcast.router.gateway.tickets import Intake
from endcast.types import EndReason


def event(frame: dict[str, Any] | str, end: str = "\n\n") -> bytes:
    text = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}{end}".encode()


def chunk(index: int, delta: dict[str, Any], usage: tuple[int, int] | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": None} | more
    counts = {} if usage is None else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    return {"id": "c", "choices": [choice], **counts}


def in_a_loop(
    pieces: list[bytes], *, answers: int = 1, strips: bool, options: Any = None
) -> tuple[bytes, Account, Any]:
    """What a client gets of a stream in ``pieces``, the account, and (load, tokens of each answer) before it ended."""
    core = RoutingCore(Pool(workers=(WorkerConfig(url="http://w"),), slots=8), rng=np.random.default_rng(0))
    ticket = core.open(Intake(prompt_tokens=99, width=answers))
    core.decide(0.0)
    body = read_body(json.dumps({"stream": True, "n": answers, "stream_options": options}).encode(), chat=True)
    account = Account(ticket, Dispatcher(core, Limits()), body, strips=strips, keeps_text=True, clock=lambda: 0.0)
    sent = b"".join([account.feed(piece) for piece in pieces] + [account.rest()])
    return sent, account, (int(core.load()[0]), list(ticket.generated))


def account_of(pieces: list[bytes], **how: Any) -> tuple[bytes, Account, Any]:
    async def run() -> tuple[bytes, Account, Any]:
        return in_a_loop(pieces, **how)

    return asyncio.run(run())


COUNTED = [
    chunk(0, {"role": "assistant", "content": ""}, (7, 0)),
    chunk(0, {"content": "你好"}, (7, 2)),
    chunk(0, {"reasoning_content": "hm 🌍"}, (7, 3)),
    chunk(0, {}, (7, 5), finish_reason="stop", stop_reason=128009),
]
TOTAL = {"id": "c", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
STREAM = b"".join([*map(event, COUNTED), event(TOTAL), event("[DONE]")])
STRIPPED = b"".join([event({k: v for k, v in frame.items() if k != "usage"}) for frame in COUNTED] + [event("[DONE]")])


@pytest.mark.parametrize(
    ("strips", "options", "expected"),
    [
        (True, None, STRIPPED),
        (True, {"include_usage": True}, STRIPPED.replace(event("[DONE]"), event(TOTAL) + event("[DONE]"))),
        (False, {"include_usage": True, "continuous_usage_stats": True}, STREAM),
    ],
)
def test_cut_at_every_byte(strips: bool, options: Any, expected: bytes) -> None:
    async def run() -> None:
        for cut in range(len(STREAM) + 1):
            pieces = [STREAM[:cut], STREAM[cut:]]
            sent, account, (load, generated) = in_a_loop(pieces, strips=strips, options=options)
            assert sent == expected, cut
            assert account.done and account.ends == {0: EndReason.STOP}
            assert (account.prompt_tokens, account.total_tokens, generated, load) == (7, 5, [5], 12)
            assert "".join(account.texts[0]) == "你好hm 🌍"

    asyncio.run(run())


def test_one_byte_at_a_time() -> None:
    sent, account, _ = account_of([STREAM[i : i + 1] for i in range(len(STREAM))], strips=True)
    assert sent == STRIPPED and account.done


def test_what_the_usage_event_tells_beside_usage_stands_in_the_event_before_it() -> None:
    marked = [*map(event, COUNTED), event(TOTAL | {"system_fingerprint": "f-1"}), event("[DONE]")]
    end = event({k: v for k, v in COUNTED[-1].items() if k != "usage"})
    expected = STRIPPED.replace(end, end[:-3] + b',"system_fingerprint":"f-1"}\n\n')
    for pieces in (marked, [b"".join(marked)], [b"".join(marked[:-2])[:-1], b"\n", *marked[-2:]]):
        assert account_of(pieces, strips=True)[0] == expected
    own = event(COUNTED[-1] | {"system_fingerprint": "f-0"})
    stream = b"".join([*marked[:3], own, *marked[4:]])
    assert account_of([stream], strips=True)[0].count(b"system_fingerprint") == 1, "an event's own one stays"
    assert account_of(marked[:-2], strips=True)[0] == STRIPPED.removesuffix(event("[DONE]")), "no usage event came"


def test_several_answers_are_counted_each() -> None:
    frames = [chunk(i, {"role": "assistant"}, (7, 0)) for i in range(3)]
    frames += [
        chunk(2, {"content": "a"}, (7, 1)),
        chunk(0, {"content": "b"}, (7, 4)),
        chunk(2, {"content": "c"}, (7, 2)),
    ]
    frames += [chunk(2, {}, (7, 2), finish_reason="length"), chunk(0, {"content": "d"}, (7, 5))]
    stream = b"".join(map(event, frames))
    sent, account, (load, generated) = account_of([stream], answers=3, strips=True)
    assert generated == [5, 0, 2] and account.ends == {2: EndReason.LENGTH}
    assert load == 7 + 5, "the slot of the third answer is free"
    assert not account.done and b"usage" not in sent


def test_without_usage_chunks_with_content_are_counted() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    frames = [
        chunk(0, {"role": "assistant"}),
        chunk(0, {"content": "a"}),
        chunk(0, call),
        chunk(0, {}, finish_reason="tool_calls"),
    ]
    _, account, (_, generated) = account_of([b"".join(map(event, frames))], strips=False)
    assert generated == [2] and account.ends == {0: EndReason.STOP} and account.total_tokens is None


@pytest.mark.parametrize(
    "frame",
    [
        '{"choices": null}',
        '{"choices": [{}]}',
        '{"choices": [{"index": "x", "delta": null, "finish_reason": 7}]}',
        '{"choices": [{"index": -5, "delta": {"content": [1]}}], "usage": {"completion_tokens": "3"}}',
        '{"choices": [], "usage": []}',
        '{"choices": [{"index": 99999999999, "text": "a"}], "usage": {"completion_tokens": 1e309}}',
        "{}",
        "null",
        '"text"',
        "",
    ],
)
def test_odd_frames_pass_and_break_nothing(frame: str) -> None:
    stream = event(frame) + b": ping\n\n" + event("[DONE]")
    sent, account, (load, _) = account_of([stream], strips=False)
    assert sent == stream and account.done and load >= 99


def test_an_error_frame_is_seen() -> None:
    stream = event(COUNTED[1]) + event({"error": {"message": "x", "code": 500}}) + event("[DONE]")
    sent, account, _ = account_of([stream], strips=False)
    assert sent == stream and account.failed


def test_the_recompute_marker_is_no_end() -> None:
    stream = event(chunk(0, {}, (7, 3), finish_reason="stop", stop_reason="recomputed"))
    _, account, _ = account_of([stream], strips=False)
    assert account.ends == {0: EndReason.UNFINISHED}
