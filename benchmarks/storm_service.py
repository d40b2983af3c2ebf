"""What the tests do on a small scale, at full size: callers during reloads, kill -9, hostile clients, a full disk.

    python benchmarks/storm_service.py BUNDLE OTHER_BUNDLE [--only reloads,kills,hostile,batches,disk] [--callers 1000] [--reloads 50]

Each part starts ``endcast serve`` in a process of its own, prints what it did and saw, and ends with an error where something
that was acknowledged is lost, an answer is not that of the bundle that it names, or a fault is answered with a 5xx. ``disk``
mounts a file system of 8 MB, for which it has to be root.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from endcast import Landmark, Request, load_forecaster

TOKENS = (3, 40, 400, 3_000)
HEAD = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


class Server:
    """``endcast serve`` on a free port; ``settings`` as NAME=VALUE."""

    def __init__(self, bundle: Path, *settings: str) -> None:
        options = [part for one in ("log_level=error", *settings) for part in ("--set", one)]
        command = [sys.executable, "-m", "endcast", "serve", str(bundle), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the service did not start: exit {self.process.wait()}")
        self.port = int(line.rpartition(":")[2])

    def call(self, path: str, body: object = None, method: str | None = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def rss_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def put(folder: Path, bundle: Path) -> None:
    """Copy a bundle over whatever is there, as a careless operator does."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundle, folder)


def offline(bundle: Path) -> tuple[str, dict[str, float]]:
    """The bundle's id, and P(R ≤ 64) of each request as it says by itself."""
    forecaster = load_forecaster(bundle)
    landmarks = [Landmark(request=Request(request_id=str(n), prompt_tokens=n), generated_tokens=n // 4) for n in TOKENS]
    made = forecaster.forecast(landmarks)
    return forecaster.bundle, {str(n): forecast.p_end(64) for n, forecast in zip(TOKENS, made, strict=True)}


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return int(head.split()[1]), await reader.readexactly(length)


async def one_caller(port: int, ended: threading.Event, truth: dict[str, dict[str, float]], seen: Counter[str]) -> None:
    """One call after the other over one connection, each checked; what is refused with 429 is asked again."""
    requests = [{"request_id": str(n), "prompt_tokens": n, "generated_tokens": n // 4} for n in TOKENS]
    body = json.dumps({"requests": requests, "horizons": [64]}).encode()
    call = HEAD.format("/v1/forecasts").encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not ended.is_set():
        writer.write(call)
        status, answer = await read_answer(reader)
        seen[str(status)] += 1
        if status == 429:
            await asyncio.sleep(0.1)
            continue
        told = json.loads(answer)
        expected = truth[told["bundle"]]
        off = max(abs(one["p_end"]["64"] - expected[one["request_id"]]) for one in told["forecasts"])
        seen[told["bundle"]] += 1
        seen["wrong"] += off > 1e-9 or len(told["forecasts"]) != len(TOKENS)
    writer.close()


def reloads(bundles: Sequence[Path], work: Path, callers: int, count: int) -> None:
    """Callers during reloads."""
    folder = work / "bundle"
    put(folder, bundles[0])
    truth, seen, ended = dict(offline(bundle) for bundle in bundles), Counter[str](), threading.Event()
    server = Server(folder)

    async def all_callers() -> None:
        await asyncio.gather(*(one_caller(server.port, ended, truth, seen) for _ in range(callers)))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, all_callers())
        for i in range(count):
            put(folder, bundles[(i + 1) % 2])
            status, told = server.call("/v1/bundle/reload", method="POST")
            if status != 200 or not told["changed"]:
                raise RuntimeError(f"reload {i}: {status} {told}")
        ended.set()
        running.result()
    server.kill()
    print(f"reloads: {callers} callers, {count} reloads; {dict(seen)}")
    if seen["wrong"] or set(seen) - {"200", "429", "wrong", *truth}:
        raise RuntimeError("an answer is not that of the bundle that it names")


def kills(bundles: Sequence[Path], work: Path, rounds: int) -> None:
    """SIGKILL at any moment of outcome writes and reloads."""
    folder, log, rng = work / "bundle", work / "log", random.Random(0)
    put(folder, bundles[0])
    acknowledged: list[str] = []
    starts: list[float] = []
    for number in range(rounds):
        began = time.monotonic()
        server = Server(folder, f"outcome_log={log}")
        starts.append(time.monotonic() - began)
        lost = _lost(server, acknowledged[-20_000:])
        if lost:
            raise RuntimeError(f"{len(lost)} acknowledged outcomes are lost, such as {lost[0]}")
        stop = threading.Timer(rng.uniform(1.0, 8.0), server.process.send_signal, [signal.SIGKILL])
        stop.start()
        with ThreadPoolExecutor(2) as pool:
            pool.submit(_reload_on, server, folder, bundles)
            pool.submit(_tell_on, server, number, acknowledged)
        stop.join()
        server.process.communicate()
        put(folder, bundles[number % 2])
    print(
        f"kills: {rounds} times SIGKILL, {len(acknowledged)} outcomes acknowledged, none lost; start {max(starts):.1f} s at most"
    )


def _lost(server: Server, names: Sequence[str]) -> list[str]:
    """Those that the service does not know when they are told again."""
    lost: list[str] = []
    for start in range(0, len(names), 1_000):
        some = names[start : start + 1_000]
        told = [{"request_id": name, "output_tokens": 5} for name in some]
        statuses = server.call("/v1/outcomes", {"outcomes": told})[1]["statuses"]
        lost += [name for name, status in zip(some, statuses, strict=True) if status != "duplicate"]
    return lost


def _tell_on(server: Server, number: int, acknowledged: list[str]) -> None:
    for i in range(1_000_000):
        names = [f"r{number}-{i}-{j}" for j in range(20)]
        told = [{"request_id": n, "output_tokens": 5, "request": {"prompt_tokens": 5}} for n in names]
        try:
            if server.call("/v1/outcomes", {"outcomes": told})[0] == 200:
                acknowledged += names
        except (OSError, ValueError):
            return  # killed


def _reload_on(server: Server, folder: Path, bundles: Sequence[Path]) -> None:
    for i in range(1_000_000):
        try:
            put(folder, bundles[i % 2])
            server.call("/v1/bundle/reload", method="POST")
        except (OSError, ValueError):
            return  # killed


def hostile(bundles: Sequence[Path], seconds: float, *, attackers: bool = True) -> None:
    """Hostile clients (or none) and large batches; health checks meanwhile, of this service and of one that has nothing to do: what
    both show is the machine's."""
    server, idle = Server(bundles[0]), Server(bundles[0])
    until, statuses = time.monotonic() + seconds, Counter[str]()
    big = {"requests": [{"prompt_tokens": 9, "generated_tokens": i % 500} for i in range(4_096)], "curve": True}
    raw, bomb = json.dumps(big).encode(), gzip.compress(bytes(100_000_000))
    forecasts, before = HEAD.format("/v1/forecasts").encode(), server.rss_mb()
    attacks: dict[str, list[bytes | None]] = {
        "100 MB": [forecasts + b"content-length: 100000000\r\n\r\n", b" " * 100_000_000],
        "100 MB in chunks": [
            forecasts + b"transfer-encoding: chunked\r\n\r\n",
            *[b"100000\r\n%b\r\n" % bytes(1 << 20)] * 100,
        ],
        "compression bomb": [forecasts + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb), bomb],
        "header flood": [forecasts, *[b"x-y: %b\r\n" % (b"z" * 90)] * 100_000],
        "nested": [forecasts + b"content-length: 1000000\r\n\r\n", b"[" * 1_000_000],
        "slow body": [forecasts + b"content-length: 100\r\n\r\n{", None],
        "slow head": [b"POST /v1/fore", None],
        "never reads": [forecasts + b"content-length: %d\r\n\r\n" % len(raw) + raw, None],
    }

    def attack(name: str) -> None:
        while time.monotonic() < until:
            statuses[f"{name}: {_attack(server.port, attacks[name], until)}"] += 1

    def batches() -> None:
        while time.monotonic() < until:
            statuses[f"4,096 landmarks: {server.call('/v1/forecasts', big)[0]}"] += 1

    with get_context("spawn").Pool(1) as pool, ThreadPoolExecutor(16) as threads:
        probing = pool.apply_async(probe, ([server.port, idle.port], seconds))
        running = [threads.submit(attack, name) for name in attacks if attackers]
        running += [threads.submit(batches) for _ in range(2)]
        for one in running:
            one.result()
        waits = probing.get()
    print(
        f"{'hostile' if attackers else 'batches'}: {dict(sorted(statuses.items()))}; resident {before:.0f} → {server.rss_mb():.0f} MB"
    )
    for name, each in zip(("attacked", "idle"), waits, strict=True):
        p50, p99 = np.percentile(each, [50, 99])
        print(f"  /healthz, {name} service: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(each):.1f} ms")
    idle.kill()
    server.kill()
    if any(": 5" in name for name in statuses):
        raise RuntimeError("a fault of the caller was answered with 5xx")


def probe(ports: Sequence[int], seconds: float) -> list[list[float]]:
    """Milliseconds of health checks of each service in turn, over connections that stay open; in a process of its own."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for port in ports]
    waits: list[list[float]] = [[] for _ in ports]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for connection, own in zip(connections, waits, strict=True):
            asked = time.perf_counter()
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            if answer.read() != b'{"status":"ok"}':
                raise RuntimeError("not healthy")
            own.append(1e3 * (time.perf_counter() - asked))
            time.sleep(0.005)
    return waits


def _attack(port: int, parts: Sequence[bytes | None], until: float) -> str:
    """The status of the answer, once sent; ``None`` among the parts is silence to the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=25) as connection:
        try:
            for part in parts:
                if part is None:
                    time.sleep(max(min(until - time.monotonic(), 22.0), 0.0))
                else:
                    connection.sendall(part)
        except OSError:
            pass  # refused while it was sent; what was answered may still be read
        try:
            return (connection.recv(64).split() or [b"", b"closed"])[1].decode()
        except (OSError, IndexError):
            return "closed"


def disk(bundles: Sequence[Path], work: Path) -> None:
    """A file system that runs full under the outcome log."""
    small = work / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=False).returncode:
        print("disk: left out, no file system can be mounted here")
        return
    try:
        server = Server(bundles[0], f"outcome_log={small / 'log'}")
        acknowledged, refused = [], Counter[int]()
        for i in range(100_000):
            names = [f"r{i}-{j}" for j in range(100)]
            told = [{"request_id": n, "output_tokens": 5, "request": {"prompt_tokens": 5}} for n in names]
            status, _ = server.call("/v1/outcomes", {"outcomes": told})
            if status == 200:
                acknowledged += names
            else:
                refused[status] += 1
            if sum(refused.values()) == 20:
                break
        forecast = server.call("/v1/forecasts", {"requests": [{"prompt_tokens": 5}]})[0]
        server.kill()
        server = Server(bundles[0], f"outcome_log={small / 'log'}")
        lost = _lost(server, acknowledged[-20_000:])
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        again = _told_new(server)
        server.kill()
    finally:
        subprocess.run(["umount", str(small)], check=True)
    print(
        f"disk: {len(acknowledged)} outcomes acknowledged until it was full, then {dict(refused)}, forecasts {forecast}; "
        f"after kill -9 {len(lost)} of them lost; with room again {again}"
    )
    if lost or set(refused) != {503} or forecast != 200 or again != "accepted":
        raise RuntimeError("a full disk did harm")


def _told_new(server: Server) -> str:
    told = {"request_id": "new", "output_tokens": 5, "request": {"prompt_tokens": 5}}
    status: str = server.call("/v1/outcomes", {"outcomes": [told]})[1]["statuses"][0]
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs=2, type=Path)
    parser.add_argument("--only", default="reloads,kills,hostile,batches,disk")
    parser.add_argument("--callers", type=int, default=1_000)
    parser.add_argument("--reloads", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    parts: dict[str, Callable[[Path], None]] = {
        "reloads": lambda work: reloads(asked.bundles, work, asked.callers, asked.reloads),
        "kills": lambda work: kills(asked.bundles, work, asked.kills),
        "hostile": lambda _work: hostile(asked.bundles, asked.seconds),
        "batches": lambda _work: hostile(asked.bundles, asked.seconds, attackers=False),
        "disk": lambda work: disk(asked.bundles, work),
    }
    for name in asked.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
