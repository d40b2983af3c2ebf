"""Time and memory of training the default model on a synthetic log.

    python benchmarks/bench_training.py [--requests 100000] [--threads 1] [--model lightgbm]

The whole way from requests in memory to a bundle on disk: history is replayed for every request, a draw of them is
fitted. Peak memory is the process's own, the log included.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from endcast.datasets.synth import SynthSettings, synthesize
from endcast.training.train import Settings, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="lightgbm")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    begun = time.perf_counter()
    trace = synthesize(SynthSettings(requests=options.requests, seed=1)).trace
    made, made_cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(model=options.model, threads=options.threads)
        trained = train(trace, settings, Path(folder) / "bundle", tell=lambda text: print(f"  {text}", flush=True))
        seconds, cpu = time.perf_counter() - made, time.process_time() - made_cpu
        size = sum(file.stat().st_size for file in trained.path.iterdir())
    figures = {
        "requests": options.requests,
        "synthesis_s": round(made - begun, 1),
        "training_s": round(seconds, 1),
        "training_cpu_s": round(cpu, 1),
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "bundle_mib": round(size / 2**20, 2),
    }
    print(json.dumps(figures) if options.json else "\n".join(f"{name:>18}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
