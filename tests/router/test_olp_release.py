"""Who starts, in what order and where: OLP's releases on small fleets that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.forecasts import Oracle
from endcast.router.olp.explain import scarcities
from endcast.router.olp.settings import OlpSettings
from endcast.router.policies.olp import Olp
from endcast.router.policy import Decisions, PolicySettings

RNG = np.random.default_rng


def fleet(slots: list[int], *, capacity: list[int] | None = None, max_overtakes: int = 1000, **olp: object) -> Fleet:
    return Fleet(slots, capacity or [UNLIMITED] * len(slots), max_overtakes, OlpSettings(**{"patience": 1.0, **olp}))  # type: ignore[arg-type]


class Fleet:
    """A cluster with true lengths and an ``Olp``; one call a step."""

    def __init__(self, slots: list[int], capacity: list[int], max_overtakes: int, olp: OlpSettings) -> None:
        self.policy = Olp(PolicySettings(max_overtakes=max_overtakes, olp=olp))
        self.output = np.zeros(0, dtype=np.int64)
        self.state = ClusterState(
            slots=np.array(slots), capacity=np.array(capacity), policy=self.policy, curves=Oracle(self.output).shared
        )
        self.left = np.zeros(len(self.state.slots), dtype=np.int64)
        self.now_s, self.ended = 0.0, np.zeros(0, dtype=np.int64)
        self.worker: dict[int, int] = {}

    def arrive(self, *requests: tuple[int, int], weight: list[float] | None = None) -> None:
        """(prompt, output) of each."""
        first = len(self.output)
        prompt, output = (np.array(column) for column in zip(*requests, strict=True))
        self.output = np.concatenate([self.output, output])
        number = np.arange(first, len(self.output))
        self.state.arrive(
            number,
            prompt,
            np.full(len(number), self.now_s),
            weight=None if weight is None else np.array(weight),
            forecasts=Oracle(self.output).curves(number, np.zeros_like(number)),
        )

    def decide(self, seed: int = 0) -> Decisions:
        return self.policy.decide(self.state.view(self.now_s), RNG(seed))

    def step(self, seconds: float = 0.05, seed: int = 0) -> list[int]:
        """Decide, start, make a token each: the requests that started."""
        started = self.state.apply(self.decide(seed))
        self.left[started.slot] = self.output[started.request]
        self.worker |= dict(zip(started.request.tolist(), self.state.slots.worker[started.slot].tolist(), strict=True))
        self.left -= 1
        self.now_s += seconds
        self.state.stepped(np.ones(len(self.left), dtype=np.int64), np.flatnonzero(self.left == 0))
        return [int(request) for request in started.request]


def test_the_short_start_first_and_the_long_waiting_catch_up() -> None:
    one = fleet([1], w_latency=1.0, w_tail=4.0, tail_scale_s=10.0)
    one.arrive((5, 400))
    one.now_s = 1.0
    one.arrive((5, 2))
    assert one.step() == [1]
    one.step()
    one.now_s = 60.0
    one.arrive((5, 2))
    assert one.step() == [0]


def test_a_priority_multiplies_the_reward() -> None:
    for weight, first in (([1.0, 1.0], 1), ([2.0, 1.0], 0)):
        one = fleet([1], w_tail=0.0)
        one.arrive((5, 40), (5, 30), weight=weight)
        assert one.step() == [first]


def test_of_workers_alike_the_lightest_takes_it() -> None:
    two = fleet([4, 4])
    two.arrive((900, 50))
    two.step()
    two.arrive((10, 50), (10, 50))
    two.step()
    assert two.worker[1] == two.worker[2] == 1 - two.worker[0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_slot_stays_empty_while_something_fits(seed: int) -> None:
    """After each round nothing that waits fits on a worker with a free slot, but on one that is kept for another."""
    rng = RNG(seed)
    slots, capacity = rng.integers(1, 4, 3).tolist(), rng.integers(50, 400, 3).tolist()
    some = fleet(slots, capacity=capacity, max_overtakes=int(rng.integers(0, 30)), step_size=0.2)
    for _ in range(12):
        count = int(rng.integers(1, 5))
        some.arrive(*zip(rng.integers(0, 90, count).tolist(), rng.integers(1, 9, count).tolist(), strict=True))
        view = some.state.view(some.now_s)
        some.state.apply(some.policy.decide(view, rng))
        view = some.state.view(some.now_s)
        kept = some.policy.queue.reserved[1]
        for g in range(3):
            if view.free[g] > 0 and g != kept:
                assert not np.any(view.waiting_prompt + 1 <= view.room[g])
        some.state.stepped(np.zeros(len(some.left), dtype=np.int64), np.flatnonzero(rng.random(len(some.left)) < 0.3))
        some.now_s += 0.05


def test_past_its_bound_a_request_is_next() -> None:
    """A long one, passed by three short ones, starts before the fourth though its surplus is the least."""
    one = fleet([1], max_overtakes=3, w_tail=0.0)
    one.arrive((5, 500), *[(5, 1)] * 6)
    order = [number for _ in range(5) for number in one.step()]
    assert order == [1, 2, 3, 0]


def test_the_bound_counts_within_a_round() -> None:
    one = fleet([6], max_overtakes=3, w_tail=0.0)
    one.arrive((5, 500), *[(5, 1)] * 6)
    assert one.decide().position.tolist() == [1, 2, 3, 0, 4, 5]


def test_a_large_prompt_past_its_bound_keeps_a_worker_until_it_has_drained() -> None:
    """Two workers of 100 tokens; small requests would fill every gap for ever. It needs 90 and starts all the same."""
    two = fleet([8, 8], capacity=[100, 100], max_overtakes=4, w_tail=0.0)
    two.arrive(*[(20, 6)] * 8)
    two.step()
    two.arrive((90, 5))
    big, reserved = 8, []
    for _ in range(30):
        two.arrive((20, 6), (20, 6))
        two.step()
        reserved.append(two.policy.queue.reserved)
        if big in two.worker:
            break
    assert big in two.worker
    kept = {worker for request, worker in reserved if request == big and worker >= 0}
    assert len(kept) == 1  # it does not change its mind
    assert len(reserved) < 14


def test_without_reservation_it_would_starve() -> None:
    """The same with a bound that is never reached: it never starts."""
    two = fleet([8, 8], capacity=[100, 100], max_overtakes=10**6, w_tail=0.0)
    two.arrive(*[(20, 6)] * 8)
    two.step()
    two.arrive((90, 5))
    for _ in range(30):
        two.arrive((20, 6), (20, 6))
        two.step()
    assert 8 not in two.worker


def test_what_fits_no_worker_holds_nobody_up() -> None:
    one = fleet([2], capacity=[100], max_overtakes=0)
    one.arrive((500, 3), (10, 3), (10, 2))
    assert one.step() == [1, 2]
    assert one.policy.queue.reserved[1] == -1


def test_unequal_workers_get_what_suits_them() -> None:
    """One worker has many slots and little KV, the other few slots and much: prices send large prompts to the second."""
    to_second = {}
    for size in (0.0, 0.2):
        two, rng, large = (
            fleet([24, 4], capacity=[800, 1600], w_ttft=0.0, w_tail=0.0, step_size=size, update_every=1),
            RNG(0),
            [],
        )
        for t in range(400):
            two.arrive((20, int(rng.integers(8, 17))), (20, int(rng.integers(8, 17))))
            if t % 4 == 0:
                large.append(len(two.output))
                two.arrive((300, int(rng.integers(8, 17))))
            two.step()
        late = [two.worker[request] for request in large[20:] if request in two.worker]
        to_second[size] = np.mean(late), len(late)
    assert to_second[0.2][0] > 0.95 > to_second[0.0][0] + 0.05
    assert to_second[0.2][1] > to_second[0.0][1]  # so that more of them have started by the end


def test_shedding_refuses_new_arrivals_that_do_not_pay() -> None:
    """A fleet of one slot that a hundred requests want: the long ones among later arrivals are refused, not the first."""
    results = {}
    for shed in (False, True):
        one = fleet([1], w_tail=0.0, shed=shed, step_size=0.2, updates=10, update_every=1)
        refused: list[int] = []
        for _ in range(25):
            one.arrive((5, 1), (5, 1), (5, 200))
            view = one.state.view(one.now_s)
            decided = one.policy.decide(view, RNG(1))
            refused += view.waiting[decided.refused].tolist()
            assert not set(decided.refused) & set(decided.position)
            started = one.state.apply(decided)
            assert sorted(started.refused) == sorted(refused[len(refused) - len(decided.refused) :])
            one.left[started.slot] = one.output[started.request]
            one.left -= 1
            one.now_s += 0.05
            one.state.stepped(np.ones(1, dtype=np.int64), np.flatnonzero(one.left == 0))
        results[shed] = refused
    assert results[False] == []
    lengths = np.array([1, 1, 200])[np.array(results[True]) % 3]
    assert len(lengths) > 15 and np.mean(lengths == 200) > 0.6


def test_an_idle_fleet_sheds_nothing() -> None:
    many = fleet([50, 50], shed=True, step_size=0.2, updates=10, update_every=1)
    for _ in range(40):
        many.arrive((5, 20))
        assert many.decide().refused.tolist() == []
        many.step()


def test_a_release_says_why() -> None:
    one = fleet([1], w_latency=1.0, w_ttft=1.0, w_tail=1.0, step_size=0.2, update_every=1)
    one.arrive((5, 3), (5, 9), (700, 80))
    for _ in range(2):
        one.step()
    one.arrive((5, 2))
    one.step()
    view = one.state.view(one.now_s)
    decided = one.policy.decide(view, RNG(0))
    (why,) = one.policy.explain(view, decided)
    assert (why.request, why.worker, why.expected_output_tokens) == (3, 0, 2)
    assert why.wait_s == pytest.approx(one.now_s - 0.1)
    assert sum(why.parts.values()) == pytest.approx(why.reward)
    assert set(why.parts) == {"latency", "ttft", "tail"}
    assert why.surplus == pytest.approx(why.reward - why.slot_cost - why.kv_cost)
    assert why.slot_cost > 0.0 and why.kv_cost >= 0.0
    assert why.best_alternative == 1 and why.alternative_surplus is not None
    assert why.alternative_surplus < why.surplus
    assert str(why).startswith("request 3 on worker 0: surplus ")
    assert "request 1 would have had" in str(why)


def test_scarce_resources_are_named_with_their_workers_and_steps() -> None:
    price = np.zeros((2, 2, 100))
    price[1, 1, 20:61] = 0.5
    price[1, 1, 40] = 0.9
    price[0, 0, :10] = 0.2
    price[0, 0, 50] = 0.05
    found = scarcities(price, np.array([0, 0, 0, 1, 0]))
    assert [str(s) for s in found] == [
        "KV on worker 3 is scarce in 20-60 steps (up to 0.9 of average yield)",
        "slots on workers 0-2, 4 are scarce in 0-9 steps (up to 0.2 of average yield)",
    ]
    assert scarcities(price, np.array([0, 0, 0, 1, 0]), least=1.0) == ()


def test_a_busy_fleet_says_that_slots_are_scarce_and_an_idle_one_nothing() -> None:
    busy, idle = fleet([2, 2], step_size=0.2, updates=5, update_every=1), fleet([50], step_size=0.2, update_every=1)
    assert busy.policy.scarce() == ()
    for _ in range(60):
        busy.arrive((5, 20), (5, 20))
        idle.arrive((5, 20))
        busy.step()
        idle.step()
    assert busy.policy.scarce()[0].resource == "slots"
    assert busy.policy.scarce()[0].workers == (0, 1)
    assert idle.policy.scarce() == ()
