"""CPU time of forecasts of running requests: moved on by a token, and made anew as their text grows.

    python benchmarks/bench_forecasts.py [BUNDLE] [--log OUTPUTS.parquet] [--json]

Without a bundle a small one is trained on a made-up log; ``--log`` names a Parquet file with a column ``output``. First
4,096 forecasts are moved on by one token, alone and with the figures that are read then. Then outputs grow by 32 tokens of
four characters, told one by one, after which each is forecast anew (chance to end within 80 tokens): one stream alone,
64 and 4,096 due at once. Times are medians over rounds, of this thread's CPU, in microseconds; the split of one
stream's cost is measured around the parts, so it holds their own share only. Beside each stands the slow, obvious way,
and how far its answers lie from the fast ones: a product over single tokens, and whole texts read from their beginning.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pyarrow.parquet

from endcast import Landmark, Request
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.predictors import landmarks, output_model
from endcast.predictors.bundle import read_bundle
from endcast.predictors.landmarks import Conditioned, FurtherGrid
from endcast.predictors.onnx_forecaster import OnnxForecaster
from endcast.predictors.onnx_stream import OnnxStream
from endcast.predictors.text.output_reader import OutputReader
from endcast.survival import SurvivalBatch

TOKENS, CHARACTERS, HORIZON, RUNNING = 32, 4, 80, 4096
SIZES = (1, 64, RUNNING)
#: How often each is measured, of the largest number of streams fewer times; rounds in a row of one stream alone.
ROUNDS, FEW, ALONE = 320, 5, 20
#: Shorter outputs say nothing of what a running request costs.
SHORTEST = 600


def train_small(folder: Path) -> Path:
    """A bundle that reads outputs, trained on a made-up log."""
    from endcast.training.train import Settings, train

    log = synthesize(SynthSettings(requests=1_500, seed=0, text=True, hours=100.0))
    train(log.trace, Settings(model="lightgbm", intervals=32, options={"rounds": 100}), folder / "bundle")
    return folder / "bundle"


def outputs_of(log: Path | None, seed: int) -> list[str]:
    """Outputs long enough, of a log or made up."""
    if log is None:
        trace = synthesize(SynthSettings(requests=2_000, seed=seed + 1, text=True, hours=10.0)).trace
        column: Any = trace.table.column("output")
    else:
        column = pyarrow.parquet.read_table(log, columns=["output"])["output"]
    texts = [text for text in column.to_pylist() if text and len(text) >= SHORTEST]
    return random.Random(seed).sample(texts, min(len(texts), RUNNING))


@dataclass
class Growing:
    """A stream and the text that it is being told."""

    stream: OnnxStream
    text: str
    tokens: int = 0

    def next_pieces(self, tokens: int = TOKENS) -> list[tuple[str, int]]:
        """So many tokens more, and how many there are then; a text that is at its end begins again."""
        size = len(self.text) - CHARACTERS
        starts = [token * CHARACTERS % size for token in range(self.tokens, self.tokens + tokens)]
        self.tokens += tokens
        return [(self.text[at : at + CHARACTERS], self.tokens - tokens + i) for i, at in enumerate(starts, 1)]

    def grow(self, tokens: int = TOKENS) -> None:
        """Tell the stream so many tokens more, one by one."""
        for piece, count in self.next_pieces(tokens):
            self.stream.append(piece, count)

    def so_far(self) -> str:
        """All that it has been told."""
        size = len(self.text) - CHARACTERS
        starts = (token * CHARACTERS % size for token in range(self.tokens))
        return "".join(self.text[at : at + CHARACTERS] for at in starts)

    def landmark(self) -> Landmark:
        """The same as a whole text."""
        return Landmark(request=self.stream.request, generated_tokens=self.tokens, output=self.so_far())


def opened(forecaster: OnnxForecaster, texts: Sequence[str], count: int, seed: int) -> list[Growing]:
    """Streams at different places of their outputs."""
    draw = random.Random(seed)
    growing = []
    for i in range(count):
        request = Request(request_id=f"r{i}", prompt=f"Tell me {i % 64} things.", prompt_tokens=12, model=f"m{i % 8}")
        one = Growing(forecaster.open(request), texts[i % len(texts)])
        one.grow(draw.randint(8, 256))
        growing.append(one)
    return growing


def median_us(seconds: Sequence[float]) -> float:
    return float(np.median(seconds)) * 1e6


@dataclass
class Split:
    """CPU time of the parts of a forecast, by name."""

    graph: type  #: of what evaluates the output's graph
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this, calls of the parts are timed."""
        parts: list[tuple[str, Any, str]] = [
            ("features of the text", OutputReader, "features"),
            ("last words", output_model, "tail_grams"),
            ("last words", output_model, "add_up"),
            ("graph", self.graph, "hazards"),
            ("curves", landmarks, "condition_rows"),
            ("curves", Conditioned, "logits"),
            ("curves", FurtherGrid, "curves"),
            ("figures", SurvivalBatch, "p_end"),
        ]
        kept = [(owner, name, vars(owner)[name]) for _, owner, name in parts]
        try:
            for (part, owner, name), (_, _, act) in zip(parts, kept, strict=True):
                setattr(
                    owner, name, property(self._timing(part, act.func)) if name == "p_end" else self._timing(part, act)
                )
            yield
        finally:
            for owner, name, act in kept:
                setattr(owner, name, act)

    def _timing(self, part: str, act: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            began = thread_time()
            try:
                return act(*args)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + thread_time() - began

        return call


def p_end_by_hand(batch: SurvivalBatch, i: int) -> tuple[float, float]:
    """Chance to end within the horizon and tokens until then, token by token."""
    survival, within = 1.0, 0.0
    table, edges = batch.table, batch.table.edges
    curve = table.log_survival[batch.row[i]]
    for h in range(batch.horizon):
        within += survival if h < batch.cap[i] else 0.0
        token = batch.position[i] + h
        k = int(np.searchsorted(edges, token, side="right")) - 1
        inside = k < len(edges) - 1
        log = (curve[k + 1] - curve[k]) / (edges[k + 1] - edges[k]) if inside else table.log_tail[batch.row[i]]
        survival *= np.exp(log)
    return 1.0 - (survival if batch.horizon < batch.cap[i] else 0.0), within


def measure_advance(forecaster: OnnxForecaster, growing: Sequence[Growing]) -> dict[str, float]:
    """4,096 forecasts, each step one token on."""
    batch = forecaster.forecast_batch([one.stream for one in growing], HORIZON)
    batch.expected_within  # the table's own sums are made once  # noqa: B018
    alone, read = [], []
    for _ in range(ROUNDS):
        began = thread_time()
        batch = batch.advance(1)
        moved = thread_time()
        batch.p_end, batch.expected_within  # noqa: B018
        alone.append(moved - began)
        read.append(thread_time() - began)
    sample = range(0, len(batch), 64)
    began = thread_time()
    by_hand = np.array([p_end_by_hand(batch, i) for i in sample])
    slow = (thread_time() - began) / len(by_hand) * len(batch)
    fast = np.stack([batch.p_end, batch.expected_within], axis=1)[list(sample)]
    return {
        "advance_4096_us": median_us(alone),
        "advance_4096_and_read_us": median_us(read),
        "advance_4096_by_hand_us": slow * 1e6,
        "advance_difference": float(np.abs(fast - by_hand).max()),
    }


def due_at(growing: list[Growing], size: int, i: int) -> list[Growing]:
    """Who is due in round ``i``: others each time, but one alone goes on for a while, as it would."""
    first = i // ALONE if size == 1 else i * size
    return [growing[(first + j) % len(growing)] for j in range(size)]


def measure_streams(forecaster: OnnxForecaster, growing: list[Growing], size: int) -> dict[str, float]:
    """``size`` streams, each 32 tokens on, forecast together; all figures for one stream."""
    tell, ask = [], []
    for i in range(ROUNDS if size < RUNNING else FEW):
        due = due_at(growing, size, i)
        streams, pieces = [one.stream for one in due], [one.next_pieces() for one in due]
        began = thread_time()
        for stream, new in zip(streams, pieces, strict=True):
            for piece, count in new:
                stream.append(piece, count)
        told = thread_time()
        forecaster.forecast_batch(streams, HORIZON).p_end  # noqa: B018
        ask.append((thread_time() - told) / size)
        tell.append((told - began) / size)
    both = [a + b for a, b in zip(tell, ask, strict=True)]
    name = f"streams_{size}"
    return {f"{name}_us": median_us(both), f"{name}_append_us": median_us(tell), f"{name}_forecast_us": median_us(ask)}


def measure_split(forecaster: OnnxForecaster, growing: list[Growing], size: int) -> dict[str, float]:
    """Where the time of a forecast goes, mean of some rounds, for one stream of ``size`` due at once."""
    assert forecaster._output is not None
    split, rounds, whole = Split(type(forecaster._output._graph)), max(ROUNDS // size, 4), 0.0
    for i in range(rounds):
        due = due_at(growing, size, i)
        for one in due:
            one.grow()
        streams = [one.stream for one in due]
        with split.watching():
            began = thread_time()
            forecaster.forecast_batch(streams, HORIZON).p_end  # noqa: B018
            whole += thread_time() - began
    seconds = {**split.seconds, "the rest": whole - sum(split.seconds.values())}
    return {f"split_{size}: {part}": value / rounds / size * 1e6 for part, value in seconds.items()}


def compare(forecaster: OnnxForecaster, growing: list[Growing]) -> dict[str, float]:
    """The slow way: each text from its beginning, one landmark a call."""
    chosen = growing[:64]
    fast = forecaster.forecast_batch([one.stream for one in chosen], HORIZON).p_end
    landmarks = [one.landmark() for one in chosen]
    slow, seconds = [], []
    for landmark in landmarks:
        began = thread_time()
        slow.append(float(forecaster.forecast_batch([landmark], HORIZON).p_end[0]))
        seconds.append(thread_time() - began)
    return {"whole_text_us": median_us(seconds), "whole_text_difference": float(np.abs(fast - slow).max())}


def measure(bundle: Path, texts: Sequence[str], seed: int) -> dict[str, float]:
    """The figures, by name."""
    forecaster = OnnxForecaster(read_bundle(bundle))
    growing = opened(forecaster, texts, RUNNING, seed)
    figures: dict[str, float] = {}
    for size in SIZES:
        figures |= measure_streams(forecaster, growing, size)
    for size in (1, 64):
        figures |= measure_split(forecaster, growing, size)
    return figures | compare(forecaster, growing) | measure_advance(forecaster, growing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    texts = outputs_of(asked.log, asked.seed)
    with nullcontext() if asked.bundle else tempfile.TemporaryDirectory() as folder:
        figures = measure(asked.bundle or train_small(Path(str(folder))), texts, asked.seed)
    if asked.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:>42}: {value:.3g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
