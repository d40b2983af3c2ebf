"""The default admission rule: ends expected by age, and what is left free beside requests of any size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.admission.ends import EndRate
from endcast.router.admission.gate import entry_fits, kept_free
from endcast.router.admission.headroom import Headroom
from endcast.router.admission.optimistic import Optimistic
from endcast.router.cluster import ClusterState
from endcast.router.entries import FIELDS
from endcast.router.policies.br_0 import BrZero
from endcast.router.policy import Decisions, PolicySettings
from endcast.router.slots import Slots
from endcast.survival import NO_CAP


def filled(rule: Headroom, prompts: list[int], capacity: int) -> ClusterState:
    """One worker of 8 slots on which these prompts run."""
    state = ClusterState(
        slots=np.array([8]), capacity=np.array([capacity]), policy=BrZero(PolicySettings()), admission=Optimistic(0.0)
    )
    rows = np.arange(len(prompts))
    state.arrive(rows, np.array(prompts, dtype=np.int64), np.zeros(len(rows)))
    state.apply(Decisions(rows, np.zeros_like(rows)))
    state._admission = rule
    return state


def slots_at(generated: list[int]) -> Slots:
    """One worker on which requests that have generated so much run."""
    slots = Slots(np.array([len(generated)]))
    entries = np.zeros((FIELDS, len(generated)), dtype=np.int64)
    slots.occupy(np.zeros(len(generated), dtype=np.int64), entries, np.array(generated, dtype=np.int64))
    return slots


def seen(rate: EndRate, age: int, tokens: int, ends: int = 0, times: int = 1) -> None:
    """One request of that age generates so many tokens, and ends or does not; so many times."""
    slots = slots_at([age])
    for _ in range(times):
        rate.saw(slots, np.array([tokens]), np.arange(ends))


def test_tokens_per_end_count_what_still_runs() -> None:
    """Ends at 50 tokens beside one that goes on: an end each 60 tokens, in the long run."""
    rate = EndRate()
    assert rate.tokens_per_end == 500.0  # supposed before anything was seen
    seen(rate, 0, 99)
    seen(rate, 99, 1, ends=1)
    assert rate.tokens_per_end == pytest.approx((500.0 + 99.0 * (1 - 1 / 2000) + 1.0) / 2.0)
    seen(rate, 50, 60, ends=1, times=20_000)
    assert rate.tokens_per_end == pytest.approx(60.0, rel=0.005)
    before = rate.tokens_per_end
    rate.saw(Slots(np.array([3])), np.ones(3, dtype=np.int64), np.array([1]))  # nothing runs
    assert rate.tokens_per_end == before


def test_ends_are_expected_by_age() -> None:
    """Half of what is expected follows the age. In the long run one in 20 tokens ends a request at 40 to 44 tokens, and none
    elsewhere; over all ages it is one in 40."""
    rate = EndRate()
    for _ in range(10_000):
        seen(rate, 40, 20, ends=1)
        seen(rate, 3, 20)
    slots = slots_at([0, 40, 46])
    ends, newcomer = rate.expected(slots, np.array([1.0])).ravel()
    assert newcomer == pytest.approx(0.5 / 40, rel=0.02)  # 5 ends at 1 in 40 stand beside 40,000 tokens without any
    assert ends == pytest.approx(0.5 / 40 + 2 * (0.5 / 20 + 0.5 / 40), rel=0.02)
    ends, newcomer = rate.expected(slots, np.array([48.0])).ravel()  # beyond 48 tokens nothing was seen: one in 40
    assert newcomer == pytest.approx((16 * 0.5 / 40 + 16 / 40 + 16 * (0.5 / 20 + 0.5 / 40)) / 48, rel=0.02)
    oldest = slots_at([10**6])
    seen(rate, 10**6, 10, ends=1, times=2000)
    assert rate.expected(oldest, np.array([5.0]))[0, 0] > 1.5 * newcomer  # the last interval has no end
    assert rate.expected(Slots(np.array([2, 3])), np.array([4.0, 1.0]))[0].tolist() == [0.0, 0.0]


def test_headroom_is_what_lets_something_end() -> None:
    """500 tokens an end are supposed at first: r tokens left free beside d = 500·x more are enough if exp(−r/500)·(1 − exp(−x))
    is at most 0.1·x. Of 10,000 tokens 5,001 are used in this step."""
    limit = largest_fitting(filled(Headroom(0.1), [5000], 10_000))
    added = np.exp(-(4999 - limit) / 500) * (1.0 - np.exp(-limit / 500))
    assert added <= 0.1 * limit / 500 < added * 1.01
    assert largest_fitting(filled(Headroom(0.1), [], 10_000)) == 10_000  # an empty worker takes what fits it
    assert largest_fitting(filled(Headroom(1e-9), [10], 100)) == 50 - 11  # half is kept free at most
    assert filled(Headroom(0.1), [5000], 10_000).view().room.tolist() == [9999 - 5000 - 1152]  # 500·ln 10


def largest_fitting(state: ClusterState) -> int:
    """Most tokens, the one that it makes among them, that another request may take there now."""
    gate = state.gate()
    return max(d for d in range(1, 10_001) if entry_fits(gate, 0, d - 1, 0, NO_CAP, 0))


def test_less_headroom_is_kept_where_ends_are_near() -> None:
    """Requests mostly end at 100 to 110 tokens. On a worker that runs some of 90 the memory may be filled further than on one
    that runs as many of 0."""
    fitting = []
    for made in (0, 90):
        state = filled(Headroom(0.01), [400] * 6, 6000)
        rate = state._ends
        for age in range(0, 112, 16):
            seen(rate, age, 16, ends=int(age == 96), times=300)
        state.slots.generated[:6] = made
        state.slots.load[:] -= state.slots.load - 2400  # the same tokens, so that nothing but ages differ
        fitting.append(largest_fitting(state))
    assert fitting[1] > fitting[0] + 100


@settings(deadline=None)
@given(st.floats(1.0, 5000.0), st.floats(0.01, 12.0), st.integers(2, 10**6))
def test_a_larger_request_may_leave_less_and_never_fits_where_a_smaller_does_not(
    per_end: float, margin: float, tokens: int
) -> None:
    small, large = (kept_free(t, per_end, margin, 10**9) for t in (tokens - 1, tokens))
    assert large <= small <= margin * per_end + 1e-9
    assert tokens + large >= tokens - 1 + small
    if large > 0.0:
        added = np.exp(-large / per_end) * -np.expm1(-tokens / per_end)
        assert added == pytest.approx(np.exp(-margin) * tokens / per_end, rel=1e-6)


def test_the_chance_of_running_out_is_the_one_accepted() -> None:
    """Memory that is filled as far as the rule lets a tiny request fill it, of requests that end with one chance in m a token."""
    rng, per_end = np.random.default_rng(0), 200
    for risk in (0.3, 0.1, 0.02):
        for requests in (4, 32):
            room = int(np.ceil(kept_free(1, per_end, float(np.log(1.0 / risk)), 10**6)))
            first_end = rng.geometric(1.0 / per_end, (40_000, requests)).min(axis=1)
            assert np.mean(requests * first_end > room) == pytest.approx(risk, rel=0.15)


def test_the_risk_added_is_the_same_for_each_token_put_to_use() -> None:
    """The chance that nothing ends before memory is used up, with a request of some size and without it, by drawing."""
    rng, per_end, risk = np.random.default_rng(1), 200, 0.05
    for tokens in (20, 400, 1500):
        room = kept_free(tokens, per_end, float(np.log(1.0 / risk)), 10**6)
        first_end = rng.geometric(1.0 / per_end, (40_000, 8)).min(axis=1) * 8
        more = np.mean(first_end > room) - np.mean(first_end > room + tokens)
        assert more == pytest.approx(risk * tokens / per_end, rel=0.2)
