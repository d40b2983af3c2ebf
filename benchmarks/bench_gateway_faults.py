"""The router under faults: open streams, killed workers, silent workers, resets at every phase, clients who leave.

    python benchmarks/bench_gateway_faults.py [--streams 2000] [--cancellations 10000]

``endcast route`` runs as a process of its own in front of a mock fleet and of clients, both in this one. Each line says what
clients got (``whole``: the answer; ``told``: a stream that ends in an error event and ``[DONE]``; ``refused``: an OpenAI error;
``left``: they left; ``bad``: anything else, of which there must be none), and what is left in the router: books, open calls, file descriptors,
memory (MiB).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import pathlib
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet

WORKERS = 8
#: Seconds after which a router with little patience gives a silent worker up.
PATIENCE_S = 3.0
#: What must be zero in the router afterwards.
EMPTY = ("waiting", "running", "kv_tokens", "open_calls")
Scenes = list[tuple[str, Callable[[], Awaitable[Counter[str]]]]]


def main() -> None:
    """Run all and print a line each; exit code 1 if a client got nothing it can use, or the books are not empty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000, help="open at once, when half of the workers are killed")
    parser.add_argument("--cancellations", type=int, default=10_000)
    parser.add_argument("--policy", default="br_0")
    told = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the mock fleet's, of what it breaks off itself
    sys.exit(asyncio.run(run(told)))


async def run(told: argparse.Namespace) -> int:
    """Every kind of fault in turn; those that take the router's patience with one that has little."""
    slots = -(-told.streams // WORKERS) * 2
    settings = MockSettings(workers=WORKERS, slots=slots, t_fixed_s=0.01, kv_capacity=50_000_000)
    faulty = False
    async with MockFleet(settings) as fleet, session() as client:
        clients = Clients(client, fleet)
        patient: Scenes = [
            ("warm", lambda: clients.many(200)),
            ("half of the workers killed under open streams", lambda: clients.killed(told.streams)),
            ("clients leave, first time", lambda: clients.leaving(told.cancellations)),
            ("clients leave, second time", lambda: clients.leaving(told.cancellations)),
        ]
        impatient: Scenes = [
            ("a worker that accepts and never answers", lambda: clients.silent(200)),
            ("resets at every phase", lambda: clients.resets(40)),
        ]
        for patience_s, scenes in ((600.0, patient), (PATIENCE_S, impatient)):
            async with router(fleet, slots, told.policy, patience_s) as (clients.url, pid):
                for name, scene in scenes:
                    seen = await scene()
                    left = await clients.settled(pid)
                    faulty |= bool(seen["bad"]) or any(left[what] for what in EMPTY)
                    print(json.dumps({"scene": name, **seen, "bad": seen["bad"], "router": left}), flush=True)
                    for what in clients.odd[:5]:
                        print(f"  {what}", file=sys.stderr)
                    clients.odd.clear()
    return int(faulty)


@asynccontextmanager
async def router(fleet: MockFleet, slots: int, policy: str, patience_s: float) -> AsyncIterator[tuple[str, int]]:
    """``endcast route`` in front of the fleet: its address, and its process id."""
    workers = ", ".join(f'{{ url = "{url}" }}' for url in fleet.urls)
    forecaster = 'forecaster = "cold_start"\n' if "h" in policy or policy == "olp" else ""
    text = (
        f"[limits]\nmax_waiting = 100000\nfirst_byte_timeout_s = {patience_s}\ninter_chunk_timeout_s = {patience_s}\n"
        f"[health]\npause_s = 0.2\ninterval_s = 1.0\ntimeout_s = 60.0\nreconcile_s = 0\n"
        f'[[pools]]\nslots = {slots}\npolicy = "{policy}"\n{forecaster}workers = [{workers}]\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "fleet.toml"
        file.write_text(text)
        command = [sys.executable, "-m", "endcast", "route", "--config", str(file), "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            yield (await process.stdout.readline()).split()[-1].decode(), process.pid
        finally:
            process.terminate()
            await process.wait()


def session() -> aiohttp.ClientSession:
    """One for all clients, as many connections as it takes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=1800), auto_decompress=False
    )


class Clients:
    """Clients of the router, and whoever breaks the fleet."""

    def __init__(self, client: aiohttp.ClientSession, fleet: MockFleet) -> None:
        self._client, self._fleet = client, fleet
        self.url = ""  #: of the router
        self._rng = random.Random(1)
        self.odd: list[str] = []  #: what clients got that they cannot use

    async def one(self, tokens: int, *, stream: bool = True, n: int = 1) -> str:
        """What a client gets: ``whole``, ``told``, ``refused`` or ``bad``."""
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "stream": stream,
            "n": n,
            "mock_output_tokens": tokens,
        }
        try:
            async with self._client.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                status, data = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.odd.append(repr(error)[:200])
            return "bad"
        found = judged(status, data, stream)
        if found == "bad":
            self.odd.append(f"{status} {data[-200:]!r}")
        return found

    async def many(self, count: int) -> Counter[str]:
        """Some ordinary requests."""
        return Counter(await asyncio.gather(*(self.one(5, stream=i % 3 > 0) for i in range(count))))

    async def killed(self, streams: int) -> Counter[str]:
        """So many open streams, of which half lose their worker; the other half must be whole."""
        self._fleet.steps.paused = True
        calls = [asyncio.create_task(self.one(40)) for _ in range(streams)]
        while sum(len(rank.running) + len(rank.waiting) for rank in self._fleet.ranks) < streams:
            assert not any(call.done() for call in calls), "none may end before all are open"
            await asyncio.sleep(0.02)
        self._fleet.steps.paused = False
        await asyncio.sleep(0.3)
        for worker in range(WORKERS // 2):
            await self._fleet.kill(worker)
        seen = Counter(await asyncio.gather(*calls))
        for worker in range(WORKERS // 2):
            await self._fleet.revive(worker)
        await asyncio.sleep(2.0)
        return seen

    async def silent(self, count: int) -> Counter[str]:
        """One worker takes calls and says nothing."""
        self._fleet.ranks[0].faults.hang = True
        seen = Counter(await asyncio.gather(*(self.one(5, stream=i % 2 > 0) for i in range(count))))
        self._fleet.ranks[0].faults.hang = False
        await asyncio.sleep(1.0)
        return seen

    async def resets(self, count: int) -> Counter[str]:
        """Connections break off before, at and after the first byte, in the middle, at the end; streams fall silent."""
        seen: Counter[str] = Counter()
        for name, value in faults():
            for rank in self._fleet.ranks[: WORKERS // 2]:
                setattr(rank.faults, name, value)
            kinds = [(i % 3 > 0, 1 + (i % 4 == 0)) for i in range(count)]
            seen += Counter(await asyncio.gather(*(self.one(8, stream=stream, n=n) for stream, n in kinds)))
            for rank in self._fleet.ranks:
                setattr(rank.faults, name, None if name.endswith("after") else 0)
            await asyncio.sleep(0.5)
        return seen

    async def leaving(self, count: int, at_once: int = 300) -> Counter[str]:
        """Clients leave after random times: while waiting, before the first byte, in the middle, after the end."""
        turns, rng = asyncio.Semaphore(at_once), self._rng

        async def one() -> str:
            async with turns:
                call = self.one(rng.randint(1, 60), stream=rng.random() < 0.8, n=rng.choice([1, 1, 1, 2]))
                try:
                    return await asyncio.wait_for(call, rng.random() * rng.choice([0.01, 0.1, 1.0, 5.0]))
                except TimeoutError:
                    return "left"

        return Counter(await asyncio.gather(*(one() for _ in range(count))))

    async def settled(self, pid: int) -> dict[str, float]:
        """What is left in the router once it has had time to notice, and idle connections have ended."""
        for _ in range(100):
            left = await self._left()
            if not any(left.values()):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(6.0)
        return {**left, "fds": len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir())), "rss_mib": rss_mib(pid)}

    async def _left(self) -> dict[str, float]:
        async with self._client.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        async with self._client.get(f"{self.url}/live") as answer:
            calls = (await answer.json())["open_calls"]
        names = {"waiting": "waiting{", "running": "running{", "kv_tokens": "worker_kv_tokens{"}
        told = {
            name: sum(float(line.split()[-1]) for line in lines if line.startswith(f"endcast_router_{start}"))
            for name, start in names.items()
        }
        return {**told, "open_calls": calls}


def judged(status: int, data: bytes, stream: bool) -> str:
    """What an answer is to its client."""
    if status != 200:
        return "refused" if b'"error"' in data and json.loads(data)["error"]["message"] else "bad"
    if not stream:
        return "whole" if all(choice["finish_reason"] for choice in json.loads(data)["choices"]) else "bad"
    if b'data: {"error"' in data:
        return "told" if data.endswith(b"data: [DONE]\n\n") else "bad"
    # An engine that breaks off between its last words and ``[DONE]`` has said all: the stream ends as it did.
    return "whole" if b'"finish_reason":"stop"' in data else "bad"


def faults() -> Iterator[tuple[str, Any]]:
    """Every way in which a mock worker breaks off, by phase."""
    yield from (("reset", 5), ("empty", 5), ("unavailable", 5))
    yield from (("cut_after", tokens) for tokens in (1, 2, 7, 8))
    yield from (("error_after", tokens) for tokens in (1, 4, 8))
    yield from (("silent_after", tokens) for tokens in (1, 5))


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return round(int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024, 1)


if __name__ == "__main__":
    main()
