"""How much KV a worker comes to hold if nothing else starts there: its forecast peak.

KV saws: it rises by a token a step for every running request and falls when one ends. In the i-th step from now (0 is
the one about to begin) a worker holds

    K(i) = Σ (s + e + i + 1)·1[R > i]    over what runs there,

and K is highest just before an end: between ends it only rises. With lengths known the peak is therefore the largest of
K(R − 1) over the requests, whatever the grid. With forecasts each R is random. They are taken to be independent, so

    mean(i) = Σ (s + e + i + 1)·p,    variance(i) = Σ (s + e + i + 1)²·p·(1 − p),    p = P(R > i),

and the quantile of K(i) is taken to be mean + z·√variance, as if the sum were normal. It is evaluated just before each
request's expected end, i = E[R] − 1 rounded, and on the ladder 0, 1, 3, 7, … 8,191, because spread-out ends may have their
peak between expected ones. Two approximations remain: the quantile is that of K at each of these steps, not of their
maximum, and ends are not independent where requests of one kind all run longer than forecast.

A request costs O(steps looked at); a worker is laid out when it is first asked about in a round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from endcast.router.entries import NOTHING, PROMPT, REQUEST, ROW
from endcast.router.outlook import expected_remaining
from endcast.router.windows import CAP, CURVE, POSITION
from endcast.survival import FloatArray, IntArray

#: Steps that are always looked at: one less than powers of 2.
LADDER: IntArray = 2 ** np.arange(14) - 1

#: Rows of ``Peaks.member``: a request's row in the book of forecasts, the KV tokens it holds, those of them generated.
_ROW, _TOKENS, _GENERATED = range(3)
#: Rows of ``Peaks.state``: members; steps looked at, or −1; the step at which something failed to fit last.
_MEMBERS, _LOOKED, _TIGHT = range(3)


class Curves(NamedTuple):
    """Survival curves of the book: edges (K+1,), log survival at them (m, K+1), log tail (m,), chance to survive a token
    of each interval (m, K+1), tokens that remain at each edge (m, K+1) or (0, 0), and ``where`` (3, rows) each stands."""

    edges: IntArray
    log_survival: FloatArray
    log_tail: FloatArray
    step: FloatArray
    beyond: FloatArray
    where: IntArray


class Peaks(NamedTuple):
    """The look ahead of G workers with at most B requests each; ``looks``: whether there is one.

    ``z`` standard deviations; ``member`` (3, G, B); ``state`` (3, G); ``time`` (G, T) steps, ``moments`` (2, G, T) mean
    and variance of K there.
    """

    looks: bool
    z: float
    member: IntArray
    state: IntArray
    time: IntArray
    moments: FloatArray
    curves: Curves


def no_peaks() -> Peaks:
    """No look ahead."""
    whole, real = np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))
    curves = Curves(whole[0:0].ravel(), real, real.ravel(), real, real, np.zeros((3, 0), dtype=np.int64))
    members = np.zeros((3, 0, 0), dtype=np.int64)
    return Peaks(False, 0.0, members, np.zeros((3, 0), dtype=np.int64), whole, np.zeros((2, 0, 0)), curves)


def peaks_of(start: IntArray, entries: IntArray, generated: IntArray, curves: Curves, z: float) -> Peaks:
    """The look ahead at what runs: slots of worker g are ``start[g] … start[g+1]``, ``entries`` (fields, S) in them."""
    workers, most = len(start) - 1, int(np.diff(start).max())
    member, state = np.empty((3, workers, most), dtype=np.int64), np.zeros((3, workers), dtype=np.int64)
    _members(start, entries, generated, member, state)
    steps = len(LADDER) + most
    time, moments = np.empty((workers, steps), dtype=np.int64), np.empty((2, workers, steps))
    return Peaks(True, z, member, state, time, moments, curves)


@njit(cache=True)
def _members(start: IntArray, entries: IntArray, generated: IntArray, member: IntArray, state: IntArray) -> None:
    for g in range(state.shape[1]):
        count = 0
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                member[_ROW, g, count] = entries[ROW, slot]
                member[_TOKENS, g, count] = entries[PROMPT, slot] + generated[slot]
                member[_GENERATED, g, count] = generated[slot]
                count += 1
        state[_MEMBERS, g], state[_LOOKED, g], state[_TIGHT, g] = count, -1, 0


@njit(cache=True)
def _log_at(curves: Curves, curve: int, position: int) -> float:
    edges, log_survival = curves.edges, curves.log_survival
    last = edges.shape[0] - 1
    if position >= edges[last]:
        beyond: float = log_survival[curve, last] + (position - edges[last]) * curves.log_tail[curve]
        return beyond
    k = np.searchsorted(edges, position, side="right") - 1
    low, high = log_survival[curve, k], log_survival[curve, k + 1]
    inside: float = low + (high - low) * (position - edges[k]) / (edges[k + 1] - edges[k])
    return inside


@njit(cache=True)
def _still_there(curves: Curves, row: int, generated: int, ahead: int) -> float:
    """P(R > ahead) of a request that has generated tokens; 1 ≤ R ≤ its cap."""
    where = curves.where
    if ahead == 0:
        return 1.0
    if ahead >= where[CAP, row] - generated:
        return 0.0
    curve, position = where[CURVE, row], where[POSITION, row] + generated
    return float(np.exp(_log_at(curves, curve, position + ahead) - _log_at(curves, curve, position)))


@njit(cache=True)
def _last_step(curves: Curves, row: int, generated: int) -> int:
    """The step just before a request's expected end."""
    where = curves.where
    curve = where[CURVE, row]
    beyond = curves.beyond[curve] if curves.beyond.shape[0] > 0 else np.zeros(0)
    expected = expected_remaining(
        curves.edges, curves.step[curve], beyond, where[POSITION, row] + generated, where[CAP, row] - generated
    )
    return max(int(np.rint(min(expected, 1e9))) - 1, 0)


@njit(cache=True)
def _moments_at(peaks: Peaks, g: int, ahead: int) -> tuple[float, float]:
    """Mean and variance of K(ahead)."""
    mean, variance = 0.0, 0.0
    for m in range(peaks.state[_MEMBERS, g]):
        p = _still_there(peaks.curves, peaks.member[_ROW, g, m], peaks.member[_GENERATED, g, m], ahead)
        held = peaks.member[_TOKENS, g, m] + ahead + 1.0
        mean, variance = mean + held * p, variance + held * held * p * (1.0 - p)
    return mean, variance


@njit(cache=True)
def _look(peaks: Peaks, g: int) -> None:
    """Lay out worker ``g``: the steps to look at, and the moments there."""
    members, count = peaks.state[_MEMBERS, g], LADDER.shape[0]
    peaks.time[g, :count] = LADDER
    for m in range(members):
        peaks.time[g, count] = _last_step(peaks.curves, peaks.member[_ROW, g, m], peaks.member[_GENERATED, g, m])
        count += 1
    for t in range(count):
        peaks.moments[0, g, t], peaks.moments[1, g, t] = _moments_at(peaks, g, peaks.time[g, t])
    peaks.state[_LOOKED, g] = count


@njit(cache=True)
def _with_another(
    peaks: Peaks, mean: float, variance: float, tokens: int, generated: int, row: int, ahead: int
) -> float:
    """The quantile of K(ahead), of these moments, with another request."""
    p = _still_there(peaks.curves, row, generated, ahead)
    held = tokens + ahead + 1.0
    return float(mean + held * p + peaks.z * np.sqrt(variance + held * held * p * (1.0 - p)))


@njit(cache=True)
def stays_below(peaks: Peaks, g: int, capacity: int, tokens: int, generated: int, row: int) -> bool:
    """Whether the quantile of K stays within ``capacity`` with another request, which holds KV ``tokens``.

    The step at which something did not fit before is looked at first: there most others do not fit either.
    """
    if peaks.state[_LOOKED, g] < 0:
        _look(peaks, g)
    steps, tight = peaks.state[_LOOKED, g], peaks.state[_TIGHT, g]
    for n in range(-1, steps):
        t = tight if n < 0 else n
        mean, variance = peaks.moments[0, g, t], peaks.moments[1, g, t]
        if _with_another(peaks, mean, variance, tokens, generated, row, peaks.time[g, t]) > capacity:
            peaks.state[_TIGHT, g] = t
            return False
    last = _last_step(peaks.curves, row, generated)
    mean, variance = _moments_at(peaks, g, last)
    return bool(_with_another(peaks, mean, variance, tokens, generated, row, last) <= capacity)


@njit(cache=True)
def add_to_peak(peaks: Peaks, g: int, tokens: int, generated: int, row: int) -> None:
    """Another request runs on worker ``g`` from now on."""
    count = peaks.state[_MEMBERS, g]
    peaks.member[_ROW, g, count], peaks.member[_TOKENS, g, count] = row, tokens
    peaks.member[_GENERATED, g, count] = generated
    peaks.state[_MEMBERS, g] = count + 1
    if peaks.state[_LOOKED, g] < 0:
        return
    steps = peaks.state[_LOOKED, g]
    for t in range(steps):
        ahead = peaks.time[g, t]
        p, held = _still_there(peaks.curves, row, generated, ahead), tokens + ahead + 1.0
        peaks.moments[0, g, t] += held * p
        peaks.moments[1, g, t] += held * held * p * (1.0 - p)
    last = _last_step(peaks.curves, row, generated)
    peaks.time[g, steps] = last
    peaks.moments[0, g, steps], peaks.moments[1, g, steps] = _moments_at(peaks, g, last)
    peaks.state[_LOOKED, g] = steps + 1
