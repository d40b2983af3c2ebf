"""Memory that the curves of a whole log take while they are made and read again: held, or kept in a file.

    python benchmarks/bench_curve_room.py [--requests 300000] [--held]

Curves of 110 edges come in batches of 256, as from a forecaster, and are read in order of arrival, as by a simulation. What is
told is the program's own memory (Linux: ``RssAnon``) and what is resident in all, with pages of the file that the system
may drop whenever it needs the room (``VmRSS``).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from endcast.router.forecasts import Precomputed
from endcast.survival import NO_CAP, CurveTable, IntArray, SurvivalBatch
from endcast.training import curve_room

EDGES = np.unique(np.round(np.geomspace(1, 4000, 140)).astype(np.int64))
BATCH = 256


def resident(kind: str) -> int:
    """MiB."""
    found = re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) // 1024


def batches(requests: int) -> Iterator[tuple[IntArray, SurvivalBatch]]:
    rng, edges = np.random.default_rng(0), np.concatenate([np.zeros(1, dtype=np.int64), EDGES])
    for start in range(0, requests, BATCH):
        rows = np.arange(start, min(start + BATCH, requests))
        fall = np.cumsum(-0.05 * rng.random((len(rows), len(EDGES))), axis=1)
        table = CurveTable.from_log_survival(edges, np.concatenate([np.zeros((len(rows), 1)), fall], axis=1))
        here = np.arange(len(rows))
        yield rows, SurvivalBatch(table, here, np.zeros_like(here), np.full_like(here, NO_CAP), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--held", action="store_true", help="in memory, however much it is")
    chosen = parser.parse_args()
    if chosen.held:
        curve_room.IN_MEMORY = 1 << 60
    before, kept = resident("RssAnon"), curve_room.CurveRoom(chosen.requests)
    own, whole = before, 0
    for rows, batch in batches(chosen.requests):
        kept.put(rows, batch)
    source = Precomputed("curves", kept.batch())
    for start in range(0, chosen.requests, 64):
        rows = np.arange(start, min(start + 64, chosen.requests))
        source.curves(rows, np.zeros_like(rows)).survival_at(5)
        if start % 25_600 == 0:
            own, whole = max(own, resident("RssAnon")), max(whole, resident("VmRSS"))
    print(
        f"{chosen.requests:,} curves of {len(EDGES) + 1} edges: {own - before} MiB of its own, {whole} MiB resident in all"
    )


if __name__ == "__main__":
    main()
