"""Several processes on one socket: one bundle in all, the dead replaced, reloads everywhere or nowhere, a clean end."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVE = """
import sys
from pathlib import Path
from endcast.serving.launch import folder_context, serve_folder
from endcast.serving.processes.run import listen, url_of
from endcast.serving.operations.settings import Settings

if __name__ == "__main__":
    context = folder_context(Path(sys.argv[1]), Settings(processes=int(sys.argv[2]), watch_s=float(sys.argv[3])))
    with listen("127.0.0.1", 0) as listening:
        print(url_of(listening), flush=True)
        serve_folder(context, listening)
"""


class Served:
    """A service in processes of its own."""

    def __init__(self, folder: pathlib.Path, script: pathlib.Path, processes: int, watch_s: float) -> None:
        script.write_text(SERVE)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(processes), str(watch_s)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "it did not start"

    def get(self, path: str, method: str = "GET") -> httpx.Response:
        """One call over a connection of its own, so that any process may answer."""
        return httpx.request(method, f"{self.url}{path}", timeout=60)

    def post(self, path: str, body: Any) -> httpx.Response:
        """The same, with a body."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=60)

    def process_ids(self, calls: int = 12) -> set[int]:
        """Of the processes that answer."""
        return {self.get("/v1/status").json()["process"] for _ in range(calls)}

    def bundles(self, calls: int = 12) -> set[Any]:
        return {self.get("/v1/bundle").json()["bundle"] for _ in range(calls)}

    def children(self) -> list[int]:
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = [int(pid) for pid in tasks.split()]
        return [pid for pid in found if b"spawn_main" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.1)


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(folder: pathlib.Path, processes: int = 2, watch_s: float = 0.0) -> Served:
        started.append(Served(folder, tmp_path / "serve.py", processes, watch_s))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(20)
        assert one.process.stdout is not None
        one.process.stdout.close()


def replace_bundle(folder: pathlib.Path, by: pathlib.Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(by, folder)


@pytest.mark.slow
def test_processes_live_and_die_and_change_together(
    serve: Callable[..., Served], two_bundles: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(two_bundles[0], folder)
    served = serve(folder)
    eventually(lambda: len(served.children()) == 2)
    (first,) = served.bundles()

    replace_bundle(folder, two_bundles[1])
    (folder / "model.onnx").unlink()  # half copied
    refused = served.get("/v1/bundle/reload", "POST")
    assert refused.status_code == 409 and "model.onnx" in refused.json()["error"]["message"]
    assert served.bundles() == {first}

    dead = served.children()[0]
    os.kill(dead, signal.SIGKILL)  # comes back with what is served, not with the half of a bundle that lies there
    eventually(lambda: len(served.children()) == 2 and dead not in served.children())
    eventually(lambda: served.bundles() == {first})

    replace_bundle(folder, two_bundles[1])
    answer = served.get("/v1/bundle/reload", "POST")
    assert answer.status_code == 200 and answer.json()["changed"] and answer.json()["before"] == first
    second = answer.json()["bundle"]
    assert served.bundles() == {second}
    assert {served.get("/readyz").status_code for _ in range(8)} == {200}

    replace_bundle(folder, two_bundles[0])
    os.kill(served.process.pid, signal.SIGHUP)
    eventually(lambda: served.bundles() == {first})

    children = served.children()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(30) == 0
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.slow
def test_a_process_that_is_killed_during_a_reload_leaves_one_bundle_in_all(
    serve: Callable[..., Served], two_bundles: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(two_bundles[0], folder)
    served = serve(folder)
    eventually(lambda: len(served.process_ids()) == 2, 180.0)
    for turn, delay in enumerate((0.02, 0.2), 1):
        replace_bundle(folder, two_bundles[turn % 2])
        os.kill(served.process.pid, signal.SIGHUP)
        time.sleep(delay)
        os.kill(served.children()[0], signal.SIGKILL)
        eventually(lambda: len(served.process_ids()) == 2, 180.0)
        eventually(lambda: {served.get("/readyz").status_code for _ in range(8)} == {200})
        assert len(served.bundles()) == 1  # the new one or, where the dead one had not prepared it, still the old one
        served.get("/v1/bundle/reload", "POST")
        (now,) = served.bundles()
        assert now == (two_bundles[turn % 2] / "manifest.sha256").read_text().strip()


@pytest.mark.slow
def test_a_stream_is_reached_through_any_process_and_dies_with_its_own(
    serve: Callable[..., Served], two_bundles: tuple[pathlib.Path, pathlib.Path]
) -> None:
    served = serve(two_bundles[0])
    eventually(lambda: len(served.children()) == 2 and len(served.process_ids()) == 2)
    ask = {"request": {"prompt_tokens": 40}, "forecast": {"horizons": [64]}}
    opened = [served.post("/v1/streams", ask).json() for _ in range(12)]
    owners = {int(one["stream_id"].split("-")[1][1:]) for one in opened}
    assert owners == set(served.children())  # each process has opened some

    for one in opened:  # each call over a connection of its own: whoever takes it hands it on
        path = f"/v1/streams/{one['stream_id']}"
        for n in range(1, 4):
            told = served.post(f"{path}/append", {"text": "x", "generated_tokens": n, "forecast": {}}).json()
            assert told["generated_tokens"] == n and told["forecast"]["expected_remaining"] > 0
    assert served.post(f"/v1/streams/{opened[0]['stream_id']}/append", {"text": 1}).status_code == 422

    dead = served.children()[0]
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: len(served.children()) == 2 and dead not in served.children())
    for one in opened:
        lost = one["stream_id"].startswith(f"s-p{dead}-")
        path = f"/v1/streams/{one['stream_id']}"
        for expected in (404, 404) if lost else (200, 410):  # of the dead one nobody knows whether it was
            assert {served.post(f"{path}/close", {}).status_code} == {expected}


@pytest.mark.slow
def test_processes_end_when_their_supervisor_is_killed(
    serve: Callable[..., Served], two_bundles: tuple[pathlib.Path, pathlib.Path]
) -> None:
    served = serve(two_bundles[0])
    eventually(lambda: len(served.children()) == 2)
    served.bundles(2)
    children = served.children()
    served.process.kill()
    eventually(lambda: not any(alive(pid) for pid in children))


def alive(pid: int) -> bool:
    try:
        return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
