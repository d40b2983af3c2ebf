"""What happens when a worker's KV memory runs out: engines throw running requests out and begin them again later.

An engine does this by itself, whatever the router thinks (vLLM: *recompute*). Here, as there, a request that was thrown
out stays with its worker, in front of everything else that waits for it, and goes on when the admission rule has room
for it again: its prompt and the tokens that it has generated are prefilled anew, then it generates the rest. Until then
nothing else starts on that worker. Which request goes is the engine's rule, one of ``VICTIMS``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from endcast.compiled import njit
from endcast.registry import Registry
from endcast.router.entries import NOTHING, PROMPT, REQUEST, SUPPOSED
from endcast.router.slots import Slots
from endcast.survival import IntArray

#: (S,), the slots' ranks: of a worker's requests the one with the largest goes first.
VictimRule = Callable[[Slots], IntArray]

VICTIMS: Registry[VictimRule] = Registry(
    "victim",
    (
        ("newest", "endcast.router.preemption:newest"),
        ("smallest_kv", "endcast.router.preemption:smallest_kv"),
    ),
)


def newest(slots: Slots) -> IntArray:
    """The one that started, or went on, last."""
    return slots.order


def smallest_kv(slots: Slots) -> IntArray:
    """The one with the fewest KV tokens, of equals the newest: least to prefill anew, and least room won."""
    kv: IntArray = slots.entries[PROMPT] + slots.generated
    return slots.order - kv * (int(slots.order.max()) + 1)


def overflowing(slots: Slots, growth: IntArray, capacity: IntArray) -> bool:
    """Whether the ``growth`` (S,) of this step is more than some worker holds."""
    return bool(_overflows(slots.start, slots.entries, growth, slots.load, capacity))


def victims(slots: Slots, growth: IntArray, capacity: IntArray, rule: VictimRule) -> IntArray:
    """The slots (k,) whose requests must go so that everything else can grow, in the order in which they go."""
    chosen: IntArray = _victims(slots.start, slots.entries, slots.generated, growth, slots.load, capacity, rule(slots))
    return chosen


@njit(cache=True)
def _overflows(start: IntArray, entries: IntArray, growth: IntArray, load: IntArray, capacity: IntArray) -> bool:
    for g in range(load.shape[0]):
        room = capacity[g] - load[g]
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                room -= growth[slot]
        if room < 0:
            return True
    return False


@njit(cache=True)
def _victims(
    start: IntArray, entries: IntArray, generated: IntArray, growth: IntArray, load: IntArray, capacity: IntArray,
    rank: IntArray,
) -> IntArray:  # fmt: skip
    chosen, count = np.empty(generated.shape[0], dtype=np.int64), 0
    gone = np.zeros(generated.shape[0], dtype=np.bool_)
    for g in range(load.shape[0]):
        room = capacity[g] - load[g]
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                room -= growth[slot]
        while room < 0:
            victim = -1
            for slot in range(start[g], start[g + 1]):
                if entries[REQUEST, slot] == NOTHING or gone[slot]:
                    continue
                if victim < 0 or rank[slot] > rank[victim]:
                    victim = slot
            room += entries[PROMPT, victim] + generated[victim] + growth[victim]
            gone[victim] = True
            chosen[count] = victim
            count += 1
    return chosen[:count].copy()


class Preempted:
    """Requests that were thrown out, a stack a worker: the last one out is the first to go on.

    Over workers (G,): ``count`` of them, their KV ``tokens``, ``supposed`` output tokens.
    """

    def __init__(self, workers: int) -> None:
        self.count, self.tokens, self.supposed = (np.zeros(workers, dtype=np.int64) for _ in range(3))
        self._waiting: list[deque[tuple[IntArray, int]]] = [deque() for _ in range(workers)]

    def push(self, worker: int, entry: IntArray, generated: int) -> None:
        """One request (6,), thrown out after so many tokens."""
        self._waiting[worker].append((entry, generated))
        self._count(worker, entry, generated, 1)

    def first(self, worker: int) -> tuple[IntArray, int] | None:
        """The request that goes on next there and its tokens generated, if there is one."""
        return self._waiting[worker][-1] if self._waiting[worker] else None

    def pop(self, worker: int) -> tuple[IntArray, int]:
        """Take that one out."""
        entry, generated = self._waiting[worker].pop()
        self._count(worker, entry, generated, -1)
        return entry, generated

    def _count(self, worker: int, entry: IntArray, generated: int, sign: int) -> None:
        self.count[worker] += sign
        self.tokens[worker] += sign * (int(entry[PROMPT]) + generated)
        self.supposed[worker] += sign * int(entry[SUPPOSED])
