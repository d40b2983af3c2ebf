"""The real logs, row by row count: Azure 2023, Mooncake, AlpacaEval."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from endcast.datasets.describe import describe
from endcast.datasets.read import convert, read
from endcast.datasets.splits import by_group, by_prompt
from endcast.datasets.trace import Trace

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def log(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the log {name} is not beside the repository")
    return path


@pytest.mark.parametrize(
    ("name", "format", "rows", "prompt_tokens", "output_tokens"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 22_361_870, 4_088_665),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8_819, 18_059_974, 245_896),
        ("mooncake_conversation_trace.jsonl", "mooncake", 12_031, 144_793_823, 4_122_048),
        ("alpaca_eval_outputs.parquet", "generic", 49_595, 1_718_176, 16_199_674),
    ],
)
def test_every_row_is_read(
    tmp_path: Path, name: str, format: str, rows: int, prompt_tokens: int, output_tokens: int
) -> None:
    reading = read(log(name))
    assert reading.report.format == format
    assert reading.report.rows_read == reading.report.rows_kept == len(reading.trace) == rows
    assert reading.trace.prompt_tokens.sum() == prompt_tokens
    assert reading.trace.output_tokens.sum() == output_tokens
    convert(log(name), tmp_path / "out.parquet")
    assert read(tmp_path / "out.parquet").trace.digest == reading.trace.digest


def test_azure_times_are_exact() -> None:
    trace = read(log("AzureLLMInferenceTrace_conv.csv")).trace
    assert trace.arrival_ns[0] == 1_700_158_546_680_590_000
    assert trace.arrival_ns[-1] == 1_700_162_048_402_527_000
    lines = trace.table.column("request_id").to_pylist()
    assert (lines[0], lines[-1]) == ("2", "19367")


def test_mooncake_keeps_its_blocks_and_its_one_equal_row() -> None:
    reading = read(log("mooncake_conversation_trace.jsonl"))
    blocks = reading.trace.table.column("prefix_blocks").to_pylist()
    assert [len(ids) for ids in blocks] == (-(-reading.trace.prompt_tokens // 512)).tolist()
    assert [lines.count for lines in reading.report.repaired.values()] == [1]
    described = describe(reading.trace)
    assert described.prefixes is not None
    assert described.prefixes.blocks == 288_500
    assert [mass.output_tokens for mass in described.point_masses] == [2000]


@pytest.fixture(scope="module")
def alpaca() -> Trace:
    return read(log("alpaca_eval_outputs.parquet")).trace


def test_alpaca_splits_by_its_prompt_ids(alpaca: Trace) -> None:
    ids = np.array(alpaca.attribute("prompt_id"))
    assert len(np.unique(ids)) == 620
    split = by_group(ids % 10, test={0, 3, 7})
    assert len(split.train) + len(split.test) == 49_595
    assert set(ids[split.test] % 10) == {0, 3, 7}
    by_text = by_prompt(alpaca)
    assert set(ids[by_text.train]).isdisjoint(ids[by_text.test])


def test_alpaca_has_one_empty_answer(alpaca: Trace) -> None:
    zero = np.flatnonzero(alpaca.output_tokens == 0)
    assert alpaca.table.column("output")[int(zero[0])].as_py() == ""
    assert (len(zero), alpaca.end[zero[0]]) == (1, "stop")
    assert set(alpaca.attribute("source")) == {"helpful_base", "koala", "oasst", "selfinstruct", "vicuna"}
