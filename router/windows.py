"""Survival curves laid out densely over the next tokens, so that a routing round only multiplies and adds.

A curve is piecewise geometric on a grid of edges (``endcast.survival.CurveTable``). Reading it token by token for
every slot and step would cost a search each; instead each running request holds its conditional survival over the
next ``width`` tokens, made once and read from a moving offset on: P(R > h) = S(offset + h)/S(offset). It is made anew
when the window reaches its end or when so little survival is left that the ratio would lose precision.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from endcast.router.entries import NOTHING, PROMPT, ROW
from endcast.survival import Float32Array, FloatArray, IntArray

#: A dense window is made anew once less than this is left of it: ratios of float32 stay exact to about 1e-7.
_LEAST_SURVIVAL = 1e-3


@njit(cache=True)
def fill_survival(
    out: Float32Array,
    edges: IntArray,
    log_survival: FloatArray,
    log_tail: float,
    position: int,
    cap: int,
) -> None:
    """out[i] = P(R > i | reached ``position``), i = 0 … len(out)−1, from one curve; R ≤ ``cap``, and R ≥ 1 for certain."""
    last = edges.shape[0] - 1
    k = np.searchsorted(edges, position, side="right") - 1
    survival, i, reach = 1.0, 0, min(out.shape[0], max(cap, 1))
    out[0] = 1.0
    while i + 1 < reach:
        if k < last:
            step = np.exp((log_survival[k + 1] - log_survival[k]) / (edges[k + 1] - edges[k]))
            stop = min(reach - 1, edges[k + 1] - position)
        else:
            step, stop = np.exp(log_tail), reach - 1
        while i < stop:
            survival *= step
            i += 1
            out[i] = survival
        k += 1
    for j in range(reach, out.shape[0]):
        out[j] = 0.0


@njit(cache=True)
def fill_waiting_loads(
    load: Float32Array,
    entries: IntArray,
    prompt: IntArray,
    edges: IntArray,
    log_survival: FloatArray,
    log_tail: FloatArray,
    curve: IntArray,
    position: IntArray,
    cap: IntArray,
) -> None:
    """load[entry] = d(h) = (s + h)·P(R > h), h = 0 … H, for each of ``entries`` (k,) with prompts s (k,)."""
    for i in range(entries.shape[0]):
        entry = entries[i]
        row = curve[entry]
        fill_survival(load[entry], edges, log_survival[row], log_tail[row], position[entry], cap[entry])
        for h in range(load.shape[1]):
            load[entry, h] *= prompt[i] + h


@njit(cache=True)
def add_window(total: FloatArray, window: Float32Array, tokens: float) -> None:
    """total[h] += (tokens + h)·window[h]/window[0]."""
    scale = 1.0 / window[0]
    tokens_scaled = tokens * scale
    for h in range(total.shape[0]):
        total[h] += (tokens_scaled + scale * h) * window[h]


@njit(cache=True)
def running_loads(
    load: FloatArray,
    dense: Float32Array,
    dense_from: IntArray,
    slot_entries: IntArray,
    slot_worker: IntArray,
    slot_generated: IntArray,
    edges: IntArray,
    log_survival: FloatArray,
    log_tail: FloatArray,
    curve: IntArray,
    position: IntArray,
    cap: IntArray,
) -> None:
    """load (G, H+1) = L̂_g(h) of what runs. ``dense`` (S, width) windows made at ``dense_from`` (S,) tokens, or −1."""
    load[:] = 0.0
    reach, width = load.shape[1], dense.shape[1]
    for slot in range(slot_worker.shape[0]):
        row = slot_entries[ROW, slot]
        if row == NOTHING:
            continue
        made, now = dense_from[slot], slot_generated[slot]
        offset = now - made
        if made < 0 or offset + reach > width or dense[slot, offset] < _LEAST_SURVIVAL:
            c = curve[row]
            fill_survival(dense[slot], edges, log_survival[c], log_tail[c], position[row] + now, cap[row] - now)
            dense_from[slot], offset = now, 0
        add_window(load[slot_worker[slot]], dense[slot, offset : offset + reach], slot_entries[PROMPT, slot] + now)
