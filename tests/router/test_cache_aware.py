"""Prefix caches against balance: kernels with tolls, what is lost on each worker, kept matches, hits counted, whole runs."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.router.admission.gate import CAPACITY, CLAIMED, HELD, LIMIT, OPEN, USED, Gate
from endcast.router.balance_route import balance_route, discounts
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.engine import play
from endcast.router.entries import FIELDS, PROMPT, read_only
from endcast.router.figures import figures
from endcast.router.forecasts import NoForecast
from endcast.router.levelling import levelling
from endcast.router.policies import POLICIES
from endcast.router.policy import PolicySettings
from endcast.router.prefix import PrefixIndex, hit_tokens, tokens_seen
from endcast.router.prefix_loss import prefix_loss
from endcast.router.record import RunRecord
from endcast.router.scale import StepTime
from endcast.router.workload import Workload
from endcast.survival import FloatArray, IntArray

KERNELS = ["br_0", "br_h"]
AWARE = [*KERNELS, "olp_br_h"]


class Round:
    """A round of a few workers and requests, drawn at random, with what each request loses where."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.workers, self.waiting, self.steps = int(rng.integers(1, 6)), int(rng.integers(0, 12)), 3
        self.load = rng.uniform(0, 1000, (self.workers, self.steps))
        self.waiting_load = rng.uniform(1, 400, (self.waiting, self.steps)).astype(np.float32)
        self.overtaken = np.sort(rng.integers(0, 7, self.waiting))[::-1].copy()
        self.free = rng.integers(0, 4, self.workers)
        self.accepting = rng.random(self.workers) < 0.8
        self.key, self.room = rng.random(self.workers), rng.choice([150, 10**6], self.workers)
        self.candidates, self.max_overtakes = int(rng.integers(1, 14)), int(rng.integers(0, 8))
        self.lost = rng.choice([0.0, 50.0, 2000.0], (self.waiting, self.workers))

    @property
    def prompt(self) -> IntArray:
        return self.waiting_load[:, 0].astype(np.int64)

    @property
    def gate(self) -> Gate:
        """Workers that take what fits now."""
        waiting = np.zeros((FIELDS + 1, max(self.waiting, 1)), dtype=np.int64)
        waiting[PROMPT, : self.waiting] = self.prompt
        worker = np.zeros((5, self.workers), dtype=np.int64)
        worker[CAPACITY], worker[LIMIT], worker[HELD] = 10**9, 10**9, 1
        worker[USED] = worker[CLAIMED] = 10**9 - self.room
        return deepcopy(OPEN)._replace(bounded=True, waiting=read_only(waiting), worker=worker)

    def place(self, kernel: str, lost: FloatArray, gate: Gate = OPEN) -> list[tuple[int, int]]:
        weight = discounts(self.steps - 1, 0.9)
        if kernel == "br_h":
            position, worker = levelling(
                self.load, self.waiting_load, self.overtaken, self.free, gate, self.accepting, np.ones(self.workers),
                self.key, weight, self.candidates, self.max_overtakes, lost,
            )  # fmt: skip
        else:
            shown = (self.load, self.waiting_load, np.arange(self.waiting), self.overtaken, self.free)
            position, worker = balance_route(
                *map(read_only, shown), gate, read_only(self.accepting), self.key, weight, self.candidates,
                self.max_overtakes, lost,
            )  # fmt: skip
        return list(zip(position.tolist(), worker.tolist(), strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_losing_nothing_anywhere_changes_nothing(kernel: str, seed: int) -> None:
    one = Round(seed)
    assert one.place(kernel, np.zeros_like(one.lost)) == one.place(kernel, np.zeros((0, one.workers)))


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_a_match_never_makes_an_unfit_placement(kernel: str, seed: int) -> None:
    one = Round(seed)
    placed = one.place(kernel, one.lost, one.gate)
    assert len({j for j, _ in placed}) == len(placed)
    for g in range(one.workers):
        mine = [j for j, worker in placed if worker == g]
        assert len(mine) <= (one.free[g] if one.accepting[g] else 0)
        assert sum(int(one.prompt[j]) + 1 for j in mine) <= one.room[g]


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9))
def test_as_many_are_placed_whatever_they_lose(kernel: str, seed: int) -> None:
    """Tolls never keep a slot empty."""
    one = Round(seed)
    filled = min(one.waiting, int(one.free[one.accepting].sum()))
    assert len(one.place(kernel, one.lost)) == filled


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 10**9), weights=st.tuples(st.floats(0, 3), st.floats(0, 3)))
def test_of_one_slot_a_higher_weight_never_loses_more(kernel: str, seed: int, weights: tuple[float, float]) -> None:
    one = Round(seed)
    one.free, one.accepting, one.max_overtakes = np.zeros(one.workers, dtype=np.int64), one.accepting | True, 100
    one.free[seed % one.workers] = 1
    tokens = [sum(one.lost[j, g] for j, g in one.place(kernel, w * one.lost)) for w in sorted(weights)]
    assert tokens[1] <= tokens[0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_only_request_goes_home_if_that_is_worth_it(kernel: str) -> None:
    """Worker 0 holds 300 tokens less; the request's prefix is on worker 1."""
    one = Round(3)
    one.workers, one.waiting = 2, 1
    one.load, one.waiting_load = np.array([[0.0] * 3, [300.0] * 3]), np.full((1, 3), 500, dtype=np.float32)
    one.overtaken, one.free, one.accepting = np.zeros(1, dtype=np.int64), np.array([1, 1]), np.ones(2, dtype=np.bool_)
    one.key, one.candidates, one.max_overtakes = np.array([0.2, 0.1]), 64, 100
    assert one.place(kernel, np.array([[5.0, 0.0]])) == [(0, 0)]
    assert one.place(kernel, np.array([[5000.0, 0.0]])) == [(0, 1)]


# ---- the index


def fresh_match(log: list[tuple[str, int, int]], blocks: dict[int, list[int]], request: int, workers: int) -> list[int]:
    """Matches from all that ever happened, taken anew."""
    seen: list[set[int]] = [set() for _ in range(workers)]
    for what, r, g in log:
        if what == "place":
            seen[g] |= set(blocks[r])
        elif what == "lose":
            seen[g].clear()
    matched = []
    for g in range(workers):
        depth = 0
        while depth < len(blocks[request]) and blocks[request][depth] in seen[g]:
            depth += 1
        matched.append(depth)
    return matched


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_kept_matches_are_those_taken_anew(data: st.DataObject) -> None:
    workers, index, blocks = 3, PrefixIndex(3), dict[int, list[int]]()
    log, waiting = list[tuple[str, int, int]](), list[int]()
    for number in range(data.draw(st.integers(1, 100))):
        what = data.draw(st.sampled_from(["arrive", "arrive", "place", "forget", "lose", "look"]))
        g = data.draw(st.integers(0, workers - 1))
        if what == "arrive":
            path = data.draw(st.lists(st.integers(0, 1), max_size=4))
            blocks[number] = [int("1" + "".join(map(str, path[: i + 1])), 2) for i in range(len(path))]
            index.arrive(np.array([number]), [np.array(blocks[number], dtype=np.int64)])
            waiting.append(number)
        elif what == "lose":
            index.lose(g)
            log.append((what, -1, g))
        elif what == "look" and waiting:
            total, matched = index.match(np.array(waiting))
            assert total.tolist() == [len(blocks[r]) for r in waiting]
            assert matched.tolist() == [fresh_match(log, blocks, r, workers) for r in waiting]
        elif waiting and what in ("place", "forget"):
            r = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if what == "place":
                index.placed(np.array([r]), np.array([g]))
                log.append((what, r, g))
            else:
                index.forget(np.array([r]))


def test_many_waiting_requests_and_none_left() -> None:
    index, many = PrefixIndex(2), np.arange(500)
    index.arrive(many, [np.array([r, 1000 + r]) for r in many])
    index.placed(many[:250], np.ones(250, dtype=np.int64))
    index.arrive(np.array([900]), [np.array([3, 1003, 9999])])
    assert index.match(np.array([900]))[1].tolist() == [[0, 2]]
    index.forget(many[250:])
    index.forget(np.array([900]))
    assert not index._waiting and not index._waiters and not index._row and not index._stale


def test_blocks_are_equal_parts_of_a_prompt() -> None:
    seen = tokens_seen(np.array([4, 0]), np.array([[1, 4], [0, 0]]), np.array([200, 30]))
    assert seen.tolist() == [[50.0, 200.0], [0.0, 0.0]]


def test_hits_by_hand() -> None:
    """The second finds half of its prompt on its worker, the third nothing on another, the fourth never started."""
    blocks = [np.array(b, dtype=np.int64) for b in ([1, 2], [1, 3], [1, 2], [1, 2])]
    worker, started, prompt = np.array([0, 0, 1, 0]), np.array([0, 5, 7, -1]), np.array([100, 80, 60, 40])
    assert hit_tokens(worker, started, prompt, blocks, 2) == 40
    assert hit_tokens(worker, np.array([5, 0, 7, -1]), prompt, blocks, 2) == 50  # the first finds [1] of the second


# ---- what is lost, and whole runs


def state_of(policy: str, chosen: PolicySettings) -> ClusterState:
    made = POLICIES.get(policy)(chosen)
    return ClusterState(slots=np.full(3, 2), capacity=np.full(3, UNLIMITED), policy=made, curves=NoForecast().shared)


def arrive(state: ClusterState, request: int, prompt: int, blocks: list[int] | None) -> None:
    one = np.array([request])
    known = None if blocks is None else [np.array(blocks, dtype=np.int64)]
    forecasts = NoForecast().curves(one, np.zeros_like(one))
    state.arrive(one, np.array([prompt]), np.zeros(1), prefix_blocks=known, forecasts=forecasts)


def test_what_is_lost_is_against_the_best_worker() -> None:
    chosen = PolicySettings(prefix_weight=0.5)
    state = state_of("br_h", chosen)
    arrive(state, 0, 100, [1, 2])
    decided = POLICIES.get("br_h")(chosen).decide(state.view(), np.random.default_rng(0))
    state.apply(decided)
    home = int(decided.worker[0])
    arrive(state, 1, 90, [1, 2, 3])  # 60 of 90 tokens are at home
    arrive(state, 2, 70, [9])
    lost = prefix_loss(state.view(), chosen)
    assert lost.shape == (2, 3)
    assert [lost[0, g] for g in range(3)] == [0.0 if g == home else 30.0 for g in range(3)]
    assert not lost[1].any()
    state.accept(home, False)
    assert not prefix_loss(state.view(), chosen).any()  # what nobody can have is not lost


def test_a_fleet_that_never_sees_blocks_looks_none_up() -> None:
    chosen = PolicySettings(prefix_weight=0.5)
    state = state_of("br_h", chosen)
    arrive(state, 0, 100, None)
    arrive(state, 1, 100, [])
    assert state.view().prefixes is None
    assert prefix_loss(state.view(), chosen).shape == (0, 3)


def sessions(seed: int, *, told: bool = True) -> Workload:
    """Forty conversations, each turn with the blocks of the one before."""
    rng = np.random.default_rng(seed)
    arrival, blocks = np.cumsum(rng.exponential(0.05, 400)), []
    turn = dict[int, int]()
    for _ in range(400):
        s = int(rng.integers(0, 40))
        turn[s] = turn.get(s, 0) + 1
        blocks.append(1000 * s + np.arange(turn[s] + 1))
    return Workload.from_arrays(
        arrival_s=arrival,
        prompt=np.array([100 * len(b) for b in blocks]),
        output=rng.geometric(0.05, 400),
        prefix_blocks=tuple(blocks) if told else (),
    )


def served(load: Workload, policy: str, weight: float) -> RunRecord:
    return play(
        load,
        POLICIES.get(policy)(PolicySettings(prefix_weight=weight, max_overtakes=100)),
        slots=np.full(4, 4),
        capacity=np.full(4, UNLIMITED),
        step_time=StepTime(fixed_s=0.02, batch_s=0.0, kv_s=1e-5),
        forecasts=NoForecast(),
        rng=np.random.default_rng(0),
    )


@pytest.mark.parametrize("policy", AWARE)
def test_a_weight_buys_hits(policy: str) -> None:
    load = sessions(1)
    share = [figures(served(load, policy, w), kv_per_slot=1.0).prefix_hit_share for w in (0.0, 0.3, 30.0)]
    random = figures(served(load, "random", 0.0), kv_per_slot=1.0).prefix_hit_share
    assert share[0] < random + 0.15
    assert share[0] < share[1] < share[2]
    assert share[2] > share[0] + 0.15


@pytest.mark.parametrize("policy", AWARE)
def test_without_blocks_a_weight_changes_nothing(policy: str) -> None:
    load = sessions(1, told=False)
    one, two = served(load, policy, 0.0), served(load, policy, 3.0)
    np.testing.assert_array_equal(one.admission_s, two.admission_s)
    np.testing.assert_array_equal(one.worker, two.worker)
    assert one.prefix_hits == two.prefix_hits == 0
    assert figures(two, kv_per_slot=1.0).prefix_hit_share == 0.0
