"""One decode step of all workers: how long it takes, who makes tokens, and who ends."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, REQUEST
from endcast.router.record import BALANCED_S, BASE_S, BUSY, END_S, IDEAL, LOAD, STEP_S, STEPS, TOKENS
from endcast.survival import FloatArray, IntArray


@njit(cache=True)
def decode_step(
    entries: IntArray, active: IntArray, load: IntArray, speed: FloatArray, power: float, drawn: IntArray,
    left: IntArray, finish_s: FloatArray, ready_s: FloatArray, tokens: IntArray, now: float, step_time: FloatArray,
    counted: bool, sums: FloatArray,
) -> tuple[float, IntArray]:  # fmt: skip
    """Seconds that this step takes and the slots (k,) whose requests end with it.

    ``speed`` (G,) of each worker, ``power`` their sum over those that are there; ``drawn`` (S,) tokens that a slot may
    make. ``left`` (S,) tokens that each slot still has to make, lowered by the ``tokens`` (S,) that it makes: as many as
    were drawn and are left, none before ``ready_s`` (S,). ``finish_s`` (n,) and ``sums`` are added to.
    """
    workers, batch, heaviest, total, running = active.shape[0], 0.0, 0.0, 0, 0
    for g in range(workers):
        batch, heaviest = max(batch, active[g] / speed[g]), max(heaviest, load[g] / speed[g])
        total, running = total + load[g], running + active[g]
    base = step_time[0] + step_time[1] * batch
    step_s = base + step_time[2] * heaviest
    if counted:
        sums[STEPS] += 1
        sums[STEP_S] += step_s
        sums[END_S] = now + step_s
        sums[BASE_S] += base
        sums[BALANCED_S] += base + step_time[2] * total / power
        sums[IDEAL] += power * heaviest
        sums[LOAD] += total
    ended, count, busy, made = np.empty(running, dtype=np.int64), 0, 0, 0
    for slot in range(left.shape[0]):
        tokens[slot] = min(drawn[slot], left[slot]) if ready_s[slot] <= now else 0
        if entries[REQUEST, slot] != NOTHING and tokens[slot] > 0:
            busy += 1
            made += tokens[slot]
            left[slot] -= tokens[slot]
            if left[slot] == 0:
                finish_s[entries[REQUEST, slot]] = now + step_s
                ended[count] = slot
                count += 1
    if counted:
        sums[TOKENS] += made
        sums[BUSY] += busy
    return step_s, ended[:count].copy()
