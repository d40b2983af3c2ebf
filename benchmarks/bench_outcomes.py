"""What outcomes cost: CPU time of each step, and outcomes a second through the log.

    python benchmarks/bench_outcomes.py BUNDLE [--log FOLDER]

``FOLDER`` is made, and should lie on the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from endcast import Completion, Landmark, Request
from endcast.predictors.onnx_forecaster import OnnxForecaster, load_forecaster
from endcast.serving.outcomes.book import Book, BookLimits
from endcast.serving.outcomes.disk import Calls, DiskLog, Limits
from endcast.serving.outcomes.joining import joined, outcome_part
from endcast.serving.outcomes.ledger import Ledger, LedgerLimits
from endcast.serving.outcomes.lessons import Lessons
from endcast.serving.outcomes.live import Live
from endcast.serving.outcomes.record import RequestPart, encode_line
from endcast.serving.outcomes.schema import OutcomeTold
from endcast.serving.outcomes.waiting import Told

BATCH, BATCHES = 64, 16
LIMITS = LedgerLimits(scored_per_s=1e9)


def make_landmarks(seed: int) -> list[Landmark]:
    """New requests, as a gateway tells them."""
    rng = np.random.default_rng(seed)
    return [
        Landmark(
            request=Request(
                request_id=f"{seed}-{i}",
                arrival_s=1.7e9 + i,
                prompt_tokens=int(rng.integers(10, 4_000)),
                model="m",
                tenant=f"t{i % 5}",
                max_tokens=2_048,
                parameters={"max_tokens": 2_048, "temperature": 0.7},
            )
        )
        for i in range(BATCH)
    ]


def microseconds(work: Callable[[], object], each: int) -> float:
    """Median CPU time of five runs, for one of ``each``."""
    times = []
    for _ in range(5):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return float(np.median(times)) / each * 1e6


def measure_steps(forecaster: OnnxForecaster) -> dict[str, float]:
    """CPU microseconds of each step."""
    batches = [make_landmarks(seed) for seed in range(BATCHES)]
    made = [forecaster.forecast(batch) for batch in batches]
    lengths = np.random.default_rng(0).geometric(0.005, size=BATCH * BATCHES).tolist()
    live = Live(LIMITS.horizons, LIMITS.quantiles)
    live.serve(forecaster.bundle, forecaster.grid)

    def serve(ledger: Ledger) -> Ledger:
        for forecasts, batch in zip(made, batches, strict=True):
            ledger.served(forecasts, batch)
        return ledger

    full = serve(Ledger(LIMITS, time.time, time.monotonic))
    requests = [landmark.request for batch in batches for landmark in batch]
    found = [full.find(None, request.request_id) for request in requests]
    parts = [outcome_part(OutcomeTold(output_tokens=n), 0.0, texts=False) for n in lengths]
    pairs = [(part, one) for part, one in zip(parts, found, strict=True) if one is not None]
    records = [joined(part, one, live, LIMITS, 0.0, aborts=False) for part, one in pairs]
    completions = [Completion(request=r, output_tokens=n) for r, n in zip(requests, lengths, strict=True)]
    hazards = [one.hazards[0] for forecasts in made for one in forecasts if one.hazards is not None]
    forecaster.observe(completions[:128])  # from here on it recalibrates
    some = completions[:64]
    return {
        "forecast, a batch of 64": microseconds(lambda: [forecaster.forecast(batch) for batch in batches], BATCHES),
        "ledger, a batch of 64 new requests": microseconds(
            lambda: serve(Ledger(LIMITS, time.time, time.monotonic)), BATCHES
        ),
        "ledger, a batch of 64 running ones": microseconds(lambda: serve(full), BATCHES),
        "join an outcome": microseconds(
            lambda: [joined(part, one, live, LIMITS, 0.0, aborts=False) for part, one in pairs], len(pairs)
        ),
        "write its line": microseconds(lambda: [encode_line(record) for record in records], len(records)),
        "measure it": microseconds(lambda: deque(map(live.take, records), maxlen=0), len(records)),
        "learn from it": microseconds(
            lambda: forecaster.observe_served(some, list(hazards[:64]), [0] * len(some)), len(some)
        ),
        "learn from it, running the model (observe)": microseconds(lambda: forecaster.observe(some), len(some)),
        "make all figures": microseconds(live.figures, 1),
    }


def measure_log(folder: Path, group: int, groups: int) -> float:
    """Outcomes a second, durable, in calls of ``group`` one after the other."""
    log = DiskLog(folder, Limits(), Calls())
    log.begin(0)
    ledger, lessons = Ledger(LIMITS, time.time, time.monotonic), Lessons()
    book = Book(BookLimits(), ledger, Live((64,), (0.5,)), lessons, log, aborts=lambda: False)
    part = RequestPart(arrival=1.7e9, prompt_tokens=300, model="m", tenant="t")
    started = time.perf_counter()
    for g in range(groups):
        told = [Told(OutcomeTold(request_id=f"{group}-{g}-{i}", output_tokens=i), part) for i in range(group)]
        book.submit(told).result()
    took = time.perf_counter() - started
    book.close()
    return group * groups / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    for name, cost in measure_steps(load_forecaster(options.bundle)).items():
        print(f"{name:45} {cost:10.1f} µs CPU")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.log or Path(temporary) / "log"
        for group, groups in ((1, 200), (50, 40), (1_000, 5)):
            print(f"durable, calls of {group:5} outcomes {measure_log(folder, group, groups):14,.0f} outcomes/s")


if __name__ == "__main__":
    main()
