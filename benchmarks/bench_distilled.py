"""Is the distilled student good enough to be the default? Student and teacher on the validation parts of all logs.

    python benchmarks/bench_distilled.py DATA [--logs "Azure 2023 conversation,Mooncake conversation"]

The rule (docs/decisions/0005-distilled-is-a-choice.md): within .01 Brier skill at every horizon, and curves at least 10 times as fast.
Both are trained with at most 300,000 person-period rows; cost is CPU time of the graph, one thread, batches of 64.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.accuracy.data import LOGS, chosen_on, trained
from benchmarks.accuracy.families import cost
from benchmarks.accuracy.measure import measured

from endcast.training.train import Settings

ROWS = 300_000


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description="Student and teacher on validation parts.")
    parser.add_argument("data", type=Path, help="folder with the public logs")
    parser.add_argument("--logs", default=",".join(LOGS), help="with commas")
    parser.add_argument(
        "--outputs", action="store_true", help="with the model that reads outputs, where a log has them"
    )
    given = parser.parse_args()
    for name in given.logs.split(","):
        parted = chosen_on(given.data, LOGS[name])
        for family in ("lightgbm", "distilled"):
            settings = Settings(
                model=family, split=parted.split, most_rows=ROWS, read_outputs=given.outputs, device="cpu"
            )
            with trained(parted, settings, tell) as (bundle, seconds):
                evaluation = measured(parted, bundle)
                found = {
                    "log": name,
                    "model": family,
                    "skill": {horizon: round(one.brier_skill, 4) for horizon, one in evaluation.horizons.items()},
                    "us": round(cost(bundle.admission), 2),
                    "output_us": None if bundle.output is None else round(cost(bundle.output), 2),
                    "training_cpu_s": round(seconds),
                }
            print(json.dumps(found), flush=True)


def tell(text: str) -> None:
    """To the terminal."""
    print(text, file=sys.stderr, flush=True)


main()
