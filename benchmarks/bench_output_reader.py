"""Time and memory of reading outputs as they are written: chunks of some 32 tokens, features after each.

    python benchmarks/bench_output_reader.py [--log OUTPUTS.parquet] [--characters 128] [--outputs 200]

``--log`` names a Parquet file with a column ``output``; without it made-up answers of prose and lists are read. Times
are in microseconds a chunk, for each output the least of some repeats.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from pathlib import Path

import pyarrow.parquet

from endcast.predictors.text.output_reader import COLUMNS, OutputReader

REPEATS = 20


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
        items = "\n".join(
            f"{number}. **{draw.choice(words)}**: {sentence()}" for number in range(1, draw.randint(1, 9))
        )
        return "\n\n".join([parts[0], items, *parts[1:]])

    return [answer() for _ in range(outputs)]


def logged(path: Path, outputs: int, seed: int) -> list[str]:
    """Outputs drawn from a log."""
    column = pyarrow.parquet.read_table(path, columns=["output"])["output"]
    chosen = random.Random(seed).sample(range(len(column)), min(outputs, len(column)))
    return [column[index].as_py() or "" for index in chosen]


def read(chunks: list[str], features: bool) -> None:
    """Read one output chunk by chunk, with features after each chunk if wanted."""
    reader = OutputReader()
    for chunk in chunks:
        reader.append(chunk)
        if features:
            reader.features()


def chunk_us(outputs: list[list[str]], features: bool) -> float:
    """Time of one chunk: for each output the least of ``REPEATS``, summed, over the number of chunks."""
    best = [float("inf")] * len(outputs)
    for _ in range(REPEATS):
        for index, chunks in enumerate(outputs):
            begun = time.perf_counter()
            read(chunks, features)
            best[index] = min(best[index], time.perf_counter() - begun)
    return sum(best) / max(sum(map(len, outputs)), 1) * 1e6


def kept_kib(text: str) -> float:
    """Memory that a reader of ``text`` keeps."""
    read([text], True)  # what is made once, such as compiled patterns, stays out of the count
    tracemalloc.start()
    reader = OutputReader()
    reader.append(text)
    reader.features()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept / 1024


def measure(texts: list[str], characters: int) -> dict[str, float]:
    """The figures, by name."""
    chunked = [[text[at : at + characters] for at in range(0, len(text), characters)] for text in texts]
    tokens = [[text[at : at + 4] for at in range(0, len(text), 4)] for text in texts]
    return {
        "columns": len(COLUMNS),
        "chunks": sum(map(len, chunked)),
        "append_us": chunk_us(chunked, False),
        "append_and_features_us": chunk_us(chunked, True),
        "append_4_characters_us": chunk_us(tokens, False),
        "line_of_200000_ms": chunk_us([["x" * 200_000]], False) / 1e3,
        "memory_kib": max(map(kept_kib, texts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--characters", type=int, default=128)
    parser.add_argument("--outputs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = (
        logged(options.log, options.outputs, options.seed) if options.log else made_up(options.outputs, options.seed)
    )
    figures = {name: round(value, 2) for name, value in measure(texts, options.characters).items()}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:>24}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
