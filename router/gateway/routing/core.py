"""The routing core as a Python object, for whoever has a proxy of their own: events go in, placements come out.

It does no I/O, owns no clock and starts no task. ``open`` a request, tell what its stream says (``on_prompt``,
``on_tokens``, ``on_text``) and its end (``on_end``), and ask ``decide`` for placements once a step or when something
waits. The books are the simulator's ``ClusterState``; policies are those of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from endcast.errors import SimulationError
from endcast.router.admission import admission_rule
from endcast.router.cluster import ClusterState, Started
from endcast.router.gateway.config import Pool, Worker, workers_of
from endcast.router.gateway.forecasts.desk import Desk
from endcast.router.gateway.routing.beats import Beats
from endcast.router.gateway.routing.entering import enter, enter_all
from endcast.router.gateway.routing.step import Step
from endcast.router.gateway.routing.wide import Holds
from endcast.router.gateway.tickets import ARRIVING, AWAY, GONE, NOWHERE, RUNNING, WAITING, Intake, Phase, Ticket
from endcast.router.policies import POLICIES
from endcast.router.policy import ClusterView, Decisions, Policy
from endcast.survival import IntArray, SurvivalBatch
from endcast.types import EndReason

#: Gets the view, the decisions, the policy that made them, and its name with why it was that one.
Witness = Callable[[ClusterView, Decisions, Policy, str], None]
#: The number of the first entry. What engines gave back enters in front, under numbers below it.
_FIRST = 1 << 40


class RoutingCore:
    """The books of one pool of workers, and its policy."""

    def __init__(self, pool: Pool, *, desk: Desk | None = None, rng: np.random.Generator | None = None) -> None:
        """``desk`` makes forecasts and must be given where ``pool.needs_forecasts``; ``rng`` breaks ties."""
        self._rng = np.random.default_rng() if rng is None else rng
        self._keys = 0
        self._numbers, self._fronts = count(_FIRST), count(_FIRST - 1, -1)  # of entries: they rise in the pool's order
        self.tickets: set[Ticket] = set()  #: of all requests that have not ended
        self.waiting = 0  #: requests arriving or waiting
        self.running = 0  #: requests placed
        self.late_forecasts = 0  #: rounds that ran as BR-0 for want of forecasts
        self.rounds = 0
        self.failed_rounds = 0  #: rounds whose policy made impossible decisions; they ran as BR-0
        self.problem = ""  #: what was wrong with the last of them
        self.witness: Witness | None = None  #: told of each round's decisions before they are carried out
        self._set_up(pool, workers_of(pool), desk)

    def _set_up(self, pool: Pool, workers: Sequence[Worker], desk: Desk | None) -> None:
        """Empty books for ``workers``, and the pool's policy."""
        self.workers = workers
        self.policy_name, self.settings = pool.policy, pool.policy_settings()
        self.policy = POLICIES.get(pool.policy)(self.settings)
        self.fallback = POLICIES.get("br_0")(self.settings)
        self.desk = desk
        self.cluster = ClusterState(
            slots=np.array([worker.slots for worker in self.workers]),
            capacity=np.array([worker.kv_capacity for worker in self.workers]),
            policy=self.policy,
            admission=admission_rule(pool.admission),
        )
        self.beats = Beats(len(self.cluster.slots))
        self._step = Step(self.cluster)
        self._arriving: list[Ticket] = []
        self._entries: dict[int, tuple[Ticket, int]] = {}  # what is in the cluster, by number: whose, which answer
        self._queued = 0  # entries in workers' own queues
        self._heard = False  # tokens since the last round
        self._holds = Holds(self.cluster)

    @property
    def reads(self) -> bool:
        """Whether forecasts are made from outputs: texts are wanted, and a round each step."""
        return self.desk is not None and self.desk.reads

    # ---- events

    def open(self, intake: Intake) -> Ticket:
        """A request arrived. It waits from now on; ``on_end`` must be called for it, whatever happens."""
        self._keys += 1
        ticket = Ticket(self._keys, intake)
        self.tickets.add(ticket)
        self._expect(ticket)
        return ticket

    def on_prompt(self, ticket: Ticket, tokens: int) -> None:
        """The engine told how many tokens the prompt has; until then it was an estimate."""
        if ticket.phase is not RUNNING or tokens == ticket.prompt:
            return
        ticket.prompt = tokens
        if ticket.slots[0] != NOWHERE:
            self._step.prompt(ticket.slots[0], ticket.to_prefill)

    def on_tokens(self, ticket: Ticket, generated: int, now_s: float, answer: int = 0, events: int = 1) -> bool:
        """``answer`` of the request has ``generated`` tokens by now, all told; whether that opens a new decode step.

        ``events`` of its stream told so at once: more than one where the stream was read late.
        """
        if ticket.phase is not RUNNING or not 0 <= answer < len(ticket.generated):
            return False
        more = generated - ticket.generated[answer]
        if more <= 0:
            return False
        ticket.generated[answer] = generated
        slot = ticket.slots[answer]
        if slot == NOWHERE:
            return False
        new = self.beats.hear(slot, more / events, now_s)
        if new:
            self._step.close()
        self._step.tokens[slot] += more
        self._heard = True
        return new

    def on_text(self, ticket: Ticket, text: str) -> None:
        """The first answer went on with ``text``; read by forecasters that read outputs."""
        if self.desk is not None and ticket.phase is RUNNING:
            self.desk.text(ticket, text)

    def on_answer_end(self, ticket: Ticket, answer: int) -> None:
        """One of several answers ended: its slot is free. The first one's holds the prompt, and is kept to the end."""
        if ticket.phase is RUNNING and 0 < answer < len(ticket.slots):
            self._leave(ticket.slots[answer])
            ticket.slots[answer] = NOWHERE

    def on_end(
        self,
        ticket: Ticket,
        end: EndReason = EndReason.STOP,
        *,
        output_tokens: int | None = None,
        finished_s: float | None = None,
    ) -> None:
        """The request is over, however, and all that it held is free; a second call does nothing. ``output_tokens`` of its
        first answer, where its stream did not tell; ``finished_s`` on the clock of requests."""
        if ticket.phase is GONE:
            return
        self._take_back(ticket)
        ticket.phase = GONE
        self.tickets.discard(ticket)
        if self.desk is not None:
            self.desk.close(ticket, end, ticket.generated[0] if output_tokens is None else output_tokens, finished_s)

    def give_back(self, ticket: Ticket, generated: int) -> None:
        """The engine gave it back (one answer) before its end: it holds nothing until ``again``, then also these tokens' KV."""
        if ticket.phase is RUNNING:
            self._take_back(ticket)
            ticket.phase, ticket.worker, ticket.generated = AWAY, NOWHERE, [generated]
            ticket.carried = generated

    def again(self, ticket: Ticket) -> None:
        """The worker failed before it answered: the request waits again, last; or it gave it back: then it is next."""
        if ticket.phase is not RUNNING and ticket.phase is not AWAY:
            return
        self._take_back(ticket)
        ticket.phase, ticket.worker = ARRIVING, NOWHERE
        ticket.generated = [ticket.carried] + [0] * (ticket.intake.width - 1)
        ticket.overtaken = 0
        self._expect(ticket)

    def accept(self, worker: int, accepting: bool) -> None:
        """Whether new requests may go to ``worker``; its books are kept."""
        self._holds.accept(worker, accepting)

    # ---- placements

    def decide(self, now_s: float) -> list[Ticket]:
        """One routing round: the requests that were placed (``ticket.worker``), in that order, and those that the policy
        refuses to serve at all (``Phase.REFUSED``)."""
        self._take_in(now_s)
        self._step.close()
        self._step.carry_out_withdrawals()
        placed = self._held_that_fit(now_s)
        if len(self.cluster.pool) == 0 and not self._queued:
            return placed
        if not self.policy.immediate_dispatch and not self._any_free() and not self._heard:
            return placed
        self._heard = False
        self.rounds += 1
        policy, name = self.policy, self.policy_name
        if self.desk is not None and not self.desk.healthy:
            policy, name = self.fallback, "br_0: no forecasts"
            self.late_forecasts += 1
        view = self.cluster.view(now_s)
        try:
            return placed + self._carry_out(policy, name, view, now_s)
        except SimulationError as error:  # nothing was changed by it
            self.failed_rounds += 1
            self.problem = str(error)
            return placed + self._carry_out(self.fallback, "br_0: policy failed", view, now_s)

    def _carry_out(self, policy: Policy, name: str, view: ClusterView, now_s: float) -> list[Ticket]:
        decisions = policy.decide(view, self._rng)
        if self._holds.any_wide and not self.policy.immediate_dispatch:
            decisions = self._holds.fitting(decisions, lambda number: self._entries[number][0])
        if self.witness is not None:
            self.witness(view, decisions, policy, name)
        return self._apply(decisions, name, now_s)

    def load(self) -> IntArray:
        """(G,) KV tokens on each worker, all events so far included."""
        self._step.close()
        return self.cluster.slots.load.copy()

    def active(self) -> IntArray:
        """(G,) slots taken on each worker, all events so far included."""
        self._step.close()
        return self.cluster.slots.active.copy()

    def prefix_blocks(self) -> dict[str, int]:
        """Prefix blocks of the requests placed, and how many of them their workers had seen; nothing unless the policy looks."""
        known = self.cluster.prefixes
        return {} if known is None else {"placed": known.placed_blocks, "seen": known.hit_blocks}

    # ---- books

    def _any_free(self) -> bool:
        slots = self.cluster.slots
        return bool(((slots.active < slots.sizes) & self.cluster.accepting).any())

    def _take_in(self, now_s: float) -> None:
        """Arrivals whose forecasts are there go into the pool; news of running ones to the book."""
        if self.desk is None:
            if self._arriving:
                arriving, self._arriving = self._arriving, []
                self._arrive([ticket for ticket in arriving if ticket.phase is ARRIVING], None, now_s)
            return
        self.desk.pump(now_s)
        for tickets, forecasts in self.desk.admitted():
            kept = [i for i, ticket in enumerate(tickets) if ticket.phase is ARRIVING]
            self._arrive([tickets[i] for i in kept], forecasts.take(np.array(kept, dtype=np.int64)), now_s)
        for tickets, made_at, forecasts in self.desk.news():
            self._take_news(tickets, made_at, forecasts)

    def _arrive(self, tickets: list[Ticket], forecasts: SurvivalBatch | None, now_s: float) -> None:
        if not tickets:
            return
        for i, ticket in enumerate(tickets):
            ticket.phase, ticket.number = WAITING, next(self._fronts if ticket.carried else self._numbers)
            ticket.arrived_s = ticket.arrived_s if ticket.carried else now_s
            self._entries[ticket.number] = (ticket, 0)
            if ticket.intake.width > 1:
                self._holds.wide += 1
                ticket.forecast = None if forecasts is None else forecasts.take(np.array([i]))
        enter_all(self.cluster, tickets, forecasts)

    def _take_news(self, tickets: list[Ticket], made_at: IntArray, forecasts: SurvivalBatch) -> None:
        """New forecasts, made when each had generated ``made_at`` (n,) tokens; some have gone on since."""
        self._step.close()
        kept = [i for i, t in enumerate(tickets) if t.phase is RUNNING and t.slots[0] != NOWHERE]
        if not kept:
            return
        slots = np.array([tickets[i].slots[0] for i in kept])
        since = np.maximum(np.array([tickets[i].generated[0] for i in kept]) - made_at[kept], 0)
        self.cluster.news(slots, forecasts.take(np.array(kept)).advance(since))

    def _expect(self, ticket: Ticket) -> None:
        """It waits from now on, first for its forecast."""
        self.waiting += 1
        if self.desk is not None:
            self.desk.open(ticket)
        else:
            self._arriving.append(ticket)

    def _take_back(self, ticket: Ticket) -> None:
        """Whatever ``ticket`` holds or waits for is given up."""
        if ticket.phase is RUNNING:
            self.running -= 1
            for slot in ticket.slots:
                self._leave(slot)
            ticket.slots, ticket.companions = [], ()
            return
        self.waiting -= ticket.phase is not AWAY
        if ticket.phase is not WAITING:
            return
        self._holds.forget(ticket)
        if not self.policy.immediate_dispatch:
            del self._entries[ticket.number]
            self._step.withdraw(ticket.number)
        # else it is in a worker's queue, where nobody can reach it: it ends the moment it comes up

    def _leave(self, slot: int) -> None:
        if slot == NOWHERE:
            return
        self._step.end(slot)
        self.beats.vacate(slot)

    def _held_that_fit(self, now_s: float) -> list[Ticket]:
        placed: list[Ticket] = []
        for decisions in self._holds.ready():
            placed += self._apply(decisions, f"{self.policy_name}: slots held for several answers", now_s)
        return placed

    def _apply(self, decisions: Decisions, reason: str, now_s: float) -> list[Ticket]:
        before = len(self.cluster.pool)
        started = self.cluster.apply(decisions)
        if self.policy.immediate_dispatch:
            self._queued += before - len(self.cluster.pool) - len(started.request) - len(started.refused)
        return self._started(started, reason, now_s)

    def _started(self, started: Started, reason: str, now_s: float) -> list[Ticket]:
        placed: list[Ticket] = []
        for number, slot in zip(started.request.tolist(), started.slot.tolist(), strict=True):
            ticket, answer = self._entries.pop(number)
            if ticket.phase is GONE or (answer and number not in ticket.companions):
                self._step.end(slot)  # it was given up in a worker's queue
                continue
            if answer:
                ticket.slots[answer] = slot
                continue
            self._holds.forget(ticket)
            ticket.phase, ticket.worker = RUNNING, int(self.cluster.slots.worker[slot])
            ticket.slots = [slot] + [NOWHERE] * (ticket.intake.width - 1)
            ticket.reason, ticket.placed_s = reason, now_s
            self.waiting -= 1
            self.running += 1
            placed.append(ticket)
        more = [other for ticket in placed if ticket.intake.width > 1 for other in self._companions(ticket, now_s)]
        return placed + more + [self._refuse(number) for number in started.refused.tolist()]

    def _refuse(self, number: int) -> Ticket:
        ticket, _ = self._entries.pop(number)
        self._holds.forget(ticket)
        ticket.phase = Phase.REFUSED
        return ticket

    def _companions(self, ticket: Ticket, now_s: float) -> list[Ticket]:
        """The other answers of a request that was placed take slots of the same worker; they share its prompt's KV.

        Returns what else that let start. Answers without room are left to the engine's own queue.
        """
        cluster, worker = self.cluster, ticket.worker
        more = min(ticket.intake.width, int(cluster.slots.sizes[worker])) - 1
        if not self.policy.immediate_dispatch:
            room = cluster.capacity[worker] - cluster.slots.load[worker] - cluster.slots.active[worker]
            more = max(0, min(more, int(room), int(cluster.slots.sizes[worker] - cluster.slots.active[worker])))
        if more == 0:
            return []
        forecasts = None if ticket.forecast is None else ticket.forecast.take(np.zeros(more, dtype=np.int64))
        ticket.companions = [next(self._numbers) for _ in range(more)]
        first = len(cluster.pool)
        enter(cluster, ticket.companions, [0] * more, [ticket] * more, np.full(more, now_s), forecasts)
        self._entries |= {number: (ticket, answer) for answer, number in enumerate(ticket.companions, start=1)}
        with self._holds.opened(worker):
            own = Decisions(np.arange(first, first + more), np.full(more, worker))
            others = self._apply(own, ticket.reason, now_s)
        left = np.arange(first, len(cluster.pool))
        for number in cluster.withdrawn(left).tolist() if len(left) else ():
            del self._entries[number]
        return others
