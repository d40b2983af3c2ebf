"""The shortlist: those of the queue that compete for a slot, and the windows laid out of whoever is looked at.

The N highest surpluses that are still there are the candidates; when one has been placed the next in order takes its place. A
window is softened (``endcast.router.levelling``) once, when a request is first looked at, in the next free *row*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from endcast.compiled import njit
from endcast.router.deviation import MEAN, SPREAD, moments
from endcast.router.levelling import soften_waiting
from endcast.router.policy import BoolArray
from endcast.survival import Float32Array, FloatArray, IntArray

#: Entries of ``Shortlist.at``: the next in the queue, rows in use, candidates.
UPCOMING, LOOKED, COUNT = range(3)


class Waiting(NamedTuple):
    """n waiting requests: expected loads (rows, H+1), the ``row`` (n,) and ``prompt`` (n,) of each; ``share`` is what counts of the
    forecast, and ``weight`` (H+1,) γ^h."""

    load: Float32Array
    row: IntArray
    prompt: IntArray
    share: float
    weight: FloatArray


class Shortlist(NamedTuple):
    """``queue`` positions by surplus; who is ``gone`` (n,), and the row of each that was looked at, or −1, in ``place`` (n,).
    By row: ``who``, ``window`` (m, H+1) and its ``moment`` (m, 2). ``candidate`` (N,) rows, by surplus; ``at`` (3,)."""

    queue: IntArray
    gone: BoolArray
    place: IntArray
    who: IntArray
    window: Float32Array
    moment: FloatArray
    candidate: IntArray
    at: IntArray


@njit(cache=True)
def shortlist_of(queue: IntArray, waiting: Waiting, candidates: int, most: int) -> Shortlist:
    """The first ``candidates`` of the queue; no more than ``most`` will be looked at."""
    count, steps = waiting.row.shape[0], waiting.load.shape[1]
    short = Shortlist(
        queue,
        np.zeros(count, dtype=np.bool_),
        np.full(count, -1),
        np.empty(most, dtype=np.int64),
        np.empty((most, steps), dtype=np.float32),
        np.empty((most, 2)),
        np.empty(min(candidates, count), dtype=np.int64),
        np.zeros(3, dtype=np.int64),
    )
    fill_up(short, waiting)
    return short


@njit(cache=True)
def look(short: Shortlist, waiting: Waiting, j: int) -> int:
    """Row of the j-th oldest request, whose window is laid out if it was not yet."""
    if short.place[j] < 0:
        r = short.at[LOOKED]
        soften_waiting(short.window[r], waiting.load[waiting.row[j]], waiting.prompt[j], waiting.share)
        short.moment[r, MEAN], short.moment[r, SPREAD] = moments(short.window[r], waiting.weight)
        short.place[j], short.who[r], short.at[LOOKED] = r, j, r + 1
    place: int = short.place[j]
    return place


@njit(cache=True)
def fill_up(short: Shortlist, waiting: Waiting) -> None:
    """As many candidates as there may be, as far as the queue goes."""
    at = short.at
    while at[COUNT] < short.candidate.shape[0] and at[UPCOMING] < short.queue.shape[0]:
        j = short.queue[at[UPCOMING]]
        at[UPCOMING] += 1
        if not short.gone[j]:
            short.candidate[at[COUNT]] = look(short, waiting, j)
            at[COUNT] += 1


@njit(cache=True)
def take_out(short: Shortlist, r: int) -> None:
    """The request of row ``r`` has been placed; the gap that it leaves among the candidates is closed."""
    kept, short.gone[short.who[r]] = 0, True
    for i in range(short.at[COUNT]):
        if short.candidate[i] != r:
            short.candidate[kept] = short.candidate[i]
            kept += 1
    short.at[COUNT] = kept
