"""Rewards: a conformance suite over the registry, the two forms by hand, and what weights and tenants do to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.errors import InputError, UnknownNameError
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.forecasts import NoForecast
from endcast.router.olp.fairness import TenantShares
from endcast.router.olp.rewards import REWARDS, Reward
from endcast.router.olp.settings import OlpSettings
from endcast.router.policies import POLICIES
from endcast.router.policy import Decisions, PolicySettings

ALL = OlpSettings(w_throughput=0.5, w_latency=2.0, w_ttft=3.0, w_tail=4.0, latency_scale_s=60.0, tail_scale_s=100.0)
SECONDS = st.lists(st.floats(0.0, 1e4), min_size=1, max_size=20)


@pytest.fixture(params=REWARDS, ids=str)
def reward(request: pytest.FixtureRequest) -> Reward:
    return REWARDS.get(request.param)(ALL)


@given(wait=SECONDS, service=st.floats(1e-3, 1e7))
@pytest.mark.parametrize("name", REWARDS, ids=str)
def test_parts_are_finite_not_negative_and_one_a_name(name: str, wait: list[float], service: float) -> None:
    made = REWARDS.get(name)(ALL)
    parts = made(np.array(wait), np.full(len(wait), service), 0.05)
    assert parts.shape == (len(made.parts), len(wait))
    assert np.all(np.isfinite(parts)) and np.all(parts >= 0.0)


def test_the_shorter_is_worth_more_after_the_same_wait(reward: Reward) -> None:
    service = np.array([1.0, 5.0, 30.0, 31.0])
    assert np.all(np.diff(reward(np.full(4, 7.0), service, 0.05).sum(axis=0)) < 0.0)


def test_urgency_by_hand() -> None:
    """T = 60, θ = 100, weights 2, 3, 4: after 50 s of waiting, 40 s of service."""
    parts = REWARDS.get("urgency")(ALL)(np.array([50.0]), np.array([40.0]), 0.05)[:, 0]
    assert parts == pytest.approx([2.0 / (1.0 + 40.0 / 60.0), 3.0 * 50.0 / 100.0, 4.0 * 0.25])


@given(first=st.floats(0.0, 1e4), later=st.floats(0.0, 1e4), service=st.floats(0.01, 1e6))
def test_urgency_never_falls_while_a_request_waits(first: float, later: float, service: float) -> None:
    waits = np.sort(np.array([first, later]))
    before, after = REWARDS.get("urgency")(ALL)(waits, np.full(2, service), 0.05).sum(axis=0)
    assert after >= before * (1.0 - 1e-12)


def test_the_published_form_by_hand() -> None:
    """In units of 10 s: completion 9, ttft 5.005; late beyond a threshold of 60 s."""
    settings = OlpSettings(w_throughput=0.5, w_latency=2.0, w_ttft=3.0, w_tail=4.0, unit_s=10.0, tail_threshold_s=60.0)
    parts = REWARDS.get("published")(settings)(np.array([50.0, 0.0]), np.array([40.0, 40.0]), 0.05)
    assert parts[:, 0] == pytest.approx([0.5, 2.0 / 10.0, 3.0 / 6.005, 4.0])
    assert parts[:, 1] == pytest.approx([0.5, 2.0 / 5.0, 3.0 / 1.005, 0.0])


def test_the_published_form_falls_while_a_request_waits_and_depends_on_the_unit() -> None:
    """Its traps, as documented."""
    wait, service = np.array([0.0, 10.0]), np.array([40.0, 1.0])

    def worth(unit_s: float, wait: np.ndarray) -> np.ndarray:
        settings = OlpSettings(w_latency=1.0, w_ttft=1.0, w_tail=0.0, unit_s=unit_s)
        total: np.ndarray = REWARDS.get("published")(settings)(wait, service, 0.05).sum(axis=0)
        return total

    assert np.all(worth(1.0, wait + 30.0) < worth(1.0, wait))
    one, hundred = worth(1.0, wait), worth(100.0, wait)
    assert one[0] > one[1] and hundred[0] < hundred[1]


def test_a_reward_that_would_be_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="urgency"):
        REWARDS.get("urgency")(OlpSettings(w_throughput=1.0, w_latency=0.0, w_ttft=0.0, w_tail=0.0))


def test_an_unknown_reward_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="urgency, published"):
        REWARDS.get("nope")
    with pytest.raises(UnknownNameError, match="reward 'nope'"):
        POLICIES.get("olp")(PolicySettings(olp=OlpSettings(reward="nope")))


def fleet(tenants: list[int], prompts: list[int], *, slots: int = 8) -> ClusterState:
    policy = POLICIES.get("olp")(PolicySettings())
    state = ClusterState(
        slots=np.array([slots]), capacity=np.array([UNLIMITED]), policy=policy, curves=NoForecast().shared
    )
    number = np.arange(len(tenants))
    state.arrive(
        number,
        np.array(prompts),
        np.zeros(len(tenants)),
        tenant=np.array(tenants),
        forecasts=NoForecast().at_admission(number),
    )
    return state


def test_whoever_holds_more_than_an_equal_share_counts_less() -> None:
    state = fleet([0, 1, -1], [600, 200, 200])
    state.apply(Decisions(np.arange(3), np.zeros(3, dtype=np.int64)))
    shares = TenantShares(strength=1.0, bound=10.0, half_life_s=100.0)
    np.testing.assert_array_equal(shares.factor(np.array([0, 1, -1])), 1.0)
    shares.charge(state.view(), 5.0)
    np.testing.assert_allclose(shares.factor(np.array([0, 1, -1])), [1000 / 3 / 600, 1000 / 3 / 200, 1000 / 3 / 200])


def test_factors_are_bounded_and_a_newcomer_gets_the_most() -> None:
    state = fleet([0], [600])
    state.apply(Decisions(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)))
    shares = TenantShares(strength=3.0, bound=4.0, half_life_s=100.0)
    shares.charge(state.view(), 5.0)
    assert shares.factor(np.array([0, 7])).tolist() == [0.25, 4.0]


def test_what_was_held_is_forgotten() -> None:
    """After one half-life a tenant that has gone counts half as much as one that has come to hold as much."""
    state = fleet([0, 1], [600, 600])
    shares = TenantShares(strength=1.0, bound=10.0, half_life_s=10.0)
    state.apply(Decisions(np.array([0]), np.array([0])))
    shares.charge(state.view(), 10.0)
    state.stepped(np.zeros(8, dtype=np.int64), np.flatnonzero(state.slots.request == 0))
    state.apply(Decisions(np.array([0]), np.array([0])))
    shares.charge(state.view(), 10.0)
    first, second = shares.factor(np.array([0, 1]))
    assert first / second == pytest.approx(2.0)
