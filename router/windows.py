"""Expected KV loads laid out densely over the next tokens, so that a routing round only multiplies and adds.

A survival curve is piecewise geometric on a grid of edges (``endcast.survival.CurveTable``). Reading it token by token
for every slot and step would cost a search each. Instead each request holds its *load curve*

    x(i) = (s + e₀ + i)·P(R > i),    i = 0 … width − 1,

made once when it had generated e₀ tokens. Given that it has reached offset k, its expected load h steps on is
x(k + h)/P(R > k), and P(R > k) = x(k)/(s + e₀ + k) can be read off the curve itself: one multiplication and one
addition for each slot and h (``endcast.router.running``). A load curve is made anew when the window reaches its end, or when so
little survival is left that the ratio would lose precision.
"""

from __future__ import annotations

import numpy as np

from endcast.compiled import njit
from endcast.survival import Float32Array, FloatArray, IntArray

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
        chance = step[k]
        twice = chance * chance
        while i + 4 <= stop:  # four at a time: each waits for one product, not for the three before it
            one, two = survival * chance, survival * twice
            three, survival = one * twice, two * twice
            out[i + 1], out[i + 2] = one * (tokens + i + 1), two * (tokens + i + 2)
            out[i + 3], out[i + 4] = three * (tokens + i + 3), survival * (tokens + i + 4)
            i += 4
        while i < stop:
            survival *= chance
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
