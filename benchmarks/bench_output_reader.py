"""Time and memory of reading outputs as they are written: chunks of some 32 tokens, features after each.

    python benchmarks/bench_output_reader.py [--log OUTPUTS.parquet] [--characters 128] [--outputs 200]

``--log`` names a Parquet file with a column ``output``; without it made-up answers of prose and lists are read. Times
are the least of some repeats, in microseconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet

from endcast.predictors.text.output_reader import COLUMNS, OutputReader

REPEATS = 5


def made_up(outputs: int, seed: int) -> list[str]:
    """Answers of a few paragraphs and a list each."""
    draw = random.Random(seed)
    words = [
        "".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) + ("," if draw.random() < 0.1 else "")
        for _ in range(2000)
    ]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(4, 24))).capitalize() + ". "

    def answer() -> str:
        parts = ["".join(sentence() for _ in range(draw.randint(1, 6))) for _ in range(draw.randint(1, 4))]
        items = "\n".join(f"{number}. **{draw.choice(words)}**: {sentence()}" for number in range(1, draw.randint(1, 9)))
        return "\n\n".join([parts[0], items, *parts[1:]])

    return [answer() for _ in range(outputs)]


def logged(path: Path, outputs: int, seed: int) -> list[str]:
    """Outputs drawn from a log."""
    column = pyarrow.parquet.read_table(path, columns=["output"])["output"]
    chosen = random.Random(seed).sample(range(len(column)), min(outputs, len(column)))
    return [column[index].as_py() or "" for index in chosen]


def cpu_us(work: Callable[[], int]) -> float:
    """CPU time of one unit of ``work``, which says how many it did."""
    best = float("inf")
    for _ in range(REPEATS):
        begun = time.process_time()
        units = work()
        best = min(best, (time.process_time() - begun) / max(units, 1))
    return best * 1e6


def measure(texts: list[str], characters: int) -> dict[str, float]:
    """The figures, by name."""
    chunked = [[text[at : at + characters] for at in range(0, len(text), characters)] for text in texts]
    tokens = [[text[at : at + 4] for at in range(0, len(text), 4)] for text in texts]

    def read(all_chunks: list[list[str]], features: bool) -> int:
        for chunks in all_chunks:
            reader = OutputReader()
            for chunk in chunks:
                reader.append(chunk)
                if features:
                    reader.features()
        return sum(map(len, all_chunks))

    line = "x" * 200_000

    def read_line() -> int:
        OutputReader().append(line)
        return 1

    tracemalloc.start()
    reader = OutputReader()
    for text in texts:
        reader.append(text)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "columns": len(COLUMNS),
        "chunks": sum(map(len, chunked)),
        "append_us": cpu_us(lambda: read(chunked, False)),
        "append_and_features_us": cpu_us(lambda: read(chunked, True)),
        "append_4_characters_us": cpu_us(lambda: read(tokens, False)),
        "line_of_200000_ms": cpu_us(read_line) / 1e3,
        "memory_kib": kept / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--characters", type=int, default=128)
    parser.add_argument("--outputs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = logged(options.log, options.outputs, options.seed) if options.log else made_up(options.outputs, options.seed)
    figures = {name: round(value, 2) for name, value in measure(texts, options.characters).items()}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:>24}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
