"""Prices against the linear program that they solve, by HiGHS: small instances, every column written out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import linprog

from endcast.router.olp.columns import explicit_column
from endcast.router.olp.dual import Batch, demand, dual_value, improve

STEPS = 24


@dataclass
class Instance:
    """One problem: requests as a batch, what there is, and all of its columns written out."""

    batch: Batch
    slots: np.ndarray  #: (rows,)
    kv: np.ndarray  #: (rows,)
    owner: np.ndarray  #: (m,), each column's request
    matrix: np.ndarray  #: (m, 2, rows, steps)
    reward: np.ndarray  #: (m,)

    @property
    def supply(self) -> np.ndarray:
        """(2, rows, steps)."""
        return np.repeat(np.stack([self.slots, self.kv])[:, :, None], STEPS, axis=2).astype(float)

    @property
    def capacity(self) -> np.ndarray:
        """(2, rows)."""
        return np.stack([self.slots, self.kv]).astype(float)

    @property
    def requests(self) -> int:
        return len(self.batch.prompt)

    def solve(self) -> tuple[float, np.ndarray]:
        """The program's value and its dual prices (2, rows, steps)."""
        once = np.zeros((self.requests, len(self.owner)))
        once[self.owner, np.arange(len(self.owner))] = 1.0
        resources = self.matrix.reshape(len(self.owner), -1).T
        found = linprog(
            -self.reward,
            A_ub=np.concatenate([resources, once]),
            b_ub=np.concatenate([self.supply.ravel(), np.ones(self.requests)]),
            bounds=(0, None),
            method="highs",
        )
        assert found.status == 0
        prices = -found.ineqlin.marginals[: resources.shape[0]]
        return -float(found.fun), prices.reshape(self.supply.shape)

    def costs(self, price: np.ndarray) -> np.ndarray:
        """(m,): aᵀp of every column."""
        costs: np.ndarray = np.einsum("mcrk,crk->m", self.matrix, price)
        return costs


def instance(seed: int, *, rows: int, slots: int, kv_share: float, count: int = 120) -> Instance:
    """Arrivals over the first two thirds of the horizon, any of the next starts, rewards that fall with completion."""
    rng = np.random.default_rng(seed)
    prompt, length = rng.integers(1, 40, count), rng.integers(1, 10, count)
    arrival = rng.integers(0, 2 * STEPS // 3, count)
    start = arrival[:, None] + np.arange(8)
    start = np.where(start + length[:, None] <= STEPS, start, -1)
    worth = rng.uniform(0.5, 1.5, count)
    reward = worth[:, None] * (0.3 + 1.0 / (1.0 + (np.arange(8) + length[:, None]) / 8.0))
    kv = kv_share * slots * float(prompt.mean() + length.mean() / 2.0)
    columns = [
        (
            j,
            explicit_column(rows, STEPS, row=r, prompt=int(prompt[j]), length=int(length[j]), start=int(t)),
            reward[j, c],
        )
        for j in range(count)
        for c, t in enumerate(start[j])
        if t >= 0
        for r in range(rows)
    ]
    return Instance(
        batch=Batch(prompt, length, start, reward),
        slots=np.full(rows, slots),
        kv=np.full(rows, kv),
        owner=np.array([j for j, _, _ in columns]),
        matrix=np.array([column for _, column, _ in columns]),
        reward=np.array([value for _, _, value in columns]),
    )


def priced(problem: Instance, *, rounds: int = 6000, size: float = 0.3) -> np.ndarray:
    """Prices by projected steps from 0 on the whole of the requests, averaged over the second half; η falls as 1/√t."""
    price, mean = np.zeros(problem.supply.shape), np.zeros(problem.supply.shape)
    kv_unit = float(problem.batch.prompt.mean() + problem.batch.length.mean() / 2.0)
    for t in range(rounds):
        improve(
            price,
            problem.batch,
            requests=problem.requests,
            supply=problem.supply,
            capacity=problem.capacity,
            step_size=size / np.sqrt(1.0 + t / 50.0),
            kv_unit=kv_unit,
        )
        if t >= rounds // 2:
            mean += price / (rounds - rounds // 2)
    return mean


CASES = [
    pytest.param({"rows": 1, "slots": 6, "kv_share": 9.0}, id="slots bind"),
    pytest.param({"rows": 1, "slots": 40, "kv_share": 0.15}, id="KV binds"),
    pytest.param({"rows": 2, "slots": 4, "kv_share": 0.9}, id="both bind, two workers"),
]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_prices_solve_the_dual(kind: dict[str, float], seed: int) -> None:
    """Weak duality bounds the objective from below. Not compared: single prices, which are degenerate."""
    problem = instance(seed, **kind)  # type: ignore[arg-type]
    value, lp_price = problem.solve()
    price = priced(problem)
    ours = dual_value(price, problem.batch, requests=problem.requests, supply=problem.supply)
    assert value * (1.0 - 1e-9) <= ours <= 1.01 * value
    assert np.corrcoef(problem.costs(price), problem.costs(lp_price))[0, 1] >= 0.98


def test_without_prices_the_dual_is_far_off() -> None:
    """So that the test above can fail: at price 0 the objective is what everybody together would like to earn."""
    problem = instance(0, rows=1, slots=6, kv_share=9.0)
    value, _ = problem.solve()
    nothing = np.zeros(problem.supply.shape)
    assert dual_value(nothing, problem.batch, requests=problem.requests, supply=problem.supply) > 1.2 * value


def test_identical_workers_may_share_a_row() -> None:
    """Two workers' program, priced by one row with the supply of both: the sum bounds each one's, within 2 %."""
    two, one = (instance(0, rows=2, slots=4, kv_share=0.9), instance(0, rows=1, slots=8, kv_share=0.9))
    np.testing.assert_array_equal(two.batch.reward, one.batch.reward)
    np.testing.assert_allclose(two.kv.sum(), one.kv.sum())
    value, lp_price = two.solve()
    shared = priced(one)
    ours = dual_value(shared, one.batch, requests=one.requests, supply=one.supply)
    assert value * (1.0 - 1e-9) <= ours <= 1.02 * value
    assert np.corrcoef(two.costs(np.repeat(shared, 2, axis=1)), two.costs(lp_price))[0, 1] >= 0.95


def test_small_batches_and_short_steps_will_do() -> None:
    """As a router updates: a dozen requests a step, η = 0.05, from prices as they were. Afterwards within a tenth."""
    problem, rng = instance(2, rows=1, slots=6, kv_share=0.9), np.random.default_rng(0)
    value, lp_price = problem.solve()
    price, whole = np.zeros(problem.supply.shape), problem.batch
    kv_unit = float(whole.prompt.mean() + whole.length.mean() / 2.0)
    found = []
    for t in range(3000):
        few = rng.integers(problem.requests, size=12)
        improve(
            price,
            Batch(whole.prompt[few], whole.length[few], whole.start[few], whole.reward[few]),
            requests=problem.requests,
            supply=problem.supply,
            capacity=problem.capacity,
            step_size=0.05,
            kv_unit=kv_unit,
        )
        if t >= 1000 and t % 100 == 0:
            found.append(dual_value(price, whole, requests=problem.requests, supply=problem.supply) / value)
            assert np.corrcoef(problem.costs(price), problem.costs(lp_price))[0, 1] > 0.9
    assert min(found) >= 1.0 - 1e-9
    assert np.mean(found) < 1.1


def test_what_columns_take_is_what_the_matrix_says() -> None:
    """The demand of a batch is Σ a of its best columns over its size, by brute force over the matrix."""
    problem = instance(3, rows=2, slots=4, kv_share=0.9)
    rng = np.random.default_rng(1)
    price = rng.uniform(0.0, 0.05, problem.supply.shape)
    price[1] /= 20.0
    surplus = problem.reward - problem.costs(price)
    slow, total = np.zeros(problem.supply.shape), 0.0
    for j in range(problem.requests):
        own = np.flatnonzero(problem.owner == j)
        best = own[np.argmax(surplus[own])]
        if surplus[best] > 0.0:
            slow += problem.matrix[best] / problem.requests
            total += surplus[best] / problem.requests
    batch = problem.batch
    taken, mean = demand(price, batch.prompt, batch.length, batch.start, batch.reward)
    np.testing.assert_allclose(taken, slow, atol=1e-9)
    assert mean == pytest.approx(total)
