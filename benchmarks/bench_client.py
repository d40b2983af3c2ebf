"""What a router pays for forecasts over loopback: ``RemoteForecaster`` with whole curves, one service process.

    python benchmarks/bench_client.py [--seconds 3]

A forecaster of constant hazard answers, so what is measured is the way there and back: encoding, HTTP, decoding, arrays.
``cpu_ms`` is this process's own part of a call.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np

from endcast import Landmark, Request
from endcast.client import Client, Options, RemoteForecaster


def serve(link: Connection) -> None:
    from endcast.serving.app import create_app
    from endcast.serving.operations.settings import Settings
    from endcast.serving.processes.run import listen, serve_until_stopped, url_of
    from endcast.testing import ConstantHazardForecaster

    with listen("127.0.0.1", 0) as listening:
        link.send(url_of(listening))
        serve_until_stopped(create_app(Settings(), ConstantHazardForecaster(0.005)), listening)


def landmarks_of(count: int) -> list[Landmark]:
    return [
        Landmark(request=Request(request_id=f"r{i}", prompt_tokens=100 + i, max_tokens=2_048), generated_tokens=i)
        for i in range(count)
    ]


def measure(remote: RemoteForecaster, count: int, seconds: float) -> None:
    """Print one line for batches of ``count``."""
    landmarks = landmarks_of(count)
    remote.forecast_batch(landmarks, 80)
    times: list[float] = []
    until, cpu = time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < until:
        began = time.perf_counter()
        _ = remote.forecast_batch(landmarks, 80).p_end
        times.append(time.perf_counter() - began)
    cpu_ms = (time.process_time() - cpu) / len(times) * 1e3
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e3
    print(f"{count:5} landmarks: p50 {p50:.2f} ms, p99 {p99:.2f} ms, cpu_ms {cpu_ms:.2f}, {len(times)} calls")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    with Client(ours.recv(), Options(timeout_s=30.0)) as client:
        remote = RemoteForecaster(client)
        for count in (1, 64, 512):
            measure(remote, count, seconds)
        assert remote.degraded_forecasts == 0
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
