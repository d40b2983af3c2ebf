"""Earlier turns of a session, by its name and by its prefix blocks, on conversations made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast import Completion, EndReason, Request
from endcast.predictors.features import earlier_turn
from endcast.predictors.features.earlier_turn import SHARED_PREFIX, EarlierTurn, prefix_keys
from endcast.predictors.grid import IntervalGrid

GRID = IntervalGrid(np.array([0, 2, 5, 10]), np.log1p(-0.1) * np.arange(11))
NAN = math.nan


def turn(
    tokens: int,
    session: str | None = None,
    blocks: tuple[int, ...] = (),
    *,
    prompt_tokens: int | None = None,
    finished_s: float | None = None,
    end: EndReason = EndReason.STOP,
) -> Completion:
    request = Request(request_id="r", session=session, prefix_blocks=blocks, prompt_tokens=prompt_tokens)
    return Completion(request=request, output_tokens=tokens, end=end, finished_s=finished_s)


def after(*turns: Completion) -> EarlierTurn:
    group = EarlierTurn(GRID)
    for completion in turns:
        group.observe(completion)
    return group


def told(group: EarlierTurn, **asked: object) -> dict[str, float]:
    """The group's columns for one request, by name."""
    request = Request(request_id="asked", **asked)  # type: ignore[arg-type]
    (row,) = group.transform(group.collect([request])).values
    return dict(zip(group.columns, row.tolist(), strict=True))


def last(group: EarlierTurn, **asked: object) -> int | None:
    """Output tokens of the earlier turn found, ``None`` if none is."""
    log = told(group, **asked)["last_log"]
    return None if math.isnan(log) else round(math.exp(log))


def test_two_turns_of_a_named_session() -> None:
    group = after(
        turn(40, "s", prompt_tokens=100, finished_s=10.0),
        turn(999, "other", finished_s=11.0),
        turn(10, "s", prompt_tokens=180, finished_s=20.0),
    )
    logs = np.log([40, 10])
    assert told(group, session="s", arrival_s=29.0, prompt_tokens=250) == pytest.approx(
        {
            "last_log": logs[1],
            "log_idle_s": math.log(10),  # 9 s since the end
            "log_new_tokens": math.log(61),  # 250 − 180 − 10 new in the prompt
            "turns": 2,
            "mean_log": logs.mean(),
            "most_log": logs[0],
            "least_log": logs[1],
            "previous_log": logs[0],
        },
        rel=1e-5,
    )


def test_what_is_not_known_of_a_turn_stays_unknown() -> None:
    found = told(after(turn(40, "s")), session="s")
    assert math.isnan(found["log_idle_s"]) and math.isnan(found["log_new_tokens"])
    assert math.isnan(found["previous_log"]) and found["turns"] == 1
    assert math.isnan(told(after(turn(40, "s", finished_s=3.0)), session="s")["log_idle_s"])


def test_a_prompt_that_shrank_and_a_clock_that_went_back() -> None:
    group = after(turn(40, "s", prompt_tokens=100, finished_s=50.0))
    found = told(group, session="s", arrival_s=20.0, prompt_tokens=30)
    assert found["log_idle_s"] == 0.0 and found["log_new_tokens"] == pytest.approx(-math.log(111))


def test_each_interval_is_set_against_the_earlier_lengths() -> None:
    group = after(turn(40, "s"), turn(10, "s"))
    columns = group.transform(group.collect([Request(request_id="a", session="s"), Request(request_id="b")]))
    middle = np.log(np.array([1.0, 3.5, 7.5]) + 0.5)[:, None]
    lengths = np.log([10.0, 20.0, 40.0, 10.0, 40.0])[None, :]  # last, mean, most, least, previous
    np.testing.assert_allclose(columns.intervals[0], middle - lengths, rtol=1e-5)
    assert np.isnan(columns.intervals[1]).all()


def test_a_named_session_needs_no_blocks_and_heeds_none() -> None:
    group = after(turn(40, "s", (1, 2, 3)), turn(70, None, (1, 2, 3)))
    assert last(group, session="s") == 40
    assert last(group, session="new", prefix_blocks=(1, 2, 3, 4)) is None
    assert last(group, prefix_blocks=(1, 2, 3, 4)) == 70


def test_the_last_block_of_a_turn_was_filled_by_its_answer() -> None:
    """The turn's blocks but for the last lead those of the next turn."""
    group = after(turn(40, None, (1, 2, 3)))
    assert last(group, prefix_blocks=(1, 2, 9, 10)) == 40
    assert last(group, prefix_blocks=(1, 2)) == 40
    assert last(group, prefix_blocks=(1, 9, 3)) is None
    assert last(group, prefix_blocks=(2, 1, 3)) is None
    assert last(group, prefix_blocks=()) is None


def test_the_longest_prefix_is_the_earlier_turn() -> None:
    group = after(turn(10, None, (1, 2, 3)), turn(20, None, (1, 2, 4, 5, 6)), turn(30, None, (1, 8, 9)))
    assert last(group, prefix_blocks=(1, 2, 4, 5, 7, 8)) == 20
    assert last(group, prefix_blocks=(1, 2, 4, 8)) == 10
    assert last(group, prefix_blocks=(1, 8, 7)) == 30


def test_turns_by_blocks_make_a_session() -> None:
    group = after(turn(10, None, (1, 2, 3)), turn(20, None, (1, 2, 4, 5)), turn(40, None, (1, 2, 4, 6, 7)))
    found = told(group, prefix_blocks=(1, 2, 4, 6, 8))
    assert found["turns"] == 3 and found["previous_log"] == pytest.approx(math.log(20))
    assert found["mean_log"] == pytest.approx(math.log(20), rel=1e-6)


def test_one_block_tells_nothing() -> None:
    assert after(turn(10, None, (1,))).dump() == []


def test_a_shared_system_prompt_is_no_turn() -> None:
    """Many single requests behind one prefix: nobody's earlier turn, however deep a turn lies below it."""
    group = EarlierTurn(GRID)
    for i in range(SHARED_PREFIX + 1):
        group.observe(turn(10 + i, None, (1, 2, 100 + i)))
        shared = i + 1 > SHARED_PREFIX
        assert (last(group, prefix_blocks=(1, 2, 99)) is None) == shared
    group.observe(turn(77, None, (1, 2, 100, 200)))
    assert last(group, prefix_blocks=(1, 2, 100, 201)) == 77
    assert last(group, prefix_blocks=(1, 2, 99)) is None


def test_a_named_session_may_have_any_number_of_turns() -> None:
    group = after(*(turn(5, "s") for _ in range(3 * SHARED_PREFIX)))
    assert told(group, session="s")["turns"] == 3 * SHARED_PREFIX


@pytest.mark.parametrize("end", [EndReason.ABORT, EndReason.ERROR, EndReason.UNFINISHED])
def test_only_whole_answers_are_turns(end: EndReason) -> None:
    group = after(turn(40, "s", end=end), turn(0, "t"))
    assert group.dump() == []
    group.observe(turn(3, "s", end=EndReason.LENGTH))
    assert last(group, session="s") == 3


@given(st.lists(st.integers(0, 6), max_size=40))
def test_only_so_many_turns_are_remembered(sessions: list[int]) -> None:
    """The oldest goes first; a session that spoke again is young."""
    slow: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(earlier_turn, "MOST_TURNS", 3)
        group = EarlierTurn(GRID)
        for session in sessions:
            group.observe(turn(session + 1, str(session)))
            slow = [*[s for s in slow if s != session], session][-3:]
        kept = [s for s in range(7) if last(group, session=str(s)) is not None]
        assert kept == sorted(slow)
        fresh = EarlierTurn(GRID)
        fresh.load(group.dump())
        assert fresh.dump() == group.dump()


BLOCKS = st.lists(st.integers(0, 3), max_size=5).map(tuple)


@settings(max_examples=200)
@given(st.lists(st.tuples(BLOCKS, st.integers(1, 500)), max_size=12), BLOCKS)
def test_prefix_search_against_a_slow_one(finished: list[tuple[tuple[int, ...], int]], asked: tuple[int, ...]) -> None:
    """The latest of the finished requests whose blocks but the last are the longest prefix of ours."""
    found = [
        (len(blocks) - 1, place, tokens)
        for place, (blocks, tokens) in enumerate(finished)
        if len(blocks) > 1 and blocks[:-1] == asked[: len(blocks) - 1]
    ]
    longest = max(found, default=None)
    same = [f for f in found if longest and f[0] == longest[0]]
    expected = None if longest is None or len(same) > SHARED_PREFIX else longest[2]
    assert last(after(*(turn(tokens, None, blocks) for blocks, tokens in finished)), prefix_blocks=asked) == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_prefix_keys_are_one_for_each_leading_part(blocks: list[int]) -> None:
    keys = prefix_keys(blocks)
    assert keys == [prefix_keys(blocks[: i + 1])[-1] for i in range(len(blocks))]
    assert all(0 <= key < 1 << 60 for key in keys)


def test_prefix_keys_hardly_ever_meet() -> None:
    rng = np.random.default_rng(0)
    keys = {prefix_keys(rng.integers(0, 50, size=6).tolist())[-1] for _ in range(20_000)}
    order = {prefix_keys([a, b])[-1] for a in range(100) for b in range(100)}
    assert len(keys) > 19_990 and len(order) == 10_000
