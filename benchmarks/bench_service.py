"""Speed of the forecast service: 64 landmarks a batch, whole curves, one server process.

    python benchmarks/bench_service.py [BUNDLE] [--seconds 5]

Without a bundle a forecaster of constant hazard answers, so what is measured is the service itself. First the work of
a call in one thread, without HTTP, and by way of the whole app, with the ledger of outcomes, but without a socket; then
batches a second over two kept-alive connections, as fast as they go; then latency at half that load.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from starlette.types import Message, Scope

from endcast import Forecaster
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.serving.app import create_app
from endcast.serving.bundles.holder import BundleHolder, Loaded
from endcast.serving.context import Context
from endcast.serving.forecasts.codec import Call, decode_call
from endcast.serving.forecasts.service import Made, Part, answer_of, forecast_together
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import YOUNG, listen, serve_until_stopped
from endcast.testing import ConstantHazardForecaster

LANDMARKS, BODIES = 64, 16
Cost = np.ndarray[Any, Any]
OUTPUT = "1. First of all, look at the question as it was asked. " * 8


def make_forecaster(bundle: Path | None) -> Forecaster:
    if bundle is None:
        return ConstantHazardForecaster(0.005)
    from endcast import load_forecaster

    return load_forecaster(bundle)


def make_body(seed: int = 0, count: int = LANDMARKS) -> bytes:
    """Running requests of different age and size."""
    rng = np.random.default_rng(seed)
    requests = [
        {
            "request_id": f"r{i}",
            "arrival": 1.7e9 + i,
            "model": "m",
            "tenant": f"t{i % 5}",
            "prompt_tokens": int(rng.integers(10, 4_000)),
            "parameters": {"max_tokens": 2_048, "temperature": 0.7},
            "generated_tokens": int(rng.integers(0, 500)),
            "output": OUTPUT,
        }
        for i in range(count)
    ]
    return json.dumps({"requests": requests, "curve": True}).encode()


def serve_in_process(bundle: Path | None, ready: Connection) -> None:
    with listen("127.0.0.1", 0) as listening:
        ready.send(listening.getsockname()[1])
        serve_until_stopped(create_app(Settings(), make_forecaster(bundle)), listening)


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def call(connection: http.client.HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/v1/forecasts", body)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {answer[:200]!r}")


def cpu_s(pid: int | None) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batches_a_second(port: int, bodies: Sequence[bytes], seconds: float) -> float:
    """Two clients, each one call after the other, so that the server always has one to work on."""

    def one_client(_: int) -> int:
        connection, count = connect(port), 0
        while time.perf_counter() - started < seconds:
            call(connection, bodies[count % len(bodies)])
            count += 1
        connection.close()
        return count

    with ThreadPoolExecutor(2) as clients:
        started = time.perf_counter()
        return sum(clients.map(one_client, range(2))) / seconds


def latencies_ms(
    connection: http.client.HTTPConnection, bodies: Sequence[bytes], rate: float, seconds: float
) -> np.ndarray[Any, Any]:
    """Milliseconds from when each call was due, with calls due at a constant ``rate`` a second."""
    out, started = [], time.perf_counter()
    for i in range(int(rate * seconds)):
        due = started + i / rate
        time.sleep(max(due - time.perf_counter(), 0.0))
        call(connection, bodies[i % len(bodies)])
        out.append(1e3 * (time.perf_counter() - due))
    return np.array(out)


def cost_ms(work: Callable[[bytes], object], bodies: Sequence[bytes], seconds: float) -> Cost:
    """Milliseconds of CPU that ``work`` takes for one of ``bodies``: the tenth percentile, which other processes on the
    machine disturb least, and the mean."""
    for body in bodies:
        work(body)
    took: list[float] = []
    while sum(took) < 1e3 * seconds:
        started = time.thread_time()
        work(bodies[len(took) % len(bodies)])
        took.append(1e3 * (time.thread_time() - started))
    return np.array([np.percentile(took, 10), np.mean(took)])


def without_http(bundle: Path | None, bodies: Sequence[bytes], seconds: float) -> None:
    """What a call costs, step by step: each figure is that of all steps up to it, less that of those before."""
    loaded = Loaded(make_forecaster(bundle))
    context = Context(Settings(), Metrics(), BundleHolder(loaded))

    def whole(body: bytes) -> bytes:
        call = decode_call(body, context.settings)
        (made,) = forecast_together([Part(call, 0, LANDMARKS)], loaded, context)
        assert isinstance(made, Made)
        return b"".join(answer_of([made], loaded.id, made.state_version))

    each = seconds / 4
    forecaster, steps = loaded.forecaster, {}
    calls = {body: decode_call(body, context.settings) for body in bodies}
    steps["decode"] = cost_ms(lambda body: decode_call(body, context.settings), bodies, each)
    forecast = cost_ms(lambda body: forecaster.forecast(calls[body].landmarks), bodies, each)
    if isinstance(forecaster, OnnxForecaster):
        steps |= inside(forecaster, calls, each)
        steps["curves, ids"] = forecast - steps["features"] - steps["model"]
    else:
        steps["forecast"] = forecast
    total = cost_ms(whole, bodies, each)
    steps["figures, encode"] = total - steps["decode"] - forecast
    sizes = f"{len(bodies[0])} bytes in, {len(whole(bodies[0]))} out"
    print(f"without HTTP: {total[0]:.2f} ms of CPU a batch at the least, {total[1]:.2f} in the mean ({sizes})")
    for name, (least, mean) in steps.items():
        print(f"  {name}: {least:.2f} ms, {least / total[0]:.0%}; mean {mean:.2f} ms")


def inside(forecaster: OnnxForecaster, calls: Mapping[bytes, Call], seconds: float) -> dict[str, Cost]:
    """The parts of a forecast."""
    requests = {body: [landmark.request for landmark in call.landmarks] for body, call in calls.items()}
    features = {body: forecaster._pipeline.features(of) for body, of in requests.items()}
    first = {
        body: forecaster._first(call.landmarks, range(len(call.landmarks)), len(call.landmarks))
        for body, call in calls.items()
    }
    return {
        "features": cost_ms(lambda body: forecaster._pipeline.features(requests[body]), list(calls), seconds),
        "model": cost_ms(lambda body: forecaster._graph.hazards(features[body], first[body]), list(calls), seconds),
    }


def through_the_app(bundle: Path | None, bodies: Sequence[bytes], seconds: float) -> None:
    """What a call costs from its head's end to the last byte handed to the server: no parsing of HTTP, no socket."""
    app = create_app(Settings(), make_forecaster(bundle))

    async def answered(body: bytes) -> int:
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[int] = []

        async def receive() -> Message:
            return left.pop()

        async def send(message: Message) -> None:
            sent.append(len(message.get("body", b"")))

        await app(scope_of(len(body)), receive, send)
        return sum(sent)

    async def measured() -> Cost:
        async with app.router.lifespan_context(app):
            took: list[float] = []
            for body in bodies:
                await answered(body)
            while sum(took) < 1e3 * seconds:
                started = time.thread_time()
                await answered(bodies[len(took) % len(bodies)])
                took.append(1e3 * (time.thread_time() - started))
        return np.array([np.percentile(took, 10), np.mean(took)])

    least, mean = asyncio.run(measured())
    print(f"through the app, without a socket: {least:.2f} ms of CPU a batch at the least, {mean:.2f} in the mean")


def scope_of(size: int) -> Scope:
    """What an ASGI server tells of a call with so many bytes."""
    headers = [(b"host", b"127.0.0.1"), (b"accept-encoding", b"identity"), (b"content-length", str(size).encode())]
    path = {"path": "/v1/forecasts", "raw_path": b"/v1/forecasts", "root_path": "", "query_string": b""}
    ends = {"scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    return (
        {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "headers": headers}
        | path
        | ends
    )


def over_http(bundle: Path | None, bodies: Sequence[bytes], seconds: float) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_in_process, args=(bundle, theirs))
    process.start()
    port = ours.recv()
    for body in bodies:
        call(connect(port), body)  # the first call is slower
    worked = cpu_s(process.pid)
    rate = batches_a_second(port, bodies, seconds)
    each = 1e3 * (cpu_s(process.pid) - worked) / (rate * seconds)
    connection = connect(port)
    late = latencies_ms(connection, bodies, rate / 2, seconds)
    p50, p99 = np.percentile(late, [50, 99])
    print(
        f"over HTTP: {each:.2f} ms of the server's CPU a batch, so at most {1e3 / each:.0f} batches a second and core"
    )
    print(f"on this machine now: {rate:.0f} batches a second; at half that load p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    print(beside_large_batches(port, connection))
    connection.close()
    process.terminate()
    process.join()


def beside_large_batches(port: int, connection: http.client.HTTPConnection) -> str:
    """How long ``/healthz`` takes while batches of 4,096 are worked on."""
    body, waits = make_body(count=4_096), []
    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(
            latencies_ms, connect(port), [body], rate=100.0, seconds=0.03
        )  # three, as fast as they go
        while not running.done():
            asked = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            waits.append(1e3 * (time.perf_counter() - asked))
            time.sleep(0.005)
        running.result()
    p50, p99 = np.percentile(waits, [50, 99])
    return f"/healthz beside batches of 4,096: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(waits):.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    bodies = [make_body(seed) for seed in range(BODIES)]
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)  # as in a server
    without_http(asked.bundle, bodies, asked.seconds)
    through_the_app(asked.bundle, bodies, asked.seconds)
    over_http(asked.bundle, bodies, asked.seconds)


if __name__ == "__main__":
    main()
