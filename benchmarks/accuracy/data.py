"""The public logs of the accuracy page, and how each is parted. Their files are not endcast's: the page names where they are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from endcast.datasets.read import read
from endcast.datasets.trace import NS_PER_S, Trace
from endcast.predictors.bundle import Bundle, read_bundle
from endcast.training.train import Settings, train

CONVERSATION = "AzureLLMInferenceTrace_conv.csv"
CODE = "AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl"
TEXT = "alpaca_eval_outputs.parquet"
#: Name on the page → file.
LOGS = {
    "Azure 2023 conversation": CONVERSATION,
    "Azure 2023 code": CODE,
    "Mooncake conversation": MOONCAKE,
    "AlpacaEval outputs": TEXT,
}
#: Last digits of the prompts of AlpacaEval that are tested on, and of those of the others that choices are made on.
TEST_DIGITS, VALIDATION_DIGITS = (0, 3, 7), (1, 5)
Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Parted:
    """One log: what may be trained on, and the part to be measured on. ``split`` as ``Settings`` and ``evaluate`` take it;
    ``population`` of the figures."""

    train: Trace
    test: Trace
    split: str
    population: str


def final(folder: Path, file: str) -> Parted:
    """For figures that are reported: the test part, looked at once."""
    trace = read(folder / file).trace
    if file != TEXT:
        return Parted(trace, trace, "last:0.3", "decode_steps")
    digit = np.array(trace.attribute("prompt_id")) % 10
    held = np.isin(digit, TEST_DIGITS)
    return Parted(trace.take(np.flatnonzero(~held)), trace.take(np.flatnonzero(held)), "all", "checkpoints")


def chosen_on(folder: Path, file: str) -> Parted:
    """For choices: the same inside the training part."""
    trace = read(folder / file).trace
    if file != TEXT:
        ours = trace.take(np.argsort(trace.arrival_ns, kind="stable")[: round(0.7 * len(trace))])
        return Parted(ours, ours, "last:0.3", "decode_steps")
    digit = np.array(trace.attribute("prompt_id")) % 10
    free = ~np.isin(digit, TEST_DIGITS)
    held = np.isin(digit, VALIDATION_DIGITS)
    models = np.array(trace.table.column("model").to_pylist())
    some = np.isin(models, np.unique(models)[::5])  # every fifth model's answers tell as much, in a fifth of the time
    return Parted(
        trace.take(np.flatnonzero(free & ~held)), trace.take(np.flatnonzero(held & some)), "all", "checkpoints"
    )


@contextmanager
def trained(parted: Parted, settings: Settings, tell: Tell) -> Iterator[tuple[Bundle, float]]:
    """A bundle in a folder that goes away, and the CPU seconds that training took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        made = train(parted.train, settings, Path(folder) / "bundle", tell=tell)
        yield read_bundle(made.path), time.process_time() - began


def answered_before(trace: Trace, seed: int) -> Trace:
    """Answers in a random order, each prompt being a tenant: each is forecast with the lengths of the answers to the same
    prompt that came before it. No router knows that much; it shows what a perfect reading of the prompt could give."""
    place = np.random.default_rng(seed).permutation(len(trace))
    table = trace.table
    columns = {
        "arrival_ns": pa.array(place * NS_PER_S),
        "finished_ns": pa.array(place * NS_PER_S + NS_PER_S // 2),
        "tenant": pa.array([f"prompt {number}" for number in trace.attribute("prompt_id")]),
    }
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    return Trace(table.take(pa.array(np.argsort(place))))
