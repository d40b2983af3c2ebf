"""Every registered policy goes through this: a new one is tested by its registry line."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from endcast.errors import InputError, UnknownNameError
from endcast.router.cluster import UNLIMITED, ClusterState
from endcast.router.engine import RunRecord, play
from endcast.router.forecasts import AtAdmission, ForecastSource, NoForecast, Oracle, kaplan_meier
from endcast.router.policies import POLICIES
from endcast.router.policy import ClusterView, Decisions, Policy, PolicySettings
from endcast.router.prefix import PrefixIndex
from endcast.router.record import TOKENS
from endcast.router.scale import StepTime
from endcast.router.workload import Workload

STEP = StepTime(fixed_s=0.02, batch_s=0.001, kv_s=1e-5)
G, B = 4, 3


def workload(seed: int = 0, count: int = 300) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_arrays(
        arrival_s=np.cumsum(rng.exponential(0.08, count)),
        prompt=rng.integers(0, 500, count),
        output=rng.geometric(0.05, count),
        supposed=rng.choice([100, 1000, 4096], count),
        prefix_blocks=tuple(np.arange(k % 7, k % 7 + k % 4) for k in range(count)),
    )


def run(load: Workload, policy: Policy, *, seed: int = 0, forecasts: ForecastSource | None = None) -> RunRecord:
    return play(
        load,
        policy,
        slots=np.full(G, B),
        capacity=np.full(G, UNLIMITED),
        step_time=STEP,
        forecasts=forecasts or kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_)),
        rng=np.random.default_rng(seed),
    )


@pytest.fixture(params=POLICIES, ids=str)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES.get(request.param)(PolicySettings())


@dataclass
class Watching:
    """Another policy, whose views are looked at before and after it decides."""

    inner: Policy
    views: int = 0
    waited: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        arrays = {
            name: np.copy(a) for name in view.__struct_fields__ if isinstance(a := getattr(view, name), np.ndarray)
        }
        decided = self.inner.decide(view, rng)
        for name, before in arrays.items():
            np.testing.assert_array_equal(getattr(view, name), before)
        assert (view.forecast is not None) == self.inner.needs_forecast
        assert view.prefixes is None or self.inner.needs_prefix
        assert decided.position.shape == decided.worker.shape
        if self.inner.immediate_dispatch:
            assert sorted(decided.position) == list(range(len(view.waiting)))
        self.views += 1
        return decided


def test_it_keeps_the_protocol(policy: Policy) -> None:
    assert isinstance(policy, Policy)
    assert policy.horizon == (20 if policy.needs_forecast else 0)


def test_it_decides_and_changes_nothing(policy: Policy) -> None:
    watching = Watching(policy)
    run(workload(), watching)  # type: ignore[arg-type]
    assert watching.views > 100


def test_every_request_is_served_in_full(policy: Policy) -> None:
    """Tokens add up: between its admission and its end each request takes part in as many steps as it has tokens."""
    load = workload()
    load = load.at(np.concatenate([load.arrival_s[:-1], [1e6]]))  # so that all steps but the last start before it
    record = run(load, policy)
    assert np.all(record.admission_s >= record.arrival_s)
    assert np.all(record.first_token_s > record.admission_s)
    assert np.all(record.finish_s >= record.first_token_s)
    assert record.sums[TOKENS] == load.output[:-1].sum() + 1
    single = load.output == 1
    np.testing.assert_array_equal(record.finish_s[single], record.first_token_s[single])


def test_a_seed_fixes_the_run(policy: Policy) -> None:
    first, second = (run(workload(), policy, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.admission_s, second.admission_s)
    np.testing.assert_array_equal(first.finish_s, second.finish_s)


def test_it_does_not_look_ahead(policy: Policy) -> None:
    """What is still to come, requests and their lengths, changes nothing before it comes."""
    load, later = workload(), workload(seed=1)
    split, source = 150, NoForecast()
    cut = float(load.arrival_s[split])
    output = np.where(np.arange(len(load)) < split, load.output, later.output)
    prompt = np.where(np.arange(len(load)) < split, load.prompt, later.prompt)
    other = Workload.from_arrays(
        arrival_s=load.arrival_s, prompt=prompt, output=output, supposed=load.supposed, prefix_blocks=load.prefix_blocks
    )
    one, two = (run(w, policy, forecasts=source) for w in (load, other))
    early = one.admission_s < cut
    assert early.sum() > 50
    np.testing.assert_array_equal(one.admission_s[early], two.admission_s[early])


def test_it_gives_nothing_to_workers_that_do_not_accept(policy: Policy) -> None:
    state = ClusterState(slots=np.full(G, B), capacity=np.full(G, UNLIMITED), policy=policy, curves=NoForecast().shared)
    state.accept(0, False)
    state.accept(2, False)
    new = np.arange(9)
    state.arrive(new, new, new.astype(float), forecasts=NoForecast().curves(new, np.zeros_like(new)))
    decided = policy.decide(state.view(), np.random.default_rng(0))
    assert set(decided.worker.tolist()) == {1, 3}
    for g in range(G):
        state.accept(g, False)
    assert len(policy.decide(state.view(), np.random.default_rng(0)).position) == 0


def test_more_workers_than_requests_and_one_of_each(policy: Policy) -> None:
    for count, workers, slots in ((1, 9, 1), (5, 1, 1), (3, 9, 2)):
        load = workload(count=count)
        record = play(
            load,
            policy,
            slots=np.full(workers, slots),
            capacity=np.full(workers, UNLIMITED),
            step_time=STEP,
            forecasts=Oracle(load.output),
            rng=np.random.default_rng(0),
        )
        assert np.isfinite(record.finish_s).all()


@pytest.mark.parametrize("name", POLICIES, ids=str)
def test_ties_are_broken_at_random(name: str) -> None:
    """CASE 30. The first request finds an empty fleet, where all workers tie: each must get its share of it."""
    policy = POLICIES.get(name)(PolicySettings())
    first = np.zeros(G, dtype=int)
    trials = 400
    for seed in range(trials):
        state = ClusterState(
            slots=np.full(G, B), capacity=np.full(G, UNLIMITED), policy=policy, curves=NoForecast().shared
        )
        one = np.array([0])
        state.arrive(one, one + 5, np.zeros(1), forecasts=NoForecast().curves(one, one))
        first[policy.decide(state.view(), np.random.default_rng(seed)).worker[0]] += 1
    if name == "round_robin":
        assert first.tolist() == [trials, 0, 0, 0]
    else:
        assert first.min() > trials / G / 2


@pytest.mark.parametrize("name", [n for n in POLICIES if POLICIES.get(n)(PolicySettings()).needs_forecast])
def test_a_batch_of_its_own_is_as_good_as_a_shared_table(name: str) -> None:
    load = workload()
    shared = kaplan_meier(load.output, np.ones(len(load), dtype=np.bool_))
    own = AtAdmission("own", lambda row: shared.curves(row, np.zeros_like(row)))
    policy = POLICIES.get(name)(PolicySettings())
    one, two = run(load, policy, forecasts=shared), run(load, policy, forecasts=own)
    np.testing.assert_array_equal(one.finish_s, two.finish_s)


def test_an_unknown_policy_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="join_shortest_queue"):
        POLICIES.get("nope")


@pytest.mark.parametrize(
    "wrong",
    [
        {"horizon": -1},
        {"horizon": 1.5},
        {"candidates": 0},
        {"max_overtakes": -1},
        {"discount": 0.0},
        {"discount": 1.1},
        {"discount": float("nan")},
        {"prefix_weight": -0.1},
        {"prefix_weight": float("inf")},
        {"prefix_weight": float("nan")},
    ],
)
def test_settings_out_of_bounds_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        PolicySettings(**wrong)  # type: ignore[arg-type]


def test_a_queued_request_counts_four_running_ones() -> None:
    """vLLM's rule, for arrivals of one step: three running on worker 1 outweigh none queued, but not one queued."""
    policy = POLICIES.get("vllm_dp")(PolicySettings())
    state = ClusterState(slots=np.full(2, 9), capacity=np.full(2, UNLIMITED), policy=policy)
    new = np.arange(3)
    state.arrive(new, new, new.astype(float))
    state.apply(Decisions(new, np.ones(3, dtype=np.int64)))
    state.arrive(new, new, new.astype(float))
    for seed in range(9):
        assert policy.decide(state.view(), np.random.default_rng(seed)).worker.tolist()[:2] == [0, 1]


def test_prefix_affinity_follows_the_prefix() -> None:
    policy = POLICIES.get("prefix_affinity")(PolicySettings())
    state = ClusterState(slots=np.full(G, B), capacity=np.full(G, UNLIMITED), policy=policy)

    def send(request: int, blocks: list[int]) -> int:
        state.arrive(np.array([request]), np.array([5]), np.zeros(1), prefix_blocks=[np.array(blocks)])
        decided = policy.decide(state.view(), np.random.default_rng(request))
        state.apply(decided)
        return int(decided.worker[0])

    first = send(0, [1, 2, 3, 4])
    assert send(1, [1, 2, 9, 8]) == first  # half of its blocks have been seen there, though others are idle
    assert send(2, [1, 7, 9, 8]) != first  # a quarter: the shortest queue


def test_prefixes_are_forgotten_with_the_worker_and_with_time() -> None:
    index = PrefixIndex(workers=2, remembered=3)

    def matched(blocks: list[int]) -> list[int]:
        index.arrive(np.array([99]), [np.array(blocks)])
        total, match = index.match(np.array([99]))
        index.forget(np.array([99]))
        assert total.tolist() == [len(blocks)]
        return [int(m) for m in match[0]]

    for request, worker, blocks in ((0, 0, [1, 2]), (1, 1, [1, 3])):
        index.arrive(np.array([request]), [np.array(blocks)])
        index.placed(np.array([request]), np.array([worker]))
    assert matched([1, 2, 7]) == [2, 1]
    assert matched([1, 3]) == [1, 2]
    assert matched([7, 1]) == [0, 0]
    assert matched([]) == [0, 0]
    index.arrive(np.array([2]), [np.array([8])])
    index.placed(np.array([2]), np.array([0]))
    assert len(index) == 3
    assert matched([2]) == [0, 0]  # the least recently used
    index.lose(1)
    assert matched([1, 3]) == [1, 0]


def test_prefix_affinity_leaves_a_queue_that_has_drifted() -> None:
    policy = POLICIES.get("prefix_affinity")(PolicySettings())
    state = ClusterState(slots=np.full(2, 1), capacity=np.full(2, UNLIMITED), policy=policy)
    sent = []
    for k in range(40):
        state.arrive(np.array([k]), np.array([5]), np.zeros(1), prefix_blocks=[np.array([1, 2])])
        decided = policy.decide(state.view(), np.random.default_rng(k))
        state.apply(decided)
        sent.append(int(decided.worker[0]))
    assert sent[:33] == [sent[0]] * 33
    assert sent[33] != sent[0]
