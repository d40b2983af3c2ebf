"""What runs where: the slots of all workers as flat arrays, and what each worker holds in total.

Worker g owns the slots ``start[g] … start[g+1]``. Its free slots are kept as a stack at the beginning of an array of
the same layout, so that taking and freeing a slot costs O(1).
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.errors import InputError
from endcast.router.entries import FIELDS, MAX_TOKENS, NOTHING, PROMPT, REQUEST, ROW, SUPPOSED, TENANT
from endcast.survival import IntArray


class Slots:
    """Running requests: ``entries`` (6, S), ``generated`` (S,) tokens and ``order`` (S,) of starting over slots;
    ``worker`` (S,) owns each slot.

    Over workers (G,): ``active`` requests, ``load`` = Σ (prompt + generated) KV tokens, ``supposed`` output tokens.
    """

    def __init__(self, sizes: IntArray) -> None:
        if sizes.ndim != 1 or len(sizes) == 0 or int(sizes.min()) < 1:
            raise InputError("slots", "each of at least one worker needs at least one slot")
        self.sizes = sizes.astype(np.int64)
        self.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])
        total, workers = int(self.start[-1]), len(sizes)
        self.worker = np.repeat(np.arange(workers), self.sizes)
        self.entries = np.zeros((FIELDS, total), dtype=np.int64)
        self.entries[REQUEST], self.entries[ROW], self.entries[TENANT] = NOTHING, NOTHING, NOTHING
        self.generated, self.order = (np.zeros(total, dtype=np.int64) for _ in range(2))
        self._started = 0
        self.active, self.load, self.supposed = (np.zeros(workers, dtype=np.int64) for _ in range(3))
        self._free = np.concatenate([np.arange(self.start[g + 1] - 1, self.start[g] - 1, -1) for g in range(workers)])

    def __len__(self) -> int:
        return len(self.generated)

    @property
    def request(self) -> IntArray:
        """(S,), what runs in each slot, or ``NOTHING``."""
        request: IntArray = self.entries[REQUEST]
        return request

    def occupy(self, worker: IntArray, entries: IntArray, generated: IntArray | None = None) -> IntArray:
        """Start requests (6, k) on workers (k,), which must have that many free slots; the slots taken (k,).

        ``generated`` (k,) tokens that they have already, none unless given.
        """
        taken: IntArray = _occupy(
            worker, entries, self.start, self._free, self.entries, self.active, self.load, self.supposed,
            self.order, self._started,
        )  # fmt: skip
        self._started += len(taken)
        if generated is not None:
            self.generated[taken] = generated
            np.add.at(self.load, worker, generated)
        return taken

    def recount(self, slots: IntArray, prompt: IntArray) -> None:
        """What runs in these slots (k,), distinct, turned out to have prompts of so many tokens (k,)."""
        np.add.at(self.load, self.worker[slots], prompt - self.entries[PROMPT, slots])
        self.entries[PROMPT, slots] = prompt

    def take_out(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Stop what runs in these slots (k,): entries (6, k), and tokens generated (k,)."""
        entries, generated = self.entries[:, slots], self.generated[slots]
        self.advance(np.zeros_like(self.generated), slots)
        return entries, generated

    def advance(self, tokens: IntArray, ended: IntArray) -> IntArray:
        """Every occupied slot has generated ``tokens`` (S,) more, and what ran in ``ended`` (k,) is gone.

        Returns the rows of forecasts that those held. Ending an empty slot does nothing.
        """
        rows: IntArray = _advance(
            tokens, ended, self.start, self.worker, self._free, self.entries, self.generated,
            self.active, self.load, self.supposed,
        )  # fmt: skip
        return rows

    def reached(self, tokens: IntArray, every: int) -> IntArray:
        """Slots (k,) whose requests reached or passed a multiple of ``every`` tokens with the last ``tokens`` (S,)."""
        slots: IntArray = _reached(self.entries[REQUEST], self.generated, tokens, every)
        return slots


@njit(cache=True)
def _reached(request: IntArray, generated: IntArray, tokens: IntArray, every: int) -> IntArray:
    slots, count = np.empty(len(request), dtype=np.int64), 0
    for slot in range(request.shape[0]):
        if request[slot] != NOTHING and generated[slot] // every > (generated[slot] - tokens[slot]) // every:
            slots[count] = slot
            count += 1
    return slots[:count].copy()


@njit(cache=True)
def _occupy(
    worker: IntArray, entries: IntArray, start: IntArray, free: IntArray, slot_entries: IntArray, active: IntArray,
    load: IntArray, supposed: IntArray, order: IntArray, started: int,
) -> IntArray:  # fmt: skip
    taken = np.empty(worker.shape[0], dtype=np.int64)
    for i in range(worker.shape[0]):
        g = worker[i]
        slot = free[start[g + 1] - 1 - active[g]]
        taken[i] = slot
        order[slot] = started + i
        for c in range(FIELDS):
            slot_entries[c, slot] = entries[c, i]
        active[g] += 1
        load[g] += entries[PROMPT, i]
        supposed[g] += entries[SUPPOSED, i]
    return taken


@njit(cache=True)
def _advance(
    tokens: IntArray, ended: IntArray, start: IntArray, worker: IntArray, free: IntArray, entries: IntArray,
    generated: IntArray, active: IntArray, load: IntArray, supposed: IntArray,
) -> IntArray:  # fmt: skip
    for g in range(active.shape[0]):
        grown = 0
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                generated[slot] += tokens[slot]
                grown += tokens[slot]
        load[g] += grown
    rows, count = np.empty(ended.shape[0], dtype=np.int64), 0
    for i in range(ended.shape[0]):
        slot = ended[i]
        if entries[REQUEST, slot] == NOTHING:
            continue
        g = worker[slot]
        active[g] -= 1
        free[start[g + 1] - 1 - active[g]] = slot
        load[g] -= entries[PROMPT, slot] + generated[slot]
        supposed[g] -= entries[SUPPOSED, slot]
        rows[count] = entries[ROW, slot]
        count += 1
        entries[REQUEST, slot], entries[ROW, slot], entries[TENANT, slot] = NOTHING, NOTHING, NOTHING
        entries[PROMPT, slot], entries[SUPPOSED, slot], entries[MAX_TOKENS, slot], generated[slot] = 0, 0, 0, 0
    return rows[:count]
