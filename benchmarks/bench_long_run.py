"""Memory of the forecast service over a long run: millions of landmarks, outcomes, streams, then a restart.

    python benchmarks/bench_long_run.py BUNDLE [--landmarks 3000000] [--log FOLDER] [--set NAME=VALUE …]

One server process (``endcast serve``) with a durable outcome log. Each round is one call of 512 landmarks of 64 requests at
eight ages each, the outcomes of a quarter of these requests, and a stream that is opened, fed and, three times out of four, closed. All ids
are new in every round, so that whatever is kept by id would grow. Resident memory is the server's, read from ``/proc``. At the
end the server is killed with SIGKILL and started again: how long until it is ready, and what it knows then.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

REQUESTS, AGES = 64, (0, 32, 64, 96, 128, 192, 256, 384)
TENANTS, MODELS = 10_000, 500
#: What is bounded by a setting or a constant, as ``/metrics`` tells it.
BOUNDED = ("endcast_ledger_forecasts", "endcast_open_streams", "endcast_stream_bytes", "endcast_outcomes_backlog")


class Server:
    """``endcast serve`` in a process of its own, on a free port."""

    def __init__(self, bundle: Path, log: Path, settings: Sequence[str]) -> None:
        told = [f"outcome_log={log}", "max_streams=2000", "log_level=warning", *settings]
        options = [part for one in told for part in ("--set", one)]
        command = [sys.executable, "-m", "endcast", "serve", str(bundle), "--port", "0", *options]
        started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        self.call("GET", "/readyz")
        self.start_s = time.monotonic() - started

    def call(self, method: str, path: str, body: object = None, accepted: Sequence[int] = (200,)) -> bytes:
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status not in accepted:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return text

    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        lines = self.call("GET", "/metrics").decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name in BOUNDED}

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def one_round(server: Server, number: int, rng: np.random.Generator) -> None:
    """512 landmarks, 16 outcomes, one stream."""
    lengths = rng.lognormal(5.0, 1.0, REQUESTS).astype(int) + 1
    asked: list[dict[str, Any]] = [
        {
            "request_id": f"r{number}-{i}",
            "model": f"m{rng.integers(MODELS)}",
            "tenant": f"t{rng.integers(TENANTS)}",
            "session": f"s{number}-{i}",
            "prompt_tokens": int(rng.integers(1, 4_000)),
            "parameters": {"max_tokens": 4_096},
        }
        for i in range(REQUESTS)
    ]
    server.call(
        "POST", "/v1/forecasts", {"requests": [{**one, "generated_tokens": age} for age in AGES for one in asked]}
    )
    told = [{"request_id": asked[i]["request_id"], "output_tokens": int(lengths[i])} for i in range(0, REQUESTS, 4)]
    server.call("POST", "/v1/outcomes", {"outcomes": told})
    opened = {"request": {"prompt_tokens": 9, "prompt": "x" * 2_000}, "forecast": {}}
    stream = json.loads(server.call("POST", "/v1/streams", opened, accepted=(200, 429))).get("stream_id")
    if stream is not None:
        server.call("POST", f"/v1/streams/{stream}/append", {"text": "some text. " * 40, "generated_tokens": 120})
        if number % 4:
            server.call("POST", f"/v1/streams/{stream}/close", {"output_tokens": 130})


def report(server: Server, landmarks: int, cpu_s: float) -> str:
    bounded = ", ".join(f"{name.removeprefix('endcast_')} {value:,.0f}" for name, value in server.metrics().items())
    spent = f"{cpu_s / max(landmarks, 1) * 1e6:.0f} µs of CPU a landmark"
    return f"{landmarks:>12,} landmarks: {server.rss_mb():6.0f} MB resident, {spent}; {bounded}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--landmarks", type=int, default=3_000_000)
    parser.add_argument("--log", type=Path, help="where the outcome log goes; left out: a folder that is deleted")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    rng, each = np.random.default_rng(0), REQUESTS * len(AGES)
    rounds = -(-asked.landmarks // each)
    with tempfile.TemporaryDirectory() as folder:
        log = asked.log or Path(folder)
        server = Server(asked.bundle, log, asked.settings)
        print(f"ready after {server.start_s:.1f} s; {report(server, 0, 0.0)}", flush=True)
        began = server.cpu_s()
        for number in range(rounds):
            one_round(server, number, rng)
            if (number + 1) % max(rounds // 20, 1) == 0:
                print(report(server, (number + 1) * each, server.cpu_s() - began), flush=True)
        state = json.loads(server.call("GET", "/readyz"))["state_version"]
        server.kill()
        size = sum(path.stat().st_size for path in log.iterdir()) / 1e6
        again = Server(asked.bundle, log, asked.settings)
        known = json.loads(again.call("GET", "/readyz"))["state_version"]
        print(
            f"outcome log {size:.0f} MB; killed at state {state:,}; ready again after {again.start_s:.1f} s at {known:,}"
        )
        again.kill()


if __name__ == "__main__":
    main()
