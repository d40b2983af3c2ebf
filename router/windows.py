"""Expected KV loads laid out densely over the next tokens, so that a routing round only multiplies and adds.

A survival curve is piecewise geometric on a grid of edges (``endcast.survival.CurveTable``). Reading it token by token
for every slot and step would cost a search each. Instead each request holds its *load curve*

    x(i) = (s + e₀ + i)·P(R > i),    i = 0 … width − 1,

made once when it had generated e₀ tokens. Given that it has reached offset k, its expected load h steps on is
x(k + h)/P(R > k), and P(R > k) = x(k)/(s + e₀ + k) can be read off the curve itself: one multiplication and one
addition for each slot and h. A load curve is made anew when the window reaches its end, or when so little survival is
left that the ratio would lose precision.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, PROMPT, ROW
from endcast.router.prefetch import FLOATS_PER_LINE, prefetch
from endcast.survival import Float32Array, FloatArray, IntArray

#: A load curve is made anew once less survival than this is left of it.
_LEAST_SURVIVAL = 1e-3
#: Slots see the end of their load curves up to this many tokens early, each at another distance: requests that were
#: placed together would otherwise all need new curves in the same step.
STAGGER = 32
#: Windows are asked for so many slots before they are read.
_AHEAD = 8
#: So many windows are added in single precision before their sum goes to the double-precision total.
_SINGLE_PRECISION_RUN = 16
#: Rows of ``where`` (3, rows): which curve a request's forecast reads, from which position on, up to which cap.
CURVE, POSITION, CAP = range(3)


@njit(cache=True)
def fill_steps(
    step: FloatArray, rows: IntArray, edges: IntArray, log_survival: FloatArray, log_tail: FloatArray, source: IntArray
) -> None:
    """step[row, k] = chance to survive one token of interval k; the last column is the tail's. ``source`` rows."""
    last = edges.shape[0] - 1
    for i in range(rows.shape[0]):
        curve = log_survival[source[i]]
        for k in range(last):
            step[rows[i], k] = np.exp((curve[k + 1] - curve[k]) / (edges[k + 1] - edges[k]))
        step[rows[i], last] = np.exp(log_tail[source[i]])


@njit(cache=True)
def fill_load_curve(out: Float32Array, tokens: int, edges: IntArray, step: FloatArray, position: int, cap: int) -> None:
    """out[i] = (tokens + i)·P(R > i), i = 0 … len(out)−1, of one who has reached ``position`` on the curve of ``step``.

    R ≤ ``cap``, and R ≥ 1: the request is there now, whatever its cap says.
    """
    last, reach = edges.shape[0] - 1, min(out.shape[0], max(cap, 1))
    k = np.searchsorted(edges, position, side="right") - 1
    survival, i = 1.0, 0
    out[0] = tokens
    while i + 1 < reach:
        stop = reach - 1 if k == last else min(reach - 1, edges[k + 1] - position)
        while i < stop:
            survival *= step[k]
            i += 1
            out[i] = survival * (tokens + i)
        k += 1
    for j in range(reach, out.shape[0]):
        out[j] = 0.0


@njit(cache=True)
def enter(
    waiting_load: Float32Array,
    where: IntArray,
    rows: IntArray,
    prompt: IntArray,
    edges: IntArray,
    step: FloatArray,
    curve: IntArray,
    position: IntArray,
    cap: IntArray,
) -> None:
    """Write down forecasts of requests (k,) in ``rows``, and their loads d(h) = (s + h)·P(R > h), h = 0 … H."""
    for i in range(rows.shape[0]):
        row = rows[i]
        where[CURVE, row], where[POSITION, row], where[CAP, row] = curve[i], position[i], cap[i]
        fill_load_curve(waiting_load[row], prompt[i], edges, step[curve[i]], position[i], cap[i])


@njit(cache=True, fastmath={"contract"})
def _add_scaled(total: Float32Array, window: Float32Array, scale: float) -> None:
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
def _flush(load: FloatArray, partial: Float32Array) -> None:
    for h in range(load.shape[0]):
        load[h] += partial[h]
        partial[h] = 0.0


@njit(cache=True)
def running_loads(
    load: FloatArray,
    curves: Float32Array,
    made_at: IntArray,
    start: IntArray,
    slot_entries: IntArray,
    slot_generated: IntArray,
    edges: IntArray,
    step: FloatArray,
    where: IntArray,
) -> None:
    """load (G, H+1) = L̂_g(h) of what runs; ``curves`` (S, width) load curves, made at ``made_at`` (S,) tokens or −1."""
    reach, width = load.shape[1], curves.shape[1]
    partial = np.zeros(reach, dtype=np.float32)
    for g in range(load.shape[0]):
        load[g], count = 0.0, 0
        for slot in range(start[g], start[g + 1]):
            if slot + _AHEAD < start[-1]:
                _ask_for(curves, slot + _AHEAD, slot_generated[slot + _AHEAD] - made_at[slot + _AHEAD], reach)
            row, now = slot_entries[ROW, slot], slot_generated[slot]
            if row == NOTHING:
                continue
            tokens, offset = slot_entries[PROMPT, slot] + now, now - made_at[slot]
            ends = offset + reach > width - slot % STAGGER
            if made_at[slot] < 0 or ends or curves[slot, offset] < _LEAST_SURVIVAL * tokens:
                curve, position, cap = where[CURVE, row], where[POSITION, row] + now, where[CAP, row] - now
                fill_load_curve(curves[slot], tokens, edges, step[curve], position, cap)
                made_at[slot], offset = now, 0
            scale = np.float32(1.0 if offset == 0 else tokens / curves[slot, offset])
            _add_scaled(partial, curves[slot, offset : offset + reach], scale)
            count += 1
            if count % _SINGLE_PRECISION_RUN == 0:
                _flush(load[g], partial)
        _flush(load[g], partial)
