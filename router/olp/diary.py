"""A diary of a simulated fleet: now and then, what was scarce and why requests were started, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from endcast.errors import SimulationError
from endcast.router.forecasts import ForecastSource
from endcast.router.olp.explain import Release, Scarcity
from endcast.router.policies import POLICIES
from endcast.router.policy import ClusterView, Decisions, Policy, PolicySettings
from endcast.router.simulator import SimulationSettings, simulate_policy
from endcast.router.workload import Workload


@runtime_checkable
class Explains(Protocol):
    """A policy that orders by surplus and can say why."""

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last ``decide`` was made."""

    def scarce(self) -> tuple[Scarcity, ...]:
        """Which resources are scarce, the dearest first."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One routing round at ``now_s`` seconds: ``waiting`` requests before it, ``started`` in it and ``refused``."""

    now_s: float
    dispatched: int
    waiting: int
    started: int
    refused: int
    scarce: tuple[Scarcity, ...]
    releases: tuple[Release, ...]

    def lines(self) -> list[str]:
        """In words."""
        refused = f", {self.refused} refused" if self.refused else ""
        head = f"at {self.now_s:,.1f} s, {self.dispatched:,} requests started so far, {self.waiting:,} waiting"
        return [
            f"{head}, {self.started} start now{refused}",
            *(f"  {scarcity}" for scarcity in self.scarce or ("nothing is scarce",)),
            *(f"  {release}" for release in self.releases),
        ]

    def to_json(self) -> dict[str, Any]:
        """As an object."""
        return asdict(self)


class _Writing:
    """Another policy, of which a round is written down whenever so many more requests have been started."""

    def __init__(self, inner: Policy, every: int, releases: int, entries: list[Entry]) -> None:
        self._inner, self._every, self._releases, self._entries = inner, every, releases, entries
        self._next = every
        self.needs_forecast, self.needs_prefix = inner.needs_forecast, inner.needs_prefix
        self.immediate_dispatch, self.horizon = inner.immediate_dispatch, inner.horizon

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        decided = self._inner.decide(view, rng)
        if view.dispatched >= self._next and len(decided.position):
            self._next += self._every
            assert isinstance(self._inner, Explains)
            self._entries.append(
                Entry(
                    now_s=view.now_s,
                    dispatched=view.dispatched,
                    waiting=len(view.waiting),
                    started=len(decided.position),
                    refused=len(decided.refused),
                    scarce=self._inner.scarce(),
                    releases=self._inner.explain(view, decided)[: self._releases],
                )
            )
        return decided


def diary(
    workload: Workload,
    settings: SimulationSettings,
    *,
    policy: str,
    forecast: ForecastSource,
    moments: int,
    releases: int = 3,
) -> Sequence[Entry]:
    """Play the first seed once, and write down about ``moments`` rounds, evenly over the requests started, with the first
    ``releases`` reasons of each. ``SimulationError`` if the policy gives no reasons."""
    make, entries = POLICIES.get(policy), list[Entry]()
    if not hasattr(make, "explain"):
        known = [name for name in POLICIES if hasattr(POLICIES.get(name), "explain")]
        raise SimulationError(f"{policy} gives no reasons", hint=f"Policies that do: {', '.join(known)}")

    def writing(chosen: PolicySettings) -> Policy:
        entries.clear()  # of the few requests that the simulator compiles its kernels with
        return _Writing(make(chosen), max(len(workload) // (moments + 1), 1), releases, entries)

    simulate_policy(workload, replace(settings, seeds=1), policy, writing, forecast)
    return entries
