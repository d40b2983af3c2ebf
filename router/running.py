"""Expected loads of what runs, worked out some steps ahead: a step in which nothing surprising happens costs next to nothing.

A running request has its load curve x (``endcast.router.windows``); when it has reached offset k of it, its expected load h steps
on is x(k + h)/P(R > k). Adding that up for every slot in every step reads all curves anew, megabytes for a large fleet. But what
the sum will be t steps later, *if* every request then has generated t more tokens, is known now: the same curves, read t
further on. So a worker's curves are read once for a *block* of up to T steps, one sum for each. When a later step comes, its
sum is there; what happened otherwise than foreseen, a request that ended, started, stood still or has a new forecast, is
taken out of the sums that are left and put in again as it is now. Where that is true of many, as with several tokens a
step, the block is given up; the next ones are short and grow again.

Sums are those of reading everything anew, up to rounding: 2^-24 of the largest loads that were in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, PROMPT, ROW
from endcast.router.prefetch import FLOATS_PER_LINE, prefetch
from endcast.router.windows import CAP, CURVE, POSITION, fill_load_curve
from endcast.survival import Float32Array, FloatArray, IntArray

#: T: the most steps of a block. Workers begin theirs in different steps.
BLOCK = 8
#: Windows are read in whole runs of so many tokens, which is what the machine's vector unit takes at a time.
_RUN = 32
#: A load curve is made anew once less survival than this is left of it.
_LEAST_SURVIVAL = 1e-3
#: Slots see the end of their load curves up to this many tokens early, each at another distance: requests that were
#: placed together would otherwise all need new curves in the same step.
_STAGGER = 32
#: Tokens that a load curve reaches beyond the window: so many steps pass at most until it is made anew.
_LOOKAHEAD = 96 + _STAGGER
#: A block is given up when one in so many requests is not as foreseen.
_SURPRISED = 4
#: Windows are asked for so many slots before they are read.
_AHEAD = 8
#: So many windows are added in single precision before their sum goes to the double-precision total.
_SINGLE_PRECISION_RUN = 16
#: Rows of ``Blocks.counted``, of what is in a slot's part of the sums: tokens generated, offset on its load curve and KV tokens
#: held, all as at the block's first step (or as they would have been then); how many steps of the block the curve has a say in,
#: 0 where nothing is counted.
_GENERATED, _OFFSET, _HELD, _STEPS = range(4)
#: Rows of ``Blocks.block``: the step in which a worker's block began, its steps, how many the next may have.
_BEGAN, _LENGTH, _NEXT = range(3)


class Blocks(NamedTuple):
    """``curves`` (S, width) load curves, ``made_at`` (S,) tokens or ``NOTHING`` where one has to be made anew; ``counted``
    (4, S); ``block`` (3, G) and its ``sums`` (G, T, ≥ H+1)."""

    curves: Float32Array
    made_at: IntArray
    counted: IntArray
    block: IntArray
    sums: FloatArray


class Running(NamedTuple):
    """What runs, and its forecasts: slots of worker g are ``start[g] … start[g+1]``, ``entries`` (fields, S) and tokens
    ``generated`` (S,) in them; ``step`` chances to survive a token on the grid of ``edges``, and ``where`` (3, rows) each stands."""

    start: IntArray
    entries: IntArray
    generated: IntArray
    edges: IntArray
    step: FloatArray
    where: IntArray


def no_blocks(workers: int, slots: int, horizon: int) -> Blocks:
    """Of workers of which nothing was worked out yet."""
    length = -(-(horizon + 1) // _RUN) * _RUN
    counted, block = np.zeros((4, slots), dtype=np.int64), np.zeros((3, workers), dtype=np.int64)
    block[_NEXT] = 1
    curves, sums = np.zeros((slots, length + _LOOKAHEAD), dtype=np.float32), np.zeros((workers, BLOCK, length))
    return Blocks(curves, np.full(slots, NOTHING, dtype=np.int64), counted, block, sums)


@njit(cache=True)
def running_loads(load: FloatArray, blocks: Blocks, running: Running, now: int) -> None:
    """load (G, H+1) = L̂_g(h) of what runs after ``now`` steps."""
    partial = np.zeros((BLOCK, blocks.sums.shape[2]), dtype=np.float32)
    slots = np.empty(running.generated.shape[0], dtype=np.int64)
    for g in range(load.shape[0]):
        at, count = now - blocks.block[_BEGAN, g], -1
        if at < blocks.block[_LENGTH, g]:
            count = _find_surprises(slots, blocks, running, g, at)
        if count < 0:
            at = 0
            _begin(blocks, running, g, now, slots, partial)
        else:
            _amend(slots, count, blocks, running, g, at)
        for h in range(load.shape[1]):
            load[g, h] = blocks.sums[g, at, h]


@njit(cache=True)
def _find_surprises(found: IntArray, blocks: Blocks, running: Running, g: int, at: int) -> int:
    """Slots of worker ``g`` that are not as foreseen at step ``at`` of its block: how many, −1 if the block is given up."""
    counted, count, most = blocks.counted, 0, (running.start[g + 1] - running.start[g]) // _SURPRISED
    for slot in range(running.start[g], running.start[g + 1]):
        there, known = running.entries[ROW, slot] != NOTHING, counted[_STEPS, slot] > 0
        if there and known:
            foreseen = running.generated[slot] == counted[_GENERATED, slot] + at and at < counted[_STEPS, slot]
            if foreseen and blocks.made_at[slot] != NOTHING:
                continue
        elif not there and not known:
            continue
        found[count] = slot
        count += 1
        if count > most:
            blocks.block[_NEXT, g] = 1
            return -1
    return count


@njit(cache=True)
def _begin(blocks: Blocks, running: Running, g: int, now: int, slots: IntArray, partial: Float32Array) -> None:
    """A new block of worker ``g``: all curves are read, two at a time, and sums made for each of its steps.

    ``slots`` (S,) and ``partial`` (T, ≥ H+1) of zeros are room to work in.
    """
    block, curves, counted, sums = blocks.block, blocks.curves, blocks.counted, blocks.sums[g]
    block[_BEGAN, g], block[_LENGTH, g] = now, min(block[_NEXT, g], BLOCK - (now + g) % BLOCK)
    block[_NEXT, g] = min(2 * block[_NEXT, g], BLOCK)
    steps, length = block[_LENGTH, g], sums.shape[1]
    sums[:steps] = 0.0
    for i in range(running.start[g + 1] - running.start[g]):
        slots[i] = running.start[g] + i
    count = _count_in(slots, running.start[g + 1] - running.start[g], blocks, running, 0, steps)
    one, two = np.zeros(BLOCK, dtype=np.float32), np.zeros(BLOCK, dtype=np.float32)
    for i in range(0, count, 2):
        a, b = slots[i], slots[min(i + 1, count - 1)]
        for ahead in range(i + _AHEAD, min(i + _AHEAD + 2, count)):
            _ask_for(curves, slots[ahead], counted[_OFFSET, slots[ahead]], length + steps)
        first, second = curves[a, counted[_OFFSET, a] :], curves[b, counted[_OFFSET, b] :]
        _fill_scales(one, first, counted[_HELD, a], counted[_STEPS, a])
        _fill_scales(two, second, counted[_HELD, b], counted[_STEPS, b])
        if a == b:
            two[:] = 0.0
        for t in range(steps):
            _add_two(partial[t], first[t : t + length], second[t : t + length], one[t], two[t])
        if i % _SINGLE_PRECISION_RUN == _SINGLE_PRECISION_RUN - 2:
            _flush(sums, partial, steps)
    _flush(sums, partial, steps)


@njit(cache=True)
def _count_in(slots: IntArray, count: int, blocks: Blocks, running: Running, at: int, steps: int) -> int:
    """Write down what the first ``count`` of ``slots`` will have in the sums of a block of ``steps`` from step ``at`` on, on curves
    made anew if need be. Those in which something runs are kept in ``slots``: how many.

    Survival only falls: what is left at the last step says that there is enough before.
    """
    curves, made_at, counted = blocks.curves, blocks.made_at, blocks.counted
    entries, generated, where = running.entries, running.generated, running.where
    edges, step, kept, reach = running.edges, running.step, 0, steps - at + blocks.sums.shape[2]
    for i in range(count):
        slot = slots[i]
        row, now = entries[ROW, slot], generated[slot]
        if row == NOTHING:
            counted[_STEPS, slot] = 0
            continue
        slots[kept], kept = slot, kept + 1
        tokens, offset = entries[PROMPT, slot] + now, now - made_at[slot]
        ends = offset + reach > curves.shape[1] - slot % _STAGGER
        if made_at[slot] == NOTHING or ends or curves[slot, offset] < _LEAST_SURVIVAL * tokens:
            curve, position, cap = where[CURVE, row], where[POSITION, row] + now, where[CAP, row] - now
            fill_load_curve(curves[slot], tokens, edges, step[curve], position, cap)
            made_at[slot], offset = now, 0
        until = steps
        while until > at + 1 and curves[slot, offset - at + until - 1] < _LEAST_SURVIVAL * (tokens - at + until - 1):
            until -= 1
        counted[_GENERATED, slot], counted[_OFFSET, slot] = now - at, offset - at
        counted[_HELD, slot], counted[_STEPS, slot] = tokens - at, until
    return kept


@njit(cache=True, error_model="numpy")
def _fill_scales(scale: Float32Array, window: Float32Array, held: int, steps: int) -> None:
    """scale (T,): 1/P(R > k) of a request that holds so many tokens, in the next ``steps`` steps, and then 0; ``window`` (≥ T,) of
    its load curve from here on."""
    tokens = np.float32(held)
    for t in range(BLOCK):
        scale[t] = (tokens + np.float32(t)) / window[t]
    if held == 0:
        scale[0] = 1.0
    for t in range(steps, BLOCK):
        scale[t] = 0.0


@njit(cache=True, fastmath={"contract"})
def _add_two(total: Float32Array, one: Float32Array, two: Float32Array, a: float, b: float) -> None:
    for h in range(total.shape[0]):
        total[h] += a * one[h] + b * two[h]


@njit(cache=True)
def _amend(slots: IntArray, count: int, blocks: Blocks, running: Running, g: int, at: int) -> None:
    """What was counted of the first ``count`` of ``slots`` is no part of the sums from step ``at`` on; what runs there now is."""
    curves, counted, sums = blocks.curves, blocks.counted, blocks.sums[g]
    for i in range(count):
        if counted[_STEPS, slots[i]] > 0:
            _add_from(sums, curves[slots[i]], counted[:, slots[i]], at, -1.0)
    kept = _count_in(slots, count, blocks, running, at, blocks.block[_LENGTH, g])
    for i in range(kept):
        _add_from(sums, curves[slots[i]], counted[:, slots[i]], at, 1.0)


@njit(cache=True)
def _add_from(sums: FloatArray, curve: Float32Array, counted: IntArray, at: int, sign: float) -> None:
    """Add what was ``counted`` (4,) of a request, ``sign`` times, to the sums (T, ≥ H+1) from step ``at`` on."""
    scale, offset = np.empty(BLOCK, dtype=np.float32), counted[_OFFSET]
    if at < counted[_STEPS]:
        _fill_scales(scale, curve[offset + at :], counted[_HELD] + at, counted[_STEPS] - at)
    for t in range(at, counted[_STEPS]):
        _add_scaled(sums[t], curve[offset + t : offset + t + sums.shape[1]], sign * scale[t - at])


@njit(cache=True)
def _add_scaled(total: FloatArray, window: Float32Array, scale: float) -> None:
    for h in range(total.shape[0]):
        total[h] += scale * window[h]


@njit(cache=True)
def _ask_for(curves: Float32Array, slot: int, offset: int, length: int) -> None:
    if offset < 0 or offset + length > curves.shape[1]:
        return  # it will be made anew
    for h in range(offset, offset + length, FLOATS_PER_LINE):
        prefetch(curves, slot, h)
    prefetch(curves, slot, offset + length - 1)


@njit(cache=True)
def _flush(sums: FloatArray, partial: Float32Array, steps: int) -> None:
    for t in range(steps):
        for h in range(partial.shape[1]):
            sums[t, h] += partial[t, h]
            partial[t, h] = 0.0
