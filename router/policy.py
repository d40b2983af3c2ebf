"""What a routing policy is: it reads a frozen view of the cluster and says which waiting request goes where.

A policy declares what it needs, decides over the whole waiting set at once and changes nothing: what its decisions
do to the cluster is the cluster's business, and randomness comes from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import InputError
from endcast.router.admission.gate import Gate
from endcast.router.olp.settings import OlpSettings
from endcast.survival import Float32Array, FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """What an operator may set, for whichever policy reads it; bounds are checked here.

    ``horizon`` H in decode steps, ≥ 0; ``discount`` γ a step, in (0, 1]; ``candidates`` how many of the oldest waiting
    requests are considered for a slot, ≥ 1; ``max_overtakes`` how many later arrivals may pass a waiting request, ≥ 0;
    ``prefix_weight`` KV tokens of balance that a prompt token counts which another worker's prefix cache would save, ≥ 0, 0
    for fleets without prefix caches;
    ``olp`` the rewards and prices of policies that have them.
    """

    horizon: int = 20
    discount: float = 0.95
    candidates: int = 64
    max_overtakes: int = 1024
    prefix_weight: float = 0.0
    olp: OlpSettings = field(default_factory=OlpSettings)

    def __post_init__(self) -> None:
        for name, least in (("horizon", 0), ("candidates", 1), ("max_overtakes", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(name, f"must be a whole number from {least} on, not {value!r:.60}")
        if not 0.0 <= self.prefix_weight < float("inf"):
            raise InputError("prefix_weight", f"must be a finite number from 0 on, not {self.prefix_weight!r:.60}")
        if not 0.0 < self.discount <= 1.0:
            raise InputError("discount", f"must lie in (0, 1], not {self.discount!r:.60}")


class Outlook(Protocol):
    """What forecasts say beyond the window of ``ForecastView``: worked out when asked for."""

    def expected_output(self, row: IntArray) -> FloatArray:
        """(k,) expected output tokens, capped, of requests that wait in these rows (k,) of the book."""

    def occupancy(self, worker: IntArray, steps: int) -> tuple[FloatArray, FloatArray]:
        """Of what runs on these workers (k,), expected over the next ``steps`` steps (k, steps): requests, KV tokens.

        Column i is the i-th step from now, the one that is about to begin being 0; a request that has generated e
        tokens holds s + e + i + 1 in it.
        """


class Prefixes(Protocol):
    """Which worker has seen what of the requests that wait: worked out when asked for."""

    def match(self, request: IntArray) -> tuple[IntArray, IntArray]:
        """For waiting requests (n,): their leading blocks (n,), and how many of these each worker has seen (n, G)."""


class ForecastView(msgspec.Struct, frozen=True, gc=False):
    """Expected KV loads over the window h = 0 … H; read-only.

    ``load`` (G, H+1): L̂_g(h) of what runs on each worker now, in tokens. ``waiting_load`` (rows, H+1): expected load
    d(h) = (s + h)·P(o > h) of waiting requests; the i-th oldest has row ``waiting_row[i]``. ``outlook`` looks further.
    """

    load: FloatArray
    waiting_load: Float32Array
    waiting_row: IntArray
    outlook: Outlook


class ClusterView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The cluster as it is at the start of a decode step; all arrays are read-only. G workers, n waiting requests.

    A policy must not keep a view: its arrays are the cluster's own and move on with it.
    """

    load: IntArray  #: (G,) KV tokens of what runs, Σ (s + e)
    active: IntArray  #: (G,) running requests
    slots: IntArray  #: (G,) most that may run
    free: IntArray  #: (G,) slots in which something may start: nothing runs there, and nothing preempted waits for the worker
    capacity: IntArray  #: (G,) KV tokens that fit
    speed: FloatArray  #: (G,) how fast each worker reads KV, beside a worker of speed 1
    room: IntArray  #: (G,) KV tokens that the admission rule leaves once every running request has grown by one; a request needs its prompt + 1
    gate: Gate  #: the admission rule for this round: who may start where (``fits``, ``take``)
    accepting: BoolArray  #: (G,) whether new requests may go there
    queued: IntArray  #: (G,) requests in the worker's own queue
    queued_tokens: IntArray  #: (G,) their prompts' tokens
    supposed: IntArray  #: (G,) output tokens supposed of what runs there, from flags (``length_bucket``)
    queued_supposed: IntArray  #: (G,) the same of what is queued there
    running_prompt: IntArray  #: (S,) tokens of what runs in each slot; 0 where nothing does
    running_generated: IntArray  #: (S,) tokens that it has generated; 0 where nothing runs
    running_tenant: IntArray  #: (S,) the caller's number for its tenant; −1 where that is unknown or nothing runs
    now_s: float  #: seconds, on the clock of arrivals; when the latest one arrived if nobody told the time
    steps: int  #: decode steps taken so far
    dispatched: int  #: requests handed to workers so far
    waiting: IntArray  #: (n,) requests that nobody has been given yet, in order of arrival
    waiting_prompt: IntArray  #: (n,) tokens
    waiting_arrival_s: FloatArray  #: (n,) seconds
    waiting_overtaken: IntArray  #: (n,) how many later arrivals have been placed before it; beyond any bound where it comes from a lost worker
    waiting_supposed: IntArray  #: (n,) output tokens supposed of each, from its flags
    waiting_tenant: IntArray  #: (n,) the caller's number for each one's tenant; −1 where that is unknown
    waiting_weight: FloatArray  #: (n,) priority of each: what it counts beside others, > 0
    prefixes: Prefixes | None = None  #: for policies that need prefixes, once any request has told its blocks
    forecast: ForecastView | None = None  #: for policies that need forecasts


class Decisions(msgspec.Struct, frozen=True, gc=False):
    """Placements in the order made: ``position`` (k,) into the view's waiting arrays goes to ``worker`` (k,).

    Each position occurs at most once; a central policy gives a worker at most its free slots. ``refused`` (m,) are
    positions of requests that shall not be served at all: load shedding.
    """

    position: IntArray
    worker: IntArray
    refused: IntArray = msgspec.field(default_factory=lambda: _NONE)


@runtime_checkable
class Policy(Protocol):
    """Decides who goes where. Made from ``PolicySettings`` by the class that the registry names."""

    @property
    def needs_forecast(self) -> bool:
        """Whether the view must carry ``forecast``."""

    @property
    def needs_prefix(self) -> bool:
        """Whether the view must carry ``prefixes``."""

    @property
    def immediate_dispatch(self) -> bool:
        """Whether every arrival goes to a worker's own FIFO queue at once, instead of waiting in the pool."""

    @property
    def horizon(self) -> int:
        """Length H of the window in ``ForecastView``, decode steps; 0 where no forecast is needed."""

    def decide(self, view: ClusterView, rng: np.random.Generator) -> Decisions:
        """Who goes where now. Immediate dispatch places every waiting request; others, those they want to start."""
