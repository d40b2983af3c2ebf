"""Descriptions, against counts that can be made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from endcast.datasets.describe import Description, describe
from endcast.datasets.read import read

Describe = Callable[[str], Description]


@pytest.fixture
def described(tmp_path: Path) -> Describe:
    def _described(text: str) -> Description:
        path = tmp_path / "log"
        path.write_text(text)
        return describe(read(path).trace)

    return _described


def test_a_small_log_by_hand(described: Describe) -> None:
    d = described(
        "arrival_s,prompt_tokens,output_tokens,end,max_tokens,model,tenant,session\n"
        "1700000000,10,1,stop,,a,t,s\n"
        "1700000002.5,20,3,length,3,b,t,s\n"
        "1700000004,,8,stop,10,b,t,u\n"
        "1700000010,30,0,error,,b,t,\n"
    )
    assert (d.requests, d.first_arrival, d.last_arrival) == (4, "2023-11-14T22:13:20Z", "2023-11-14T22:13:30Z")
    assert (d.span_s, d.requests_per_s) == (10.0, 0.4)
    assert (d.total_prompt_tokens, d.total_output_tokens) == (60, 12)
    assert d.prompt_tokens is not None
    assert (d.prompt_tokens.count, d.prompt_tokens.mean, d.prompt_tokens.percentiles["50"]) == (3, 20.0, 20.0)
    assert (d.output_tokens.least, d.output_tokens.most, d.output_tokens.mean) == (0, 8, 3)
    assert d.inter_arrival_s is not None
    assert (d.inter_arrival_s.count, d.inter_arrival_s.least, d.inter_arrival_s.most) == (3, 1.5, 6.0)
    assert d.ends == {"stop": 2, "length": 1, "abort": 0, "error": 1, "unfinished": 0}
    assert (d.censored, d.zero_outputs, d.caps_known, d.at_cap) == (0.5, 1, 0.5, 1)
    assert (d.models, d.tenants, d.sessions) == (2, 1, 2)
    assert d.turns is not None
    assert (d.turns.mean, d.turns.most) == (1.5, 2)
    assert d.longest_tenth == pytest.approx(8 / 12)
    assert d.prefixes is None
    assert d.with_text == {"prompt": 0.0, "messages": 0.0, "output": 0.0}
    assert "1 requests tell no prompt_tokens" in d.oddities
    assert "nothing arrives for 6 s, 60% of the log" in d.oddities


def test_a_relative_clock_and_none_at_all(described: Describe) -> None:
    assert described("arrival_s,output_tokens\n1.5,3\n1.5,4\n").first_arrival == "1.500 s"
    assert "all requests arrive at one instant" in described("arrival_s,output_tokens\n1.5,3\n1.5,4\n").oddities
    timeless = described("output_tokens\n3\n")
    assert timeless.first_arrival is None
    assert timeless.span_s is None
    assert timeless.requests_per_s is None
    assert timeless.inter_arrival_s is None


def test_an_unrecorded_cap_is_found_and_a_known_one_is_no_oddity(described: Describe) -> None:
    lengths = [*range(1, 200), *[256] * 40, *range(300, 320)]
    d = described("output_tokens\n" + "".join(f"{n}\n" for n in lengths))
    assert [(m.output_tokens, m.requests, m.known_cap) for m in d.point_masses] == [(256, 40, False)]
    assert d.point_masses[0].share == pytest.approx(40 / 60)
    assert any("exactly 256 tokens" in oddity for oddity in d.oddities)
    known = described("output_tokens,max_tokens\n" + "".join(f"{n},{256 if n == 256 else ''}\n" for n in lengths))
    assert [m.known_cap for m in known.point_masses] == [True]
    assert not any("256" in oddity for oddity in known.oddities)


def test_a_frequent_length_among_others_is_no_cap(described: Describe) -> None:
    lengths = [n for n in range(1, 60) for _ in range(25)]
    assert described("output_tokens\n" + "".join(f"{n}\n" for n in lengths)).point_masses == ()


def test_prefix_reuse_by_hand(described: Describe) -> None:
    rows = [(0, [1, 2, 3]), (1, [1, 2, 9]), (2, [7, 2]), (3, []), (4, [1, 2, 9, 4])]
    d = described(
        "".join(f'{{"timestamp": {t}, "input_length": 1, "output_length": 1, "hash_ids": {ids}}}\n' for t, ids in rows)
    )
    assert d.prefixes is not None
    assert (d.prefixes.requests_with_blocks, d.prefixes.blocks, d.prefixes.requests) == (4, 12, 2)
    assert d.prefixes.reused == pytest.approx(5 / 12)  # 1 2 | none: 7 was not seen | 1 2 9


def test_what_a_model_cannot_learn_from_is_said(described: Describe) -> None:
    assert any("ended by itself: a model" in o for o in described("output_tokens,end\n3,length\n").oddities)
    assert any("every answer counts as" in o for o in described("output_tokens\n3\n").oddities)
