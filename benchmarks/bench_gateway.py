"""What the gateway costs: CPU seconds per 1,000 short requests, µs per streamed token, added latency; beside a bare proxy.

    python benchmarks/bench_gateway.py --engines ../shared/engines [--policies br_0,br_h] [--rate 300]

``--engines`` is a folder with ``mock_workers.py`` (eight mock workers in one process) and ``loadgen.py`` (a load client that
reads the CPU time of a process). All runs use the same client and the same workers; ``direct`` has no proxy, ``bare`` is an
aiohttp proxy that reads nothing, ``router`` is ``endcast route``. CPU seconds hold on a busy machine,
latencies do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKERS = 8
_HOP = {"host", "content-length", "connection", "transfer-encoding", "keep-alive"}


def main() -> None:
    """Run what was asked for and print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=pathlib.Path, default=ROOT.parent / "shared" / "engines")
    parser.add_argument("--policies", default="br_0", help="of the router, comma-separated")
    parser.add_argument(
        "--bundle", default="cold_start", help="forecaster of policies that use one; one that reads outputs costs more"
    )
    parser.add_argument("--requests", type=int, default=3000, help="short requests")
    parser.add_argument("--streams", type=int, default=300, help="streamed requests of 128 tokens")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument(
        "--gap-ms", type=float, default=10.0, help="between tokens of a stream; 0: as fast as workers can"
    )
    parser.add_argument("--rate", type=float, default=0.0, help="also latency at so many requests a second")
    parser.add_argument("--bare", nargs="+", metavar=("PORT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        _bare(int(options.bare[0]), options.bare[1:])
        return
    if not (options.engines / "loadgen.py").exists():
        sys.exit(f"error: {options.engines} has no loadgen.py. Name the folder with --engines")
    for figures in measure(options):
        print(json.dumps(figures), flush=True)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every kind of load on every proxy."""
    proxies = ["direct", "bare", *(f"router:{policy}" for policy in options.policies.split(","))]
    loads: list[tuple[str, float, list[str]]] = [
        ("short", 0.0, ["--n", str(options.requests)]),
        ("stream", options.gap_ms, ["--n", str(options.streams), "--tokens", "128", "--stream"]),
    ]
    if options.rate:
        loads.append(("rate", 0.0, ["--rate", str(options.rate), "--n", str(options.requests)]))
    for load, gap_ms, arguments in loads:
        with mock_workers(options.engines, gap_ms) as urls:
            for proxy in proxies:
                with front(proxy, urls, options.bundle) as (targets, pid):
                    run = ["--conc", str(options.concurrency), "--path", "/v1/chat/completions", *arguments]
                    run += [] if pid is None else ["--pid", str(pid)]
                    yield {"proxy": proxy, "load": load, **loadgen(options.engines, targets, run)}


def loadgen(engines: pathlib.Path, urls: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """One run of the load client: the figures that matter here."""
    command = [sys.executable, str(engines / "loadgen.py"), "--max-seconds", "300", "--urls", *urls, *arguments]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    names = (
        "ok",
        "errs",
        "rps",
        "e2e_p50_ms",
        "e2e_p99_ms",
        "itl_p50_ms",
        "proxy_cpu_s_per_1k",
        "proxy_cpu_us_per_tok",
    )
    return {name: told[name] for name in (*names, "rss_mb")}


@contextmanager
def mock_workers(engines: pathlib.Path, gap_ms: float) -> Iterator[list[str]]:
    """Eight mock workers on consecutive free ports, ``gap_ms`` between tokens."""
    port = free_ports(WORKERS)
    command = [sys.executable, str(engines / "mock_workers.py"), "--n", str(WORKERS), "--port", str(port)]
    with process([*command, "--itl-ms", str(gap_ms), "--max-seconds", "3600"], port + WORKERS - 1):
        yield [f"http://127.0.0.1:{port + i}" for i in range(WORKERS)]


@contextmanager
def front(proxy: str, urls: Sequence[str], bundle: str) -> Iterator[tuple[Sequence[str], int | None]]:
    """The addresses to call, and the proxy's process if there is one."""
    kind, _, policy = proxy.partition(":")
    if kind == "direct":
        yield urls, None
        return
    port = free_ports(1)
    if kind == "bare":
        with process([sys.executable, __file__, "--bare", str(port), *urls], port) as pid:
            yield [f"http://127.0.0.1:{port}"], pid
        return
    workers = ", ".join(f'{{url = "{url}"}}' for url in urls)
    forecaster = f'forecaster = "{bundle}"\n' if policy in ("br_h", "olp", "olp_br_h") else ""
    fleet = f'[listen]\nport = {port}\n[[pools]]\npolicy = "{policy}"\n{forecaster}workers = [{workers}]\n'
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "fleet.toml"
        file.write_text(fleet)
        with process([sys.executable, "-m", "endcast", "route", "--config", str(file)], port) as pid:
            yield [f"http://127.0.0.1:{port}"], pid


@contextmanager
def process(command: Sequence[str], port: int) -> Iterator[int]:
    """A process that listens on ``port`` once it is ready: its id."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                if running.poll() is not None:
                    sys.exit(f"error: {command[1]} ended with code {running.returncode}")
                time.sleep(0.1)
            yield running.pid
        finally:
            running.kill()


def free_ports(count: int) -> int:
    """The first of ``count`` consecutive ports that are free."""
    for port in range(20_000 + os.getpid() % 10_000, 60_000, count):
        if all(socket.socket().connect_ex(("127.0.0.1", port + i)) for i in range(count)):
            return port
    sys.exit("error: no free ports")


def _bare(port: int, urls: Sequence[str]) -> None:
    """A proxy that reads nothing, takes workers in turn and passes bytes on: what the HTTP stack itself costs."""
    import uvloop

    uvloop.run(_serve_bare(port, urls))


async def _serve_bare(port: int, urls: Sequence[str]) -> None:
    import aiohttp
    from aiohttp import web

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
    )
    turn = 0

    async def handle(http: web.BaseRequest) -> web.StreamResponse:
        nonlocal turn
        body = await http.read()
        turn += 1
        headers = {name: value for name, value in http.headers.items() if name.lower() not in _HOP}
        url = urls[turn % len(urls)] + http.path_qs
        async with session.request(http.method, url, data=body, headers=headers) as response:
            kept = {name: value for name, value in response.headers.items() if name.lower() not in _HOP}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                return web.Response(status=response.status, body=await response.read(), headers=kept)
            out = web.StreamResponse(status=response.status, headers=kept)
            await out.prepare(http)
            async for data in response.content.iter_any():
                await out.write(data)
            await out.write_eof()
            return out

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
