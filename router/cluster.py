"""The cluster core: the one mutable picture of a fleet, fed by step events and read through frozen views.

The simulator and the live router keep the same picture. What happens comes in as arrays: arrivals, tokens generated
a slot, ends, workers that come and go. A policy gets a ``ClusterView`` of it, and its decisions are applied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from endcast.errors import InputError, SimulationError
from endcast.router.admission.ends import EndRate
from endcast.router.admission.gate import CLAIMED, LIMIT, OPEN, Gate, admitted, entry_fits, nothing_kept, take_entry
from endcast.router.admission.optimistic import Optimistic
from endcast.router.admission.rule import AdmissionRule, Fleet
from endcast.router.book import ForecastBook
from endcast.router.entries import FIELDS, MAX_TOKENS, NOTHING, PROMPT, REQUEST, ROW, SUPPOSED, TENANT, read_only
from endcast.router.faults import FAULTS
from endcast.router.faults import fault as fault_of
from endcast.router.policy import BoolArray, ClusterView, Decisions, Policy
from endcast.router.pool import OVERTAKEN, Pool
from endcast.router.preemption import Preempted
from endcast.router.prefix import PrefixIndex
from endcast.router.queues import Queues
from endcast.router.slots import Slots
from endcast.survival import NO_CAP, CurveTable, FloatArray, IntArray, SurvivalBatch

#: KV capacity of a worker that never runs out.
UNLIMITED = int(np.iinfo(np.int64).max // 4)


class Started(msgspec.Struct, frozen=True, gc=False):
    """Requests (k,) that start now, and the slots (k,) that they take; those (m,) that were refused."""

    request: IntArray
    slot: IntArray
    refused: IntArray


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Requests (k,) that were with a lost worker, the tokens (k,) that each had generated there, and whether it had
    ``started`` (k,) there at all."""

    request: IntArray
    generated: IntArray
    started: BoolArray


class ClusterState:
    """G workers with ``slots`` (G,) each and KV ``capacity`` (G,) tokens, and the requests in the system.

    A request is an integer ≥ 0 of the caller's choosing; the core hands it back and reads nothing into it. ``policy``
    decides which books are kept: forecasts, prefixes. ``curves`` is the table that all forecasts share, if they do.
    ``admission`` says when there is KV room; unless given, when a request fits now. ``speed`` (G,) > 0 of each worker, all 1
    unless given.
    """

    def __init__(
        self,
        *,
        slots: IntArray,
        capacity: IntArray,
        policy: Policy,
        curves: CurveTable | None = None,
        admission: AdmissionRule | None = None,
        speed: FloatArray | None = None,
    ) -> None:
        if capacity.shape != slots.shape or int(capacity.min()) < 1:
            raise InputError("capacity", "each worker needs room for at least one KV token")
        self.slots = Slots(slots)
        self.pool = Pool()
        self.queues = Queues(len(slots))
        self.preempted = Preempted(len(slots))
        self.bounded = int(capacity.min()) < UNLIMITED
        self._admission = Optimistic(0.0) if admission is None else admission
        self._ends, self._kept = EndRate(), nothing_kept()
        self.capacity = capacity.astype(np.int64)
        self.speed: FloatArray = np.ones(len(slots)) if speed is None else speed
        self.accepting: BoolArray = np.ones(len(slots), dtype=np.bool_)
        self.dispatched, self.steps, self.latest_s = 0, 0, 0.0
        self._free, self._room, self._fitting = self.slots.sizes.copy(), self.capacity.copy(), self.capacity.copy()
        self._queued, self._queued_tokens, self._queued_supposed = (np.zeros(len(slots), np.int64) for _ in range(3))
        self._immediate = policy.immediate_dispatch
        looks = self.bounded and self._admission.needs_forecast
        self.book = (
            ForecastBook(self.slots, policy.horizon, curves, levels=looks) if policy.needs_forecast or looks else None
        )
        self.prefixes = PrefixIndex(len(slots)) if policy.needs_prefix else None
        self._workers_view = self._view_of_workers()

    # ---- events

    def arrive(
        self,
        request: IntArray,
        prompt: IntArray,
        arrival_s: FloatArray,
        *,
        supposed: IntArray | None = None,
        tenant: IntArray | None = None,
        weight: FloatArray | None = None,
        max_tokens: IntArray | None = None,
        forecasts: SurvivalBatch | None = None,
        prefix_blocks: Sequence[IntArray] | None = None,
        front: bool = False,
    ) -> None:
        """Requests (k,) enter the pool, in order of arrival: prompts in tokens, arrival in seconds.

        ``forecasts`` (k rows) where the policy needs them; ``prefix_blocks`` each one's leading blocks; ``supposed``
        (k,) output tokens by its flags; ``tenant`` (k,) numbers ≥ 0 of the caller's choosing, −1 for an unknown one;
        ``weight`` (k,) priorities > 0, 1 where none are given; ``max_tokens`` (k,) own caps on output, or ``NO_CAP``.
        Requests that a lost worker gives back enter in ``front`` and are placed next.
        """
        entries = np.empty((FIELDS, len(request)), dtype=np.int64)
        entries[REQUEST], entries[PROMPT], entries[ROW] = request, prompt, NOTHING
        entries[SUPPOSED] = 0 if supposed is None else supposed
        entries[TENANT] = NOTHING if tenant is None else tenant
        entries[MAX_TOKENS] = NO_CAP if max_tokens is None else max_tokens
        if self.book is not None:
            if forecasts is None or len(forecasts) != len(request):
                raise InputError("forecasts", "the policy needs one for each request that arrives")
            entries[ROW] = self.book.add(forecasts, prompt)
        if self.prefixes is not None and prefix_blocks is not None:
            self.prefixes.arrive(request, prefix_blocks)
        (self.pool.prepend if front else self.pool.append)(entries, arrival_s, 1.0 if weight is None else weight)
        if len(request):
            self.latest_s = max(self.latest_s, float(arrival_s[-1]))

    def stepped(self, tokens: IntArray, ended: IntArray) -> None:
        """The request in each slot has generated ``tokens`` (S,) more; those in the slots ``ended`` (k,) are gone.

        However they ended; a slot that is empty already is passed over.
        """
        self.steps += 1
        if self.bounded:
            self._ends.saw(self.slots, tokens, ended)
        self._advance(tokens, ended)

    def _advance(self, tokens: IntArray, ended: IntArray) -> None:
        rows = self.slots.advance(tokens, ended)
        if self.book is not None:
            self.book.drop(rows)

    def withdrawn(self, position: IntArray) -> IntArray:
        """Clients gave up the waiting requests at ``position`` (k,): the requests."""
        entries = self.pool.remove(position, overtaking=False)
        if self.book is not None:
            self.book.drop(entries[ROW])
        if self.prefixes is not None:
            self.prefixes.forget(entries[REQUEST])
        gone: IntArray = entries[REQUEST]
        return gone

    def preempt(self, slots: IntArray) -> IntArray:
        """Engines threw out what ran in ``slots`` (k,), in this order; it waits in front of its worker's queue.

        Returns the requests that are too large for their worker by now and will never go on: forgotten here.
        """
        worker, gone = self.slots.worker[slots], []
        entries, generated = self.slots.take_out(slots)
        for g, entry, tokens in zip(worker.tolist(), entries.T.copy(), generated.tolist(), strict=True):
            if entry[PROMPT] + tokens < self.capacity[g]:
                self.preempted.push(g, entry, tokens)
                continue
            gone.append(entry[REQUEST])
            if self.book is not None:
                self.book.drop(entry[ROW : ROW + 1])
        return np.array(gone, dtype=np.int64)

    def resume(self, worker: IntArray) -> IntArray:
        """What was thrown out goes on on these workers (k,) as far as it fits: the slots taken."""
        gate, where, found = self.gate(), list[int](), list[tuple[IntArray, int]]()
        left = self.slots.sizes - self.slots.active
        for g in worker.tolist():
            while left[g] > 0 and (first := self.preempted.first(g)) is not None:
                entry, generated = first
                asked = (g, int(entry[PROMPT]), generated, int(entry[MAX_TOKENS]), int(entry[ROW]))
                if not entry_fits(gate, *asked):
                    break
                take_entry(gate, *asked)
                found.append(self.preempted.pop(g))
                where.append(g)
                left[g] -= 1
        if not found:
            return np.zeros(0, dtype=np.int64)
        entries = np.stack([entry for entry, _ in found], axis=1)
        slots = self.slots.occupy(np.array(where), entries, np.array([tokens for _, tokens in found]))
        if self.book is not None:
            self.book.started(slots)
        return slots

    def news(self, slots: IntArray, forecasts: SurvivalBatch) -> None:
        """New forecasts (k rows) of what runs in ``slots`` (k,), made at the tokens generated by now."""
        if self.book is None:
            raise InputError("forecasts", "the policy does not use any")
        self.book.refresh(slots, forecasts)

    def recounted(self, slots: IntArray, prompt: IntArray) -> None:
        """Engines told how many tokens the prompts (k,) of what runs in ``slots`` (k,), distinct, really have."""
        self.slots.recount(slots, prompt)
        if self.book is not None:
            self.book.started(slots)  # load curves are made anew

    def accept(self, worker: int, accepting: bool) -> None:
        """Whether new requests may go to ``worker``; what runs there goes on."""
        self.accepting[worker] = accepting

    def lose(self, worker: int) -> Lost:
        """``worker`` is gone: it accepts nothing more; the requests that ran and queued there, forgotten here."""
        self.accepting[worker] = False
        own = np.arange(self.slots.start[worker], self.slots.start[worker + 1])
        own = own[self.slots.request[own] != NOTHING]
        running, generated = self.slots.request[own], self.slots.generated[own]
        self._advance(np.zeros(len(self.slots), dtype=np.int64), own)
        preempted = [self.preempted.pop(worker) for _ in range(int(self.preempted.count[worker]))]
        free = np.zeros_like(self.capacity)
        free[worker] = UNLIMITED
        _, queued = self.queues.pop_fitting(free, OPEN)
        waiting = np.concatenate([queued[:, :0], *(entry[:, None] for entry, _ in preempted), queued], axis=1)
        if self.book is not None:
            self.book.drop(waiting[ROW])
        if self.prefixes is not None:
            self.prefixes.lose(worker)
        made = [*generated, *(tokens for _, tokens in preempted), *np.zeros(queued.shape[1], dtype=np.int64)]
        started = np.arange(len(made)) < len(running) + len(preempted)
        return Lost(np.concatenate([running, waiting[REQUEST]]), np.array(made, dtype=np.int64), started)

    def go_on(self, before: ClusterState) -> None:
        """Take on what was learned of ends and of time in a state with other workers."""
        self.latest_s, self._ends = before.latest_s, before._ends

    # ---- what a policy sees, and what becomes of what it says

    def gate(self) -> Gate:
        """The admission rule as things are now, for one round."""
        if not self.bounded:
            return OPEN
        waiting, head = self.pool.columns
        curves = None if self.book is None else self.book.curves
        return self._admission.gate(Fleet(self.slots, self.capacity, waiting, head, self._ends, self._kept, curves))

    def _measure(self) -> Gate:
        gate = self.gate()
        np.subtract(self.slots.sizes, self.slots.active, out=self._free)
        np.subtract(self.capacity, self.slots.load, out=self._fitting)
        np.subtract(self._fitting, self.slots.active, out=self._fitting)
        self._room[:] = self._fitting
        if self.bounded:
            self._free[self.preempted.count > 0] = 0
            claims = gate.worker[LIMIT] - gate.worker[CLAIMED]
            np.minimum(self._room, claims, out=self._room, where=self.slots.active > 0)
            np.add(self.queues.count, self.preempted.count, out=self._queued)
            np.add(self.queues.tokens, self.preempted.tokens, out=self._queued_tokens)
            np.add(self.queues.supposed, self.preempted.supposed, out=self._queued_supposed)
        return gate

    def view(self, now_s: float | None = None) -> ClusterView:
        """The cluster as it is now, at ``now_s`` seconds on the clock of arrivals (the latest one's if not given)."""
        gate = self._measure()
        pool = self.pool
        return ClusterView(
            **self._workers_view,
            gate=gate,
            now_s=self.latest_s if now_s is None else now_s,
            steps=self.steps,
            dispatched=self.dispatched,
            waiting=pool.field(REQUEST),
            waiting_prompt=pool.field(PROMPT),
            waiting_arrival_s=pool.arrival_s,
            waiting_overtaken=pool.field(OVERTAKEN),
            waiting_supposed=pool.field(SUPPOSED),
            waiting_tenant=pool.field(TENANT),
            waiting_weight=pool.weight,
            prefixes=self.prefixes if self.prefixes is not None and self.prefixes.told else None,
            forecast=None if self.book is None else self.book.view(pool.field(ROW), self.steps),
        )

    def apply(self, decisions: Decisions) -> Started:
        """Carry out a policy's decisions and, with immediate dispatch, fill free slots from the queues' heads.

        What the admission rule does not let start stays in the pool, whatever the policy says.
        """
        position, worker, refused = decisions.position, decisions.worker, decisions.refused
        gate = self._measure()
        fault = fault_of(
            position, worker, refused, self.pool.field(PROMPT), self._free, self._fitting, self.accepting,
            self._immediate,
        )  # fmt: skip
        if fault:
            raise SimulationError(f"the policy's decisions {FAULTS[fault]}", hint="This is a fault of the policy")
        if self.bounded and not self._immediate:
            kept = admitted(gate, position, worker)
            position, worker = position[kept], worker[kept]
        entries = self.pool.remove(position)
        self.dispatched += len(position)
        if self.prefixes is not None:
            self.prefixes.placed(entries[REQUEST], worker)
        beyond = entries[REQUEST, :0]
        if self._immediate:
            if self.bounded:
                beyond, worker, entries = self._parted(worker, entries)
            self.queues.push(worker, entries)
            worker, entries = self.queues.pop_fitting(self._free, gate)
        slots = self.slots.occupy(worker, entries)
        if self.book is not None:
            self.book.started(slots)
        if len(refused):
            refused = self.withdrawn(refused - np.searchsorted(np.sort(position), refused))
        return Started(entries[REQUEST], slots, np.concatenate([refused, beyond]))

    def _parted(self, worker: IntArray, entries: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Requests that their workers could never hold, forgotten here; workers and entries of the others."""
        never = entries[PROMPT] >= self.capacity[worker]
        if self.book is not None:
            self.book.drop(entries[ROW, never])
        return entries[REQUEST, never], worker[~never], entries[:, ~never]

    def _view_of_workers(self) -> dict[str, Any]:
        return {
            "load": read_only(self.slots.load),
            "active": read_only(self.slots.active),
            "slots": read_only(self.slots.sizes),
            "free": read_only(self._free),
            "capacity": read_only(self.capacity),
            "speed": read_only(self.speed),
            "room": read_only(self._room),
            "accepting": read_only(self.accepting),
            "queued": read_only(self._queued if self.bounded else self.queues.count),
            "queued_tokens": read_only(self._queued_tokens if self.bounded else self.queues.tokens),
            "supposed": read_only(self.slots.supposed),
            "running_prompt": read_only(self.slots.entries[PROMPT]),
            "running_generated": read_only(self.slots.generated),
            "running_tenant": read_only(self.slots.entries[TENANT]),
            "queued_supposed": read_only(self._queued_supposed if self.bounded else self.queues.supposed),
        }
