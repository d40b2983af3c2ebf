"""Splits are disjoint, keep groups whole, and let nobody learn from the future."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.datasets.read import read
from endcast.datasets.splits import Split, by_group, by_hash, by_prompt, by_session, by_time
from endcast.datasets.synth import SynthSettings, synthesize
from endcast.datasets.trace import Trace
from endcast.errors import InputError, TraceError


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthesize(SynthSettings(requests=1500, seed=5, text=True, hours=1.0)).trace


def check(split: Split, rows: int) -> None:
    both = np.concatenate([split.train, split.test])
    assert len(np.unique(both)) == len(both) == rows - split.dropped
    assert (np.diff(split.train) > 0).all()
    assert (np.diff(split.test) > 0).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.95])
def test_by_time_nothing_in_training_is_unfinished_at_the_cut(trace: Trace, share: float) -> None:
    split = by_time(trace, share)
    check(split, len(trace))
    assert split.cut_ns is not None
    assert trace.arrival_ns[split.train].max() < split.cut_ns <= trace.arrival_ns[split.test].min()
    cut_s = (split.cut_ns - trace.arrival_ns.min()) / 1e9
    assert trace.finished_s[split.train].max() <= cut_s
    gone = np.setdiff1d(np.arange(len(trace)), np.concatenate([split.train, split.test]))
    assert len(gone) == split.dropped > 0
    assert (trace.finished_s[gone] > cut_s).all()
    assert (len(split.train) + split.dropped) / len(trace) == pytest.approx(share, abs=1 / len(trace))


def test_by_time_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = [(0, 1), (1, 9), (2, 4), (4, 5), (5, 6)]  # arrival, finish
    path.write_text("arrival_s,finished_s,output_tokens\n" + "".join(f"{a},{f},1\n" for a, f in rows))
    split = by_time(read(path).trace, 0.6)
    assert (split.train.tolist(), split.test.tolist(), split.dropped) == ([0, 2], [3, 4], 1)
    assert split.cut_ns == 4 * 10**9


def test_requests_of_one_instant_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("arrival_s,finished_s,output_tokens\n0,1,1\n5,6,1\n5,6,2\n5,6,3\n")
    split = by_time(read(path).trace, 0.75)
    assert (split.train.tolist(), split.test.tolist()) == ([0], [1, 2, 3])


@pytest.mark.parametrize("seed", [0, 1])
def test_by_session_no_session_is_on_both_sides(trace: Trace, seed: int) -> None:
    split = by_session(trace, 0.3, seed)
    check(split, len(trace))
    sessions = np.array(trace.table.column("session").to_pylist(), dtype=object)
    told = {s for s in sessions[split.train] if s is not None}
    assert told.isdisjoint(s for s in sessions[split.test] if s is not None)
    assert len(split.test) / len(trace) == pytest.approx(0.3, abs=0.06)


def test_by_prompt_no_prompt_is_on_both_sides(trace: Trace) -> None:
    split = by_prompt(trace, 0.4)
    check(split, len(trace))
    texts = [p or m for p, m in zip(*(trace.table.column(n).to_pylist() for n in ("prompt", "messages")), strict=True)]
    assert {texts[i] for i in split.train}.isdisjoint(texts[i] for i in split.test)


def test_by_group_takes_just_what_is_named() -> None:
    split = by_group(np.array([1, 13, 3, 20, 7]) % 10, test={0, 3, 7})
    assert (split.train.tolist(), split.test.tolist()) == ([0], [1, 2, 3, 4])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcdefghijkl"), min_size=40, max_size=80), st.integers(0, 5))
def test_a_group_keeps_its_side_when_the_log_grows(groups: list[str], seed: int) -> None:
    groups = [*groups, *"abcdefghijkl"]
    whole, part = by_hash(groups, 0.5, seed), by_hash(groups[20:], 0.5, seed)
    assert set((part.test + 20).tolist()) == {i for i in whole.test.tolist() if i >= 20}


def test_seeds_give_different_splits() -> None:
    groups = [str(i) for i in range(200)]
    assert by_hash(groups, 0.5, 0).test.tolist() != by_hash(groups, 0.5, 1).test.tolist()
    assert by_hash(groups, 0.5, 0).test.tolist() == by_hash(groups, 0.5, 0).test.tolist()


def test_impossible_splits_are_refused(trace: Trace, tmp_path: Path) -> None:
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            by_time(trace, share)
    with pytest.raises(TraceError, match="no request to the train part"):
        by_time(trace.take(np.array([0])), 0.5)
    with pytest.raises(TraceError, match="no request to the test part"):
        by_group(["a", "a"], test=["b"])
    path = tmp_path / "log"
    path.write_text("output_tokens\n3\n4\n")
    plain = read(path).trace
    with pytest.raises(TraceError, match="no prompts to split by"):
        by_prompt(plain)
    with pytest.raises(TraceError, match="no arrival times"):
        by_time(plain)
