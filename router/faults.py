"""What can be wrong with a policy's decisions: every round's are checked before they are carried out."""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.policy import BoolArray
from endcast.survival import IntArray

FAULTS = {
    1: "name a waiting request that does not exist",
    2: "name a waiting request twice",
    3: "name a worker that does not exist or accepts nothing",
    4: "give a worker more requests than it has free slots",
    5: "give a worker a request without KV room for it",
}


@njit(cache=True)
def fault(
    position: IntArray, worker: IntArray, refused: IntArray, prompt: IntArray, free: IntArray, room: IntArray,
    accepting: BoolArray, queued: bool,
) -> int:  # fmt: skip
    """0, or what is wrong with decisions, a key of ``FAULTS``: ``position``, ``worker`` (k,) and ``refused`` (m,) of what waits
    with ``prompt`` (n,) tokens, on workers with ``free`` slots and KV ``room`` (G,), which do not count where it is ``queued``."""
    waiting = prompt.shape[0]
    seen = np.zeros(waiting, dtype=np.bool_)
    slots_left, room_left = free.copy(), room.copy()
    for i in range(position.shape[0]):
        p, g = position[i], worker[i]
        if p < 0 or p >= waiting:
            return 1
        if seen[p]:
            return 2
        seen[p] = True
        if g < 0 or g >= free.shape[0] or not accepting[g]:
            return 3
        slots_left[g] -= 1
        room_left[g] -= prompt[p] + 1
        if not queued and slots_left[g] < 0:
            return 4
        if not queued and room_left[g] < 0:
            return 5
    for p in refused:
        if p < 0 or p >= waiting:
            return 1
        if seen[p]:
            return 2
        seen[p] = True
    return 0
