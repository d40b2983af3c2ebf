"""Real engines for tests, one set at a time, and the router in front of them as a process of its own.

Nothing here runs in ``make test``: it needs an environment with vLLM, which ``make test-engines`` sets up (``rig/setup.sh``) and names in
``ENDCAST_ENGINES``.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

MODEL, CONTEXT, SLOTS = "tiny", 4096, 8
#: Seconds that an engine may take to start, and that anything else may take, on a machine with other work.
STARTS_S, PATIENCE_S = 600.0, 120.0
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
#: Every set: the model, how many engines, and what they are told beside the common options.
SETS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "two": ("dense", 2, ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")),
    "small": ("dense", 1, ("--num-gpu-blocks-override", "40", "--block-size", "32", "--max-model-len", "1024")),
    "dense_ranks": ("dense", 1, ("--data-parallel-size", "2")),
    "lockstep_ranks": ("experts", 1, ("--data-parallel-size", "2", "--reasoning-parser", "qwen3")),
}


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait for ``condition``; ``AssertionError`` says ``what`` did not come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def samples(url: str) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of all that ``/metrics`` tells."""
    text = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).raise_for_status().text
    return [
        (sample.name, dict(sample.labels), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def total(url: str, name: str, **labels: str) -> float:
    """The sum over the samples of a metric that have these labels."""
    return sum(value for told, had, value in samples(url) if told == name and labels.items() <= had.items())


@dataclass
class Engine:
    """One vLLM process with its children."""

    home: pathlib.Path
    model: str
    options: Sequence[str]
    log: pathlib.Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin to start, at the old port if there was one; ``wait`` until it is up."""
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        command = [
            *(str(self.home / "bin" / "vllm"), "serve", str(self.home / "models" / self.model)),
            *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS), "--enforce-eager"),
            *self.options,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | _ENVIRONMENT, start_new_session=True
            )

    def wait(self) -> None:
        """Until it serves."""
        until(self._up, f"the engine starts; its log: {self.log}", STARTS_S)

    def _up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"the engine did not start: {self.log.read_text(errors='replace')[-20_000:]}")
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and its children; SIGKILL at once, or after half a minute of anything else."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def running(self) -> float:
        """Requests that it runs or queues."""
        return sum(self.by_rank().values())

    def by_rank(self) -> dict[int, float]:
        """The same of each of its ranks, all at one time."""
        counts: dict[int, float] = {}
        for name, labels, value in samples(self.url):
            if name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
                rank = int(labels["engine"])
                counts[rank] = counts.get(rank, 0.0) + value
        return counts

    def waiting(self) -> float:
        """Requests that it queues."""
        return total(self.url, "vllm:num_requests_waiting")

    def preemptions(self) -> float:
        """Requests that it ever preempted."""
        return total(self.url, "vllm:num_preemptions_total")

    def generated(self, rank: int) -> float:
        """Tokens that a rank has ever generated."""
        return total(self.url, "vllm:generation_tokens_total", engine=str(rank))


@dataclass
class Stage:
    """The engines that run at present: those of one set."""

    home: pathlib.Path
    logs: pathlib.Path
    name: str = ""
    engines: list[Engine] = field(default_factory=list)

    def show(self, name: str) -> list[Engine]:
        """The engines of the set; those of another are stopped first. One that a test stopped is started again."""
        model, count, options = SETS[name]
        if name != self.name:
            self.clear()
            self.name = name
            self.engines = [Engine(self.home, model, options, self.logs / f"{name}-{i}.log") for i in range(count)]
        for engine in self.engines:
            if engine.process is None:
                engine.start()
        for engine in self.engines:
            engine.wait()
        return self.engines

    def clear(self) -> None:
        """Stop them."""
        for engine in self.engines:
            engine.stop()
        self.name, self.engines = "", []


@dataclass
class Router:
    """``endcast route`` as a process."""

    url: str
    log: pathlib.Path
    process: subprocess.Popen[str]

    def total(self, name: str, **labels: str) -> float:
        """Of its own ``/metrics``; ``endcast_router_`` is left out of the name."""
        return total(self.url, f"endcast_router_{name}", **labels)

    def settled(self) -> None:
        """Its books are empty, and stay so when engines have been asked once more."""
        names = ("running", "waiting", "worker_running", "worker_kv_tokens")
        until(lambda: not any(self.total(name) for name in names), "the books are empty")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Shows one set of engines at a time."""
    told = os.environ.get("ENDCAST_ENGINES")
    if not told:
        pytest.skip("real engines are tested by `make test-engines`, which installs them")
    shown = Stage(pathlib.Path(told), tmp_path_factory.mktemp("engines"))
    yield shown
    shown.clear()


RouterMaker = Callable[..., AbstractContextManager[Router]]


@pytest.fixture
def router(tmp_path: pathlib.Path) -> RouterMaker:
    """``with router(urls, ranks=…, pool="…", more="…")``: it must start, end with exit code 0 and complain of nothing."""

    @contextmanager
    def make(urls: Sequence[str], *, ranks: int | None = None, pool: str = "", more: str = "") -> Iterator[Router]:
        behind = "" if ranks is None else f", ranks = {ranks}"
        workers = ", ".join(f'{{ url = "{url}"{behind} }}' for url in urls)
        file, log = tmp_path / "fleet.toml", tmp_path / "access.jsonl"
        health = "[health]\ninterval_s = 1\nreconcile_s = 0.5\n" if "[health]" not in more else ""
        file.write_text(
            f'{more}\n{health}[log]\npath = "{log}"\n'
            f"[[pools]]\nslots = {SLOTS}\ncontext_limit = {CONTEXT}\nworkers = [{workers}]\n{pool}\n"
        )
        command = [sys.executable, "-m", "endcast", "route", "--config", str(file), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stderr
            try:
                line = process.stdout.readline()
                found = re.search(r"http://\S+", line)
                assert found, (line, process.stderr.read())
                yield Router(found[0], log, process)
            finally:
                process.terminate()
                complaints = process.stderr.read()
            assert (process.wait(PATIENCE_S), complaints) == (0, "")

    return make


# ---- what engines say


@pytest.fixture
def said() -> Callable[[bytes], Any]:
    """Makes of a response, streamed or not, what can be compared."""
    return what_is_said


def what_is_said(body: bytes) -> Any:
    """All that a response says, without ids and times; of a stream the same, however its tokens came in events."""
    if not body.startswith(b"data: "):
        return _without_ids(httpx.Response(200, content=body).json())
    events = body.decode().removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]" and all(event.startswith("data: ") for event in events)
    answers: dict[int, dict[str, Any]] = {}
    others = []
    for event in events[:-1]:
        frame = _without_ids(httpx.Response(200, content=event[6:].encode()).json())
        choices = frame.pop("choices", None)
        if not choices:
            others.append(frame)
        for choice in choices or ():
            _add(answers.setdefault(choice.pop("index"), {}), choice)
        members = answers.setdefault(-1, {}).setdefault("members", {})
        members |= {name: value for name, value in frame.items() if name != "usage" or not choices}
        members["usage in events"] = members.get("usage in events", 0) + (choices is not None and "usage" in frame)
    answers[-1]["members"]["usage in events"] = answers[-1]["members"]["usage in events"] > 1
    return answers, others


def _add(whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Texts and lists grow, objects by member; of other values the last that is one stays."""
    for name, value in part.items():
        old = whole.get(name)
        if isinstance(value, dict):
            whole[name] = old if isinstance(old, dict) else {}
            _add(whole[name], value)
        elif name == "tool_calls":
            for call in value:
                _add(whole.setdefault(f"tool {call['index']}", {}), call)
        elif isinstance(value, str | list) and type(value) is type(old):
            whole[name] += value
        elif value is not None or name not in whole:
            whole[name] = value


def _without_ids(value: Any) -> Any:
    """The value without what differs from call to call."""
    if isinstance(value, dict):
        return {name: _without_ids(kept) for name, kept in value.items() if name not in ("id", "created")}
    return [_without_ids(kept) for kept in value] if isinstance(value, list) else value
