"""Admission rules: what they let start, the forecast peak against true sawteeth and against drawn ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.errors import InputError, SimulationError
from endcast.router.admission import ADMISSION_RULES, admission_rule
from endcast.router.admission.forecast_peak import ForecastPeak
from endcast.router.admission.gate import OPEN, Gate, fits, keep_for_oldest, take
from endcast.router.admission.optimistic import Optimistic
from endcast.router.admission.peak import LADDER, Curves, Peaks, add_to_peak, peaks_of, stays_below
from endcast.router.admission.reserve_cap import ReserveCap
from endcast.router.admission.rule import AdmissionRule
from endcast.router.book import ForecastBook
from endcast.router.cluster import ClusterState
from endcast.router.entries import FIELDS, PROMPT, REQUEST, ROW
from endcast.router.forecasts import NoForecast, Oracle, kaplan_meier
from endcast.router.policies.br_0 import BrZero
from endcast.router.policy import Decisions, PolicySettings
from endcast.router.simulator import SimulationSettings, simulate
from endcast.router.slots import Slots
from endcast.router.workload import Workload
from endcast.survival import NO_CAP, CurveTable, SurvivalBatch


def state_of(
    rule: AdmissionRule, running: list[int], waiting: list[int], *, capacity: int = 100, cap: list[int] | None = None,
    output: list[int] | None = None,
) -> ClusterState:  # fmt: skip
    """One worker of 8 slots on which prompts run; others wait. ``cap`` and ``output`` of all, those that run first."""
    state = ClusterState(
        slots=np.array([8]), capacity=np.array([capacity]), policy=BrZero(PolicySettings()),
        curves=NoForecast().shared, admission=rule,
    )  # fmt: skip
    prompts, count = running + waiting, len(running)
    caps = np.array(cap or [NO_CAP] * len(prompts))
    truth = Oracle(np.array(output or [1] * len(prompts)))
    for starts, part in ((True, slice(0, count)), (False, slice(count, len(prompts)))):
        rows = np.arange(len(prompts))[part]
        state.arrive(
            rows, np.array(prompts)[part], np.zeros(len(rows)), max_tokens=caps[part],
            forecasts=truth.curves(rows, np.zeros_like(rows)),
        )  # fmt: skip
        if starts:
            state._admission, rule_ = Optimistic(0.0), state._admission
            state.apply(Decisions(rows, np.zeros_like(rows)))
            state._admission = rule_
    return state


def started(state: ClusterState) -> list[int]:
    """Which of those that wait start, each asked for in order of arrival."""
    count = len(state.view().waiting)
    gate, kept = state.gate(), []
    for i in range(count):
        if fits(gate, 0, i):
            take(gate, 0, i)
            kept.append(i)
    return kept


def test_a_watermark_is_left_free_except_on_an_empty_worker() -> None:
    """50 run in 100 and use 51 in this step: 39 more, with the token that each makes, reach 90."""
    assert started(state_of(Optimistic(0.1), [50], [39, 38])) == [1]
    assert started(state_of(Optimistic(0.1), [50], [38, 0])) == [0]
    assert started(state_of(Optimistic(0.0), [50], [48])) == [0]
    assert started(state_of(Optimistic(0.0), [50], [49])) == []
    assert started(state_of(Optimistic(0.5), [], [99, 0])) == [0]
    assert started(state_of(Optimistic(0.5), [], [100])) == []


def test_caps_are_reserved() -> None:
    """30 + 20 are reserved for what runs: 50 are left for prompt and cap. Without one, the number given counts."""
    assert started(state_of(ReserveCap(), [30], [30, 29, 0], cap=[20, 21, 21, 1])) == [1]
    assert started(state_of(ReserveCap(20), [30], [31, 30], cap=[20, NO_CAP, NO_CAP])) == [1]
    assert started(state_of(ReserveCap(500), [], [30, 1])) == [0]  # reserves the whole worker, and no more
    state = state_of(ReserveCap(1), [30], [69, 68], capacity=100)  # 31 reserved, and 31 used in this step
    assert started(state) == [1]
    for _ in range(3):  # what runs longer than was assumed reserves what it uses: 30 + 3 + 1
        state.stepped(np.ones(8, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert started(state) == []


def test_reserving_caps_needs_them() -> None:
    load = Workload.from_arrays(arrival_s=np.arange(3.0), prompt=np.ones(3, int), output=np.ones(3, int))
    fleet = SimulationSettings(workers=1, slots=2, kv_capacity=50, admission="reserve_cap")
    with pytest.raises(SimulationError, match=r"own cap, and 3 of 3 requests have none.*reserve_cap:2048"):
        simulate(load, fleet, policies=["br_0"])
    assert simulate(
        load, SimulationSettings(workers=1, slots=2, kv_capacity=50, admission="reserve_cap:9"), policies=["br_0"]
    )


def test_with_true_lengths_the_peak_is_the_true_one() -> None:
    """10 runs 5 more steps, 20 runs 30: they hold 15 + 25 = 40 at most before the first ends, and 50 before the second.
    Another 20 of 10 tokens would make 15 + 25 + 25, then 30 + 30 at its own end, and 50."""
    state = state_of(ForecastPeak(0.5), [10, 20], [20], capacity=65, output=[5, 30, 10])
    assert started(state) == [0]
    assert started(state_of(ForecastPeak(0.5), [10, 20], [20], capacity=64, output=[5, 30, 10])) == []


def peak_of(held: list[int], left: list[int]) -> int:
    """Most tokens ever held: step by step."""
    return max(
        sum(s + i + 1 for s, r in zip(held, left, strict=True) if r > i) for i in range(max(left))
    )  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 300)), min_size=2, max_size=8))
def test_sawteeth(requests: list[tuple[int, int]]) -> None:
    """Exact, whatever the lengths: what fits by one token fits, what lacks one does not, however it is taken in."""
    held, left = [h for h, _ in requests], [r for _, r in requests]
    peak = peak_of(held, left)
    for asked_before in (False, True):  # laid out before or after the others were taken in
        for capacity, fitting in ((peak, True), (peak - 1, False)):
            peaks, row = taken_in(held[:-1], left, asked_before)
            assert stays_below(peaks, 0, capacity, held[-1], 0, row) is fitting


def curves_of(left: list[int]) -> tuple[Curves, list[int]]:
    """Of requests that last so long, and their rows."""
    book = ForecastBook(Slots(np.array([8])), 0, NoForecast().shared)
    rows = np.arange(len(left))
    added = book.add(Oracle(np.array(left)).curves(rows, np.zeros_like(rows)), np.zeros_like(rows))
    return book.curves(), added.tolist()


def taken_in(held: list[int], left: list[int], asked_before: bool) -> tuple[Peaks, int]:
    """One worker of 8 slots on which the first runs and all others but the last start in this round; the last's row."""
    curves, row = curves_of(left)
    entries = np.full((FIELDS, 8), -1, dtype=np.int64)
    entries[REQUEST, 3], entries[PROMPT, 3], entries[ROW, 3] = 7, held[0], row[0]
    peaks = peaks_of(np.array([0, 8]), entries, np.zeros(8, dtype=np.int64), curves, 0.0)
    if asked_before:
        stays_below(peaks, 0, 1, 0, 0, row[-1])
    for i in range(1, len(held)):
        add_to_peak(peaks, 0, held[i], 0, row[i])
    return peaks, row[-1]


@pytest.mark.parametrize("z", [0.0, 0.8416, 1.6449])
def test_it_looks_where_it_says_and_sees_what_numpy_sees(z: float) -> None:
    """A worker that 20 requests run on and others join: mean and deviation at each step looked at, summed from scratch."""
    rng, count, running = np.random.default_rng(0), 40, 20
    output = np.minimum(rng.lognormal(4.0, 1.0, 500), 400).astype(np.int64) + 1
    source = kaplan_meier(output, output > 0)
    rows, found = np.arange(count), []
    for _ in range(20):
        prompt = np.maximum(rng.lognormal(5.0, 1.0, count), 1).astype(np.int64)
        made = np.where(rows < running, rng.integers(0, 200, count), 0)
        book = ForecastBook(Slots(np.array([count])), 0, source.shared)
        row = book.add(source.curves(rows, np.zeros_like(rows)), prompt)
        entries = np.full((FIELDS, count), -1, dtype=np.int64)
        entries[REQUEST, :running], entries[PROMPT], entries[ROW] = rows[:running], prompt, row
        peaks = peaks_of(np.array([0, count]), entries, made, book.curves(), z)
        capacity, inside = int((prompt + made + 1)[:running].sum() + rng.integers(0, 3000)), list(range(running))
        for j in range(running, count):
            together = np.array([*inside, j])
            batch = source.curves(together, made[together])
            ends = np.maximum(np.rint(batch.expected_remaining).astype(np.int64) - 1, 0)
            fitting = True
            for ahead in (*LADDER, *ends):
                p, held = batch.survival_at(int(ahead)), (prompt + made)[together] + ahead + 1.0
                quantile = held @ p + z * np.sqrt((held * held) @ (p * (1.0 - p)))
                fitting = fitting and min(quantile, held.sum()) <= capacity
            assert stays_below(peaks, 0, capacity, int(prompt[j]), 0, int(row[j])) == fitting
            if fitting:
                add_to_peak(peaks, 0, int(prompt[j]), 0, int(row[j]))
                inside.append(j)
            found.append(fitting)
    assert 0.05 < np.mean(found) < 0.95


def test_nothing_fits_beyond_twice_the_slots() -> None:
    """Exchanges count a request on both workers; what is counted has an end, for compiled code does not see one."""
    peaks, row = taken_in([5, 1], [3, 4], asked_before=True)
    counted = 1 + 1
    while stays_below(peaks, 0, 10**9, 1, 0, row):
        add_to_peak(peaks, 0, 1, 0, row)
        counted += 1
    assert counted == 2 * 8
    with pytest.raises(AssertionError):
        add_to_peak(peaks, 0, 1, 0, row)


def test_the_quantile_is_about_that_of_drawn_ends() -> None:
    """24 requests with a constant hazard of 1 in 100, small beside what they grow to. What they hold is drawn 20,000 times:
    at the limit at which the rule stops, too much is held about as often as it says, and at 100 tokens less more often."""
    rng, count = np.random.default_rng(0), 24
    table = CurveTable.from_log_survival(np.array([0, 100]), np.array([[0.0, 100 * np.log(0.99)]]))
    batch = SurvivalBatch(table, np.zeros(count, int), np.zeros(count, int), np.full(count, NO_CAP), 0)
    book = ForecastBook(Slots(np.array([count])), 0, levels=True)
    prompt = rng.integers(0, 60, count)
    row = book.add(batch, prompt)
    entries = np.zeros((FIELDS, count), dtype=np.int64)
    entries[PROMPT, :-1], entries[ROW, :-1], entries[REQUEST, -1] = prompt[:-1], row[:-1], -1
    drawn = rng.geometric(0.01, (20_000, count))
    for quantile in (0.5, 0.8, 0.95):
        z = {0.5: 0.0, 0.8: 0.8416, 0.95: 1.6449}[quantile]
        peaks = peaks_of(np.array([0, count]), entries, np.zeros(count, dtype=np.int64), book.curves(), z)
        limit = next(c for c in range(300, 4_000, 5) if stays_below(peaks, 0, c, int(prompt[-1]), 0, int(row[-1])))
        over = max(
            float(np.mean(((prompt + i + 1) * (drawn > i)).sum(axis=1) > limit)) for i in (0, 1, 3, 7, 15, 31, 63, 99)
        )
        assert over <= 1.0 - quantile + 0.03
        fewer = limit - 100
        over = max(
            float(np.mean(((prompt + i + 1) * (drawn > i)).sum(axis=1) > fewer)) for i in (0, 1, 3, 7, 15, 31, 63, 99)
        )
        assert over > 1.0 - quantile + 0.03


@pytest.mark.parametrize("name", list(ADMISSION_RULES))
def test_every_rule_takes_what_fits_an_empty_worker_and_never_more_than_fits(name: str) -> None:
    rule = admission_rule(f"{name}:{50 if name == 'reserve_cap' else 0.9}")
    assert isinstance(rule, AdmissionRule)
    rng = np.random.default_rng(0)
    for _ in range(30):
        running, waiting = rng.integers(0, 30, rng.integers(0, 4)).tolist(), rng.integers(0, 120, 6).tolist()
        output = rng.integers(1, 40, len(running) + 6).tolist()
        state = state_of(rule, running, waiting, output=output)
        kept = started(state)
        used = sum(running) + len(running) + sum(waiting[i] + 1 for i in kept)
        assert used <= 100
        if not running:
            first = next((i for i in range(6) if waiting[i] < 100), None)
            assert kept[:1] == ([] if first is None else [first])


def test_whatever_a_policy_says_the_rule_has_the_last_word() -> None:
    """Placed beyond the watermark, the second stays in the pool; beyond the memory, it is a fault."""
    state = state_of(Optimistic(0.2), [50], [20, 20, 40])
    placed = state.apply(Decisions(np.array([0, 1]), np.array([0, 0])))
    assert placed.request.tolist() == [1]
    assert state.view().waiting.tolist() == [2, 3]
    with pytest.raises(SimulationError, match="KV room"):
        state.apply(Decisions(np.array([1]), np.array([0])))


def test_room_is_what_the_rule_leaves() -> None:
    assert state_of(Optimistic(0.2), [50], []).view().room.tolist() == [29]
    assert state_of(Optimistic(0.2), [], []).view().room.tolist() == [100]


def test_a_worker_is_kept_for_the_oldest() -> None:
    """It needs 91 of 100: no worker has that now, and the emptier one is kept for it."""
    state = ClusterState(slots=np.full(2, 8), capacity=np.full(2, 100), policy=BrZero(PolicySettings()))
    state.arrive(np.arange(3), np.array([40, 20, 90]), np.zeros(3))
    state.apply(Decisions(np.array([0, 1]), np.array([0, 1])))
    open_, free = np.ones(2, dtype=np.bool_), np.array([7, 7])
    keep_for_oldest(state.gate(), open_, free)
    assert open_.tolist() == [True, False]
    large = ClusterState(slots=np.full(2, 8), capacity=np.array([100, 50]), policy=BrZero(PolicySettings()))
    large.arrive(np.arange(2), np.array([40, 90]), np.zeros(2))
    large.apply(Decisions(np.array([0]), np.array([0])))
    open_[:] = True
    keep_for_oldest(large.gate(), open_, free)
    assert open_.tolist() == [False, True]  # the other could never hold it


def test_one_and_the_same_worker_is_kept() -> None:
    """The second is emptier at first. It stays kept when the first has more room for a moment, until another is the oldest."""
    state = ClusterState(slots=np.full(2, 8), capacity=np.full(2, 100), policy=BrZero(PolicySettings()))
    state.arrive(np.arange(5), np.array([15, 25, 30, 90, 91]), np.zeros(5))
    state.apply(Decisions(np.array([0, 1, 2]), np.array([0, 0, 1])))
    nothing = np.zeros(16, dtype=np.int64)
    for ended, kept in ((None, 1), (1, 1)):
        state.stepped(nothing, np.flatnonzero(state.slots.request == ended) if ended is not None else nothing[:0])
        open_ = np.ones(2, dtype=np.bool_)
        keep_for_oldest(state.gate(), open_, np.array([6, 7]))
        assert np.flatnonzero(~open_).tolist() == [kept]
    assert state.withdrawn(np.array([0])).tolist() == [3]
    open_[:] = True
    keep_for_oldest(state.gate(), open_, np.array([7, 7]))
    assert open_.tolist() == [False, True]
    open_[:] = [False, True]  # it accepts nothing any more
    keep_for_oldest(state.gate(), open_, np.array([7, 7]))
    assert open_.tolist() == [False, False]


def test_without_bounds_everything_fits() -> None:
    assert fits(OPEN, 3, 10**6)
    take(OPEN, 3, 10**6)
    assert isinstance(OPEN, Gate)


@pytest.mark.parametrize(
    "text",
    ["optimistic:x", "optimistic:-0.1", "forecast:0", "forecast:nan", "reserve_cap:inf", "headroom:0", "headroom:1"],
)
def test_numbers_out_of_bounds_are_named(text: str) -> None:
    with pytest.raises(InputError, match="admission: "):
        admission_rule(text)
