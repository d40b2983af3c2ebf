"""Whether a request may start on a worker, as far as KV memory goes: one test for every policy, queue and rule.

A worker's KV grows by a token for every running request in every step. So what fits now may not fit later, and an engine
whose memory runs out throws requests out and begins them again. An admission rule says how careful to be. Whatever it
says, three things hold:

- what starts must fit now: used + s + 1 ≤ C, where used = Σ (s + e + 1) over what runs, since each grows in this step;
- an empty worker takes any request that fits it, or nothing would ever run;
- what was placed in this round counts like what runs.

Beyond that a rule has three means. *Claims*: each request claims tokens (what it uses, or all that it may come to use), and
claims stay within a limit. *Headroom*: what stays free suffices until something ends, with a chance that the size of the
request decides (``endcast.router.admission.headroom``). A *look ahead*: the quantile of the KV to come, from forecasts
(``endcast.router.admission.peak``), stays within C.

Kernels ask ``fits(gate, g, j)`` and, when they have placed something, tell ``take(gate, g, j)``. A gate is one round's
own: taking changes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from endcast.compiled import njit
from endcast.router.admission.peak import Peaks, add_to_peak, no_peaks, stays_below
from endcast.router.entries import FIELDS, MAX_TOKENS, NOTHING, PROMPT, REQUEST, ROW, read_only
from endcast.survival import NO_CAP, FloatArray, IntArray

#: Rows of ``Gate.worker``: KV tokens that fit; tokens used once everything has grown by one; how far claims may go (where
#: headroom is kept, those of the smallest request); what is claimed; requests that the worker runs.
CAPACITY, USED, LIMIT, CLAIMED, HELD = range(5)
#: More room than any worker has.
MAX_ROOM = 1 << 62
#: ``Gate.assumed_cap`` of rules whose requests claim what they use.
CLAIM_USE = -1
#: No more than this share of C is kept free as headroom: a worker that holds two or three requests would else run one.
MOST_KEPT = 0.5


class Gate(NamedTuple):
    """One round's test. ``waiting`` (fields, …) entries of what waits, the oldest in column ``head``; ``worker`` (5, G);
    ``assumed_cap`` output tokens that a request without a cap claims, or ``CLAIM_USE``; ``peaks`` the look ahead; ``kept``
    (2,) the request for which a worker was kept last, and that worker: it outlives the round.

    ``ends`` (2, G) ends expected in a step of what a worker runs, and of one request more, or (2, 0) where no headroom is
    kept; ``margin`` = ln(1/ε), tokens to be left free beside the smallest request over tokens made there for an end."""

    bounded: bool
    waiting: IntArray
    head: int
    worker: IntArray
    assumed_cap: int
    peaks: Peaks
    kept: IntArray
    ends: FloatArray
    margin: float


def _without_bounds() -> Gate:
    nobody = read_only(np.zeros((FIELDS + 1, 1), dtype=np.int64))
    return Gate(
        False, nobody, 0, np.zeros((5, 1), dtype=np.int64), CLAIM_USE, no_peaks(), nothing_kept(), no_headroom(), 0.0
    )


def nothing_kept() -> IntArray:
    """``Gate.kept`` of a fleet in which no worker was kept yet."""
    return np.full(2, NOTHING, dtype=np.int64)


def no_headroom() -> FloatArray:
    """``Gate.ends`` of rules that keep none."""
    return np.zeros((2, 0))


#: The gate of workers whose KV never runs out: everything fits.
OPEN = _without_bounds()


@njit(cache=True)
def claim(prompt: int, generated: int, max_tokens: int, assumed_cap: int, capacity: int) -> int:
    """KV tokens that a request claims: those it uses next, or with a cap all it may come to use, C at most."""
    used = prompt + generated + 1
    if assumed_cap == CLAIM_USE:
        return used
    cap = max_tokens if max_tokens < NO_CAP // 2 else assumed_cap
    return min(max(prompt + cap, used), capacity)


@njit(cache=True)
def kept_free(tokens: int, per_end: float, margin: float, capacity: int) -> float:
    """Tokens to be left free beside a request that takes so many, where ``per_end`` tokens are made for each end."""
    size = tokens / per_end
    wanted = per_end * (margin - np.log(size / -np.expm1(-size)))
    return float(min(max(wanted, 0.0), MOST_KEPT * capacity))


@njit(cache=True)
def entry_fits(gate: Gate, g: int, prompt: int, generated: int, max_tokens: int, row: int) -> bool:
    """Whether a request may start, or go on after ``generated`` tokens, on worker ``g``."""
    if not gate.bounded:
        return True
    worker = gate.worker
    if worker[USED, g] + prompt + generated + 1 > worker[CAPACITY, g]:
        return False
    if worker[HELD, g] == 0:
        return True
    asked = claim(prompt, generated, max_tokens, gate.assumed_cap, worker[CAPACITY, g])
    if gate.ends.shape[1] > 0:
        per_end = (worker[HELD, g] + 1) / (gate.ends[0, g] + gate.ends[1, g])
        if (
            worker[CLAIMED, g] + asked + kept_free(asked, per_end, gate.margin, worker[CAPACITY, g])
            > worker[CAPACITY, g]
        ):
            return False
    elif worker[CLAIMED, g] + asked > worker[LIMIT, g]:
        return False
    return not gate.peaks.looks or stays_below(gate.peaks, g, worker[CAPACITY, g], prompt + generated, generated, row)


@njit(cache=True)
def take_entry(gate: Gate, g: int, prompt: int, generated: int, max_tokens: int, row: int) -> None:
    """A request starts on worker ``g`` in this round: what comes after must fit beside it."""
    if not gate.bounded:
        return
    worker = gate.worker
    worker[USED, g] += prompt + generated + 1
    worker[CLAIMED, g] += claim(prompt, generated, max_tokens, gate.assumed_cap, worker[CAPACITY, g])
    worker[HELD, g] += 1
    if gate.ends.shape[1] > 0:
        gate.ends[0, g] += gate.ends[1, g]
    if gate.peaks.looks:
        add_to_peak(gate.peaks, g, prompt + generated, generated, row)


@njit(cache=True)
def fits(gate: Gate, g: int, j: int) -> bool:
    """Whether the j-th oldest waiting request may start on worker ``g``."""
    if not gate.bounded:
        return True
    waiting, i = gate.waiting, gate.head + j
    return entry_fits(gate, g, waiting[PROMPT, i], 0, waiting[MAX_TOKENS, i], waiting[ROW, i])  # type: ignore[no-any-return]


@njit(cache=True)
def take(gate: Gate, g: int, j: int) -> None:
    """The j-th oldest waiting request starts on worker ``g``."""
    if gate.bounded:
        waiting, i = gate.waiting, gate.head + j
        take_entry(gate, g, waiting[PROMPT, i], 0, waiting[MAX_TOKENS, i], waiting[ROW, i])


@njit(cache=True)
def admitted(gate: Gate, position: IntArray, worker: IntArray) -> IntArray:
    """Those of the placements (k,), in order, that fit one after the other: their indices."""
    kept, count = np.empty(position.shape[0], dtype=np.int64), 0
    for i in range(position.shape[0]):
        if fits(gate, worker[i], position[i]):
            take(gate, worker[i], position[i])
            kept[count] = i
            count += 1
    return kept[:count].copy()


@njit(cache=True)
def keep_for_oldest(gate: Gate, open_: IntArray, free: IntArray) -> None:
    """Close a worker for the oldest waiting request, if that fits none now: what drains makes room.

    The one with the most room, and from then on the same one: others may have more room for a moment, and a worker kept
    in turns would never drain. ``open_`` (G,) whether something may start; only workers that could hold the request, were
    they empty, are kept.
    """
    best, most = -1, -1
    request, prompt = gate.waiting[REQUEST, gate.head], gate.waiting[PROMPT, gate.head]
    for g in range(open_.shape[0]):
        if not open_[g]:
            continue
        if free[g] > 0 and fits(gate, g, 0):
            return
        room = gate.worker[CAPACITY, g] - gate.worker[USED, g]
        same = gate.kept[0] == request and gate.kept[1] == g
        if prompt < gate.worker[CAPACITY, g] and (best < 0 or same or room > most):
            best, most = g, MAX_ROOM if same else room
    if best >= 0:
        open_[best] = False
        gate.kept[0], gate.kept[1] = request, best
