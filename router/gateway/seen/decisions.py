"""The latest decisions and why each was made, kept while somebody looks at the live page."""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol, runtime_checkable

import msgspec

from endcast.router.olp.explain import Release, Scarcity
from endcast.router.policy import ClusterView, Decisions, Policy

#: Decisions that are kept.
_KEPT = 100
#: Seconds without a look at the page after which none are noted any more.
_PATIENCE_S = 30.0


@runtime_checkable
class Explains(Protocol):
    """A policy with prices: it can say why it placed a request, and what is scarce."""

    def explain(self, view: ClusterView, decisions: Decisions) -> tuple[Release, ...]:
        """Why each placement of the last ``decide`` was made."""

    def scarce(self) -> tuple[Scarcity, ...]:
        """What is scarce at the prices as they are, the dearest first."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A placement. Loads are KV tokens of the worker and of the heaviest one before it, ``wait_s`` seconds."""

    at: float  #: Unix seconds
    policy: str  #: which policy placed it, and why that one if it is not the pool's own
    worker: int
    prompt_tokens: int
    wait_s: float
    overtaken: int
    load: int
    heaviest: int
    waiting: int  #: requests that waited at that time
    why: str


class DecisionLog:
    """Notes decisions of one pool while it is watched. ``saw`` is called before decisions are carried out."""

    def __init__(self) -> None:
        self.latest: deque[Decision] = deque(maxlen=_KEPT)
        self._watched_until_s = 0.0

    def watch(self) -> None:
        """Somebody looks: note decisions for a while."""
        self._watched_until_s = time.monotonic() + _PATIENCE_S

    def saw(self, view: ClusterView, decisions: Decisions, policy: Policy, name: str) -> None:
        """A round's decisions; costs nothing while nobody looks."""
        if not len(decisions.position) or time.monotonic() > self._watched_until_s:
            return
        load = view.load.copy()
        whys = policy.explain(view, decisions) if isinstance(policy, Explains) else None
        for k, (position, worker) in enumerate(
            zip(decisions.position.tolist(), decisions.worker.tolist(), strict=True)
        ):
            prompt, before, heaviest = int(view.waiting_prompt[position]), int(load[worker]), int(load.max())
            self.latest.append(
                Decision(
                    at=time.time(),
                    policy=name,
                    worker=worker,
                    prompt_tokens=prompt,
                    wait_s=max(float(view.now_s - view.waiting_arrival_s[position]), 0.0),
                    overtaken=int(view.waiting_overtaken[position]),
                    load=before,
                    heaviest=heaviest,
                    waiting=len(view.waiting),
                    why=_by_balance(prompt, before, heaviest) if whys is None else _by_price(whys[k]),
                )
            )
            load[worker] += prompt


def _by_balance(prompt: int, load: int, heaviest: int) -> str:
    """What the placement does to the balance of loads."""
    margin = heaviest - load
    if prompt <= margin:
        return f"fills {prompt} of the {margin} tokens that the worker lacks to the heaviest"
    return f"exceeds the heaviest by {prompt - margin} tokens; {margin} were lacking"


def _by_price(why: Release) -> str:
    parts = " + ".join(f"{name} {value:.3g}" for name, value in why.parts.items())
    balance = "" if why.balance is None else f"; fills {why.balance:.2g} of imbalance"
    other = "" if why.alternative_surplus is None else f"; the next would have had {why.alternative_surplus:.3g}"
    return (
        f"surplus {why.surplus:.3g} = reward {why.reward:.3g} ({parts}) - slot {why.slot_cost:.3g} - KV {why.kv_cost:.3g}"
        f"{balance}{other}"
    )
