"""Kill -9 in the middle of outcome writes: what was acknowledged is there, once, after the restart; and two processes that
share a log agree, whoever is told and whoever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from endcast.datasets.read import read
from endcast.serving.outcomes.disk import Calls, DiskLog, Limits
from endcast.serving.outcomes.record import decode_line

#: A process that writes outcomes as fast as it can, through the real thing, and says on stdout what is acknowledged.
WRITER = """
import sys
from pathlib import Path
from endcast.serving.outcomes.book import Book, BookLimits
from endcast.serving.outcomes.disk import Calls, DiskLog, Limits
from endcast.serving.outcomes.ledger import Ledger, LedgerLimits
from endcast.serving.outcomes.lessons import Lessons
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import RequestPart
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.serving.outcomes.waiting import Told
import time

folder, name, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = DiskLog(folder, Limits(segment_bytes=20_000, keep_bytes=None), Calls())
log.begin(10**9)
limits = LedgerLimits()
book = Book(BookLimits(), Ledger(limits, time.time, time.monotonic), Live((16,), (0.5,)), Lessons(), log, aborts=lambda: False)
book.replay()
book.start()
print("ready", flush=True)
n = first
while True:
    group = [
        Told(OutcomeTold(request_id=f"{name}-{i}", output_tokens=i + 1), RequestPart(arrival=1.7e9 + i, prompt_tokens=i))
        for i in range(n, n + 7)
    ]
    assert book.submit(group).result() == ["accepted"] * 7
    n += 7
    print(n, flush=True)
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def writer(folder: Path, name: str, first: int, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def acknowledged(process: subprocess.Popen[str], first: int) -> int:
    """Kill it, and read to the end what it had said."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    said = [line for line in process.stdout.read().split("\n") if line.strip().isdecimal()]
    process.wait()
    process.stdout.close()
    return int(said[-1]) if said else first


def names(folder: Path) -> Iterator[str]:
    log = DiskLog(folder, Limits(), Calls())
    log.begin(10**9)
    while lines := log.follow():
        for line in lines:
            yield decode_line(line).key
    log.close()


@pytest.mark.slow
def test_killed_again_and_again_nothing_acknowledged_is_lost(tmp_path: Path, environment: dict[str, str]) -> None:
    rng, told = random.Random(4), {"a": 0, "b": 0}
    for _ in range(2):
        running = {name: writer(tmp_path, name, told[name], environment) for name in told}
        for process in running.values():
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.1, 0.4))
        told = {name: acknowledged(process, told[name]) for name, process in running.items()}
        with (tmp_path / "outcomes-99999999.jsonl.tmp").open("w") as file:
            file.write("no segment")  # what lies beside is left alone
        found = list(names(tmp_path))
        assert len(found) == len(set(found))
        missing = {f"r:{name}-{i}" for name, n in told.items() for i in range(n)} - set(found)
        assert not missing
        # what was on its way may be there as well; whoever told it tells it again, and goes on behind it
        told = {name: max((int(key.split("-")[1]) + 1 for key in found if key[2] == name), default=0) for name in told}
    assert min(told.values()) > 0
    rows = read(tmp_path).trace
    assert sorted(rows.table["request_id"].to_pylist()) == sorted(
        f"r:{n}-{i}" for n, m in told.items() for i in range(m)
    )


@pytest.mark.slow
def test_the_service_is_killed_and_started_again(tmp_path: Path, environment: dict[str, str]) -> None:
    """``endcast serve`` itself: an outcome that was answered is known after kill -9, and feeds the state."""
    import urllib.request

    program = (
        "import sys; from pathlib import Path\n"
        "from endcast.serving.app import create_app\nfrom endcast.serving.operations.settings import Settings\n"
        "from endcast.serving.processes.run import listen, serve_until_stopped, url_of\n"
        "from endcast.testing import ConstantHazardForecaster\n"
        "with listen('127.0.0.1', 0) as s:\n"
        "    print(url_of(s), flush=True)\n"
        "    serve_until_stopped(create_app(Settings(outcome_log=Path(sys.argv[1])), ConstantHazardForecaster()), s)\n"
    )

    def call(url: str, path: str, body: object = None) -> dict[str, object]:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{url}{path}", data, timeout=20) as answer:
            told: dict[str, object] = json.load(answer)
            return told

    def started() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    outcomes = {"outcomes": [{"request_id": f"r{i}", "output_tokens": 5} for i in range(20)]}
    process, url = started()
    call(url, "/v1/forecasts", {"requests": [{"request_id": f"r{i}", "prompt_tokens": 1} for i in range(20)]})
    assert call(url, "/v1/outcomes", outcomes)["accepted"] == 20
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process, url = started()
    assert call(url, "/readyz")["state_version"] == 20
    assert call(url, "/v1/outcomes", outcomes)["duplicate"] == 20
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
