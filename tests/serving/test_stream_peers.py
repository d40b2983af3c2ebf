"""Calls about a stream of another process: handed on whole, refused as there, and never left hanging."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.errors import EndcastError
from endcast.serving.api.problems import ServiceError, busy
from endcast.serving.streams import peers as module
from endcast.serving.streams.names import StreamNames, owner_of
from endcast.serving.streams.peers import Do, Handed, Peers

T = TypeVar("T")


def with_peer(folder: Path, do: Do, work: Callable[[Peers], Awaitable[T]]) -> T:
    """What ``work`` gives for process 1, while process 2 answers by ``do``."""

    async def run() -> T:
        async with Peers(folder, 2).life(do), Peers(folder, 1).life(do):
            asking = Peers(folder, 1)
            try:
                return await work(asking)
            finally:
                for _, writer in [end for idle in asking._idle.values() for end in idle]:
                    writer.close()

    return asyncio.run(run())


def status(error: pytest.ExceptionInfo[ServiceError]) -> tuple[int, str]:
    return error.value.status, error.value.code


def test_bodies_and_answers_of_any_size_arrive_whole(tmp_path: Path) -> None:
    async def echo(call: Handed) -> bytes:
        await asyncio.sleep(0.001 * (len(call.body) % 3))
        return call.what.encode() + call.name.encode() + call.body

    async def work(asking: Peers) -> list[bytes]:
        calls = [Handed("append", f"s{i}", os.urandom(size)) for i, size in enumerate([0, 1, 70_000, 3_000_000] * 3)]
        told = await asyncio.gather(*(asking.ask(2, call) for call in calls))
        assert told == [b"append" + call.name.encode() + call.body for call in calls]
        return told

    assert len(with_peer(tmp_path, echo, work)) == 12


def test_it_is_refused_as_the_other_process_refuses(tmp_path: Path) -> None:
    async def refuse(call: Handed) -> bytes:
        raise busy(7) if call.what == "append" else RuntimeError("a fault")

    async def work(asking: Peers) -> None:
        with pytest.raises(ServiceError) as error:
            await asking.ask(2, Handed("append", "s", b""))
        assert status(error) == (429, "busy") and error.value.headers == {"retry-after": "7"}
        with pytest.raises(ServiceError) as error:
            await asking.ask(2, Handed("close", "s", b""))
        assert status(error) == (500, "internal")

    with_peer(tmp_path, refuse, work)


def test_a_process_that_is_gone_took_its_streams_along(tmp_path: Path) -> None:
    async def run() -> None:
        asking = Peers(tmp_path, 1)

        async def answer(_call: Handed) -> bytes:
            return b"{}"

        async with Peers(tmp_path, 2).life(answer):
            assert await asking.ask(2, Handed("append", "s", b"")) == b"{}"
        for owner in (2, 3):  # one that was asked before, one that never was
            with pytest.raises(ServiceError) as error:
                await asking.ask(owner, Handed("append", "s", b""))
            assert status(error) == (404, "unknown_stream")

    asyncio.run(run())


def test_a_process_that_is_silent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.05)

    async def silent(_call: Handed) -> bytes:
        await asyncio.sleep(30)
        return b""

    async def work(asking: Peers) -> None:
        with pytest.raises(ServiceError) as error:
            await asking.ask(2, Handed("append", "s", b""))
        assert status(error) == (503, "stream_unreachable")

    with_peer(tmp_path, silent, work)


def test_a_folder_whose_name_is_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    async def run() -> None:
        async with Peers(folder, 1).life(lambda _: asyncio.sleep(0, b"")):
            pass

    with pytest.raises(EndcastError, match=re.escape(str(folder))):
        asyncio.run(run())


@given(st.none() | st.integers(0, 9_999_999_999))
def test_ids_name_their_process_and_are_known_by_it_only(owner: int | None) -> None:
    names, others = StreamNames(owner), StreamNames(owner)
    given_ids = [names.new() for _ in range(20)]
    assert len(set(given_ids)) == 20
    for name in given_ids:
        assert owner_of(name) == owner
        assert names.gave(name) and not others.gave(name)
        assert not names.gave(name[:-1] + ("0" if name[-1] != "0" else "1"))


@given(st.text(max_size=40) | st.from_regex(r"s-(p[0-9./]{0,12}-)?[0-9a-f/.]{0,5}-[0-9a-f]{0,26}", fullmatch=True))
def test_no_other_text_is_taken_for_an_id(text: str) -> None:
    assert not StreamNames().gave(text)
    owner = owner_of(text)
    assert owner is None or f"s-p{owner}-" in text or text.startswith("s-p0")
