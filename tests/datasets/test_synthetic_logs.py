"""The synthetic log: its hazards are the ones it says, its parts fit together, and a seed makes it again."""

from __future__ import annotations

import numpy as np
import pytest

from endcast.datasets.describe import describe
from endcast.datasets.synth import SynthLog, SynthSettings, session_starts, synthesize
from endcast.datasets.synth_apps import APPS, CONTEXT_LIMIT, KIND_INDEX
from endcast.datasets.trace import UNKNOWN
from endcast.errors import InputError

TEXTS = ["prompt", "messages", "output"]


@pytest.fixture(scope="module")
def log() -> SynthLog:
    return synthesize(SynthSettings(requests=30_000, seed=3))


@pytest.fixture(scope="module")
def texts() -> SynthLog:
    return synthesize(SynthSettings(requests=2_000, seed=3, text=True))


def test_the_same_seed_makes_the_same_log_and_another_seed_another() -> None:
    one, again, other = (synthesize(SynthSettings(requests=500, seed=s, text=True)) for s in (1, 1, 2))
    assert one.trace.digest == again.trace.digest != other.trace.digest
    assert (one.truth.scale == again.truth.scale).all()


def test_texts_change_no_number(texts: SynthLog) -> None:
    plain = synthesize(SynthSettings(requests=2_000, seed=3))
    assert plain.trace.table.drop(TEXTS).equals(texts.trace.table.drop(TEXTS))
    assert all(plain.trace.table.column(name).null_count == 2_000 for name in TEXTS)


def test_hazards_are_recovered_from_the_censored_log(log: SynthLog) -> None:
    """Ends seen in a window of lengths, against the sum of the true hazards of those at risk: the difference is a
    martingale with variance below that sum."""
    outputs, events = log.trace.output_tokens, log.trace.is_event
    for first, last in [(1, 8), (9, 32), (33, 100), (101, 300), (301, 1000)]:
        seen = int((events & (outputs >= first) & (outputs <= last)).sum())
        expected = 0.0
        for t in range(first, last + 1):
            at_risk = np.flatnonzero(outputs >= t)
            expected += float(log.truth.take(at_risk).hazard(np.array([t])).sum())
        assert seen == pytest.approx(expected, abs=4 * np.sqrt(expected))
        assert seen > 300


@pytest.mark.parametrize("kind", list(KIND_INDEX))
def test_natural_lengths_follow_the_survival_function_of_each_kind(log: SynthLog, kind: str) -> None:
    rows = np.flatnonzero(log.truth.kind == KIND_INDEX[kind])
    truth = log.truth.take(rows)
    marks = np.array([1, 5, 20, 80, 300, 1000])
    expected = truth.survival(marks).mean(axis=0)
    seen = (truth.natural_tokens[:, None] > marks).mean(axis=0)
    assert seen == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(len(rows)))
    assert truth.survival(np.array([0]))[:, 0] == pytest.approx(1.0)


def test_aborts_have_a_constant_hazard_in_the_stated_apps(log: SynthLog) -> None:
    outputs, aborted = log.trace.output_tokens, log.trace.end == "abort"
    apps = np.array(log.trace.attribute("app"))
    for app in APPS:
        of_app = apps == app.name
        exposure = float(outputs[of_app & (outputs > 0)].sum())  # tokens survived
        aborts = int((aborted & of_app).sum())
        assert aborts == pytest.approx(app.abort_rate * exposure, abs=4 * np.sqrt(app.abort_rate * exposure))
        assert (log.truth.abort_rate[of_app] == app.abort_rate).all()


def test_outputs_are_natural_lengths_but_for_what_cut_them(log: SynthLog) -> None:
    trace, natural = log.trace, log.truth.natural_tokens
    stop, cut = trace.is_event, trace.end == "length"
    assert (trace.output_tokens[stop] == natural[stop]).all()
    assert (trace.output_tokens[cut] == trace.cap[cut]).all()
    assert (natural[cut] > trace.cap[cut]).all()
    assert (trace.output_tokens <= trace.cap).all()
    assert (trace.output_tokens[trace.end == "error"] == 0).all()
    shares = {reason: (trace.end == reason).mean() for reason in ("stop", "length", "abort", "error")}
    assert 0.75 < shares["stop"] < 0.95
    assert all(share > 0.001 for share in shares.values())


def test_the_end_of_the_log_leaves_requests_unfinished() -> None:
    trace = synthesize(SynthSettings(requests=20_000, seed=3, hours=0.5)).trace
    unfinished = trace.end == "unfinished"
    assert unfinished.sum() > 5
    assert trace.table.column("finished_ns").null_count == unfinished.sum()
    assert (trace.finished_s[~unfinished] <= trace.arrival_s.max() + 1.001).all()


def test_tails_are_heavy(log: SynthLog) -> None:
    described = describe(log.trace)
    assert described.longest_tenth > 0.35
    assert described.output_tokens.most > 20 * described.output_tokens.percentiles["50"]


def test_prompts_grow_by_the_turns_before(log: SynthLog) -> None:
    """But where the context would overflow: there the history is cut off."""
    columns = log.trace.table.select(["session", "prompt_tokens", "output_tokens", "prefix_blocks"])
    last: dict[str, tuple[int, list[int]]] = {}
    grown = cut = 0
    for session, prompt, output, blocks in zip(*(column.to_pylist() for column in columns.columns), strict=True):
        said, before = last.get(session, (0, []))
        if session is not None and before:
            if said < CONTEXT_LIMIT // 4 or (prompt >= said + 24 and blocks[: len(before)] == before):
                assert prompt >= said + 24
                assert blocks[: len(before)] == before
                grown += 1
            else:
                assert prompt < said + CONTEXT_LIMIT // 4
                cut += 1
        last[session] = (prompt + output, blocks[: prompt // 512])
    assert grown > 10_000
    assert 0 < cut < grown / 10


@pytest.mark.parametrize("tokens", [16, 512])
def test_blocks_cover_the_prompt_and_the_system_prompt_is_shared(tokens: int) -> None:
    trace = synthesize(SynthSettings(requests=800, seed=1, block_tokens=tokens)).trace
    blocks = trace.table.column("prefix_blocks").to_pylist()
    assert [len(ids) for ids in blocks] == (-(-trace.prompt_tokens // tokens)).tolist()
    tenants = trace.table.column("tenant").to_pylist()
    system = {app.name: app.system_tokens // tokens for app in APPS}
    first: dict[str, list[int]] = {}
    for tenant, ids in zip(tenants, blocks, strict=True):
        shared = ids[: system[tenant.rpartition("-")[0]]]
        assert first.setdefault(tenant, shared) == shared
    own = [ids[-1] for ids, prompt in zip(blocks, trace.prompt_tokens, strict=True) if prompt % tokens]
    assert len(set(own)) == len(own)


def test_sessions_come_in_bursts_with_a_daily_rhythm() -> None:
    starts = session_starts(200_000, 86_400.0, np.random.default_rng(0))
    assert (np.diff(starts) >= 0).all()
    assert 0 <= starts[0] <= starts[-1] < 86_400
    hourly = np.histogram(starts, bins=24, range=(0, 86_400))[0]
    assert hourly[11:13].min() > 2.5 * hourly[[0, 23]].max()
    gaps = np.diff(starts[np.abs(starts - 43_200) < 3_600])
    assert gaps.std() / gaps.mean() == pytest.approx(np.sqrt(2), rel=0.1)


def test_one_token_is_one_word_and_cut_answers_are_prefixes(texts: SynthLog) -> None:
    table = texts.trace.table
    languages = {name: list(app.languages) for app in APPS for name in [app.name]}
    for row, natural in zip(table.to_pylist(), texts.truth.natural_tokens.tolist(), strict=True):
        app = row["tenant"].rpartition("-")[0]
        if "zh" not in languages[app]:
            assert len(row["output"].split()) == row["output_tokens"], (row, natural)
        assert (row["output"] == "") == (row["output_tokens"] == 0)
        assert (row["prompt"] is None) != (row["messages"] is None)


def test_the_prompt_says_how_many_and_the_output_counts_up_to_it(texts: SynthLog) -> None:
    lists = np.flatnonzero((texts.truth.kind == KIND_INDEX["list"]) & texts.trace.is_event)
    found = 0
    for i in lists.tolist():
        row = texts.trace.table.slice(i, 1).to_pylist()[0]
        asked = int(texts.truth.asked[i])
        assert str(asked) in (row["prompt"] or row["messages"])
        items = [line for line in row["output"].split("\n") if line.partition(".")[0].isdecimal()]
        if row["output_tokens"] >= asked:
            assert [int(line.partition(".")[0]) for line in items] == list(range(1, asked + 1))
            found += 1
    assert found > 50


def test_closing_phrases_and_fences_come_at_the_end(texts: SynthLog) -> None:
    trace = texts.trace
    outputs = trace.table.column("output").to_pylist()
    kinds = texts.truth.kind
    long = trace.is_event & (trace.output_tokens > 60)
    code = np.flatnonzero(long & (kinds == KIND_INDEX["code"]))
    assert all(outputs[i].count("```") == 2 for i in code)
    cut = np.flatnonzero(
        ~trace.is_event & (trace.output_tokens < texts.truth.natural_tokens * 0.7) & (kinds == KIND_INDEX["code"])
    )
    assert all(outputs[i].count("```") == 1 for i in cut if trace.output_tokens[i] > 1)
    assert len(code) > 50
    assert len(cut) > 5


def test_what_nobody_can_make_is_refused() -> None:
    for wrong in (
        {"requests": 0},
        {"requests": 5, "hours": 0},
        {"requests": 5, "seed": -1},
        {"requests": 5, "block_tokens": 0},
    ):
        with pytest.raises(InputError, match="must"):
            SynthSettings(**wrong)  # type: ignore[arg-type]
    assert len(synthesize(SynthSettings(requests=1)).trace) == 1


def test_prompts_fit_the_context(log: SynthLog) -> None:
    assert (log.trace.prompt_tokens < CONTEXT_LIMIT).all()
    assert (log.trace.cap != UNKNOWN).all()
