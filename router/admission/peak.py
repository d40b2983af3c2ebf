"""How much KV a worker comes to hold if nothing else starts there: its forecast peak.

KV saws: it rises by a token a step for every running request and falls when one ends. In the i-th step from now (0 is
the one about to begin) a worker holds

    K(i) = Σ (s + e + i + 1)·1[R > i]    over what runs there,

and K is highest just before an end: between ends it only rises. With lengths known the peak is therefore the largest of
K(R − 1) over the requests, whatever the grid. With forecasts each R is random. They are taken to be independent, so

    mean(i) = Σ (s + e + i + 1)·p,    variance(i) = Σ (s + e + i + 1)²·p·(1 − p),    p = P(R > i),

and the quantile of K(i) is taken to be mean + z·√variance, as if the sum were normal, but never more than what is held if
nothing ends by then: up to the step where that would be too much, nothing can run out. It is evaluated just before each
request's expected end, i = E[R] − 1 rounded, and on the ladder 0, 1, 3, 7, … 8,191, because spread-out ends may have their
peak between expected ones. Two approximations remain: the quantile is that of K at each of these steps, not of their
maximum, and ends are not independent where requests of one kind all run longer than forecast.

What a step holds is added up when it is first asked about in a round, and a step at which everything would fit even if
nothing ended is passed over. A request that does not fit mostly costs one step, one that does costs all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from endcast.compiled import njit
from endcast.router.entries import NOTHING, PROMPT, REQUEST, ROW
from endcast.router.outlook import expected_remaining
from endcast.router.windows import CAP, CURVE, POSITION
from endcast.survival import FloatArray, IntArray

#: Steps that are always looked at: one less than powers of 2.
LADDER: IntArray = 2 ** np.arange(14) - 1

#: Rows of ``Peaks.member``: a request's row in the book of forecasts, the KV tokens it holds, those of them generated.
_ROW, _TOKENS, _GENERATED = range(3)
#: Rows of ``Peaks.state``: members; their KV tokens; steps laid out, none, the ladder's or all; the one to look at first.
_MEMBERS, _HELD, _LAID, _TIGHT = range(4)
#: Variance of a step that was not added up yet.
_UNKNOWN = -1.0


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
    """The look ahead of G workers with at most B requests each, beyond which nothing fits; ``looks``: whether there is one.

    ``z`` standard deviations; ``member`` (3, G, B); ``state`` (4, G); ``time`` (G, T) steps, ``moments`` (2, G, T) mean
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
    return Peaks(False, 0.0, members, np.zeros((4, 0), dtype=np.int64), whole, np.zeros((2, 0, 0)), curves)


def peaks_of(start: IntArray, entries: IntArray, generated: IntArray, curves: Curves, z: float) -> Peaks:
    """The look ahead at what runs: slots of worker g are ``start[g] … start[g+1]``, ``entries`` (fields, S) in them.

    There is room for twice the slots: what is exchanged between workers after placing counts on both.
    """
    workers, most = len(start) - 1, 2 * int(np.diff(start).max())
    member, state = np.empty((3, workers, most), dtype=np.int64), np.zeros((4, workers), dtype=np.int64)
    _members(start, entries, generated, member, state)
    steps = len(LADDER) + most
    time, moments = np.empty((workers, steps), dtype=np.int64), np.empty((2, workers, steps))
    return Peaks(True, z, member, state, time, moments, curves)


@njit(cache=True)
def _members(start: IntArray, entries: IntArray, generated: IntArray, member: IntArray, state: IntArray) -> None:
    for g in range(state.shape[1]):
        count, held = 0, 0
        for slot in range(start[g], start[g + 1]):
            if entries[REQUEST, slot] != NOTHING:
                member[_ROW, g, count] = entries[ROW, slot]
                member[_TOKENS, g, count] = entries[PROMPT, slot] + generated[slot]
                member[_GENERATED, g, count] = generated[slot]
                held += member[_TOKENS, g, count]
                count += 1
        state[_MEMBERS, g], state[_HELD, g], state[_LAID, g], state[_TIGHT, g] = count, held, 0, 0


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
def _lay(peaks: Peaks, g: int, steps: int, time: int) -> int:
    """One more step to look at on worker ``g``, which has ``steps`` of them: their number now."""
    peaks.time[g, steps], peaks.moments[1, g, steps] = time, _UNKNOWN
    return steps + 1


@njit(cache=True)
def _lay_ladder(peaks: Peaks, g: int, capacity: int, tokens: int) -> None:
    """First the steps that cost nothing to find; to be looked at first the one by which, without an end, nothing fits."""
    steps, growing = 0, peaks.state[_MEMBERS, g] + 1
    room = capacity - peaks.state[_HELD, g] - tokens
    for t in range(LADDER.shape[0]):
        steps = _lay(peaks, g, steps, LADDER[t])
        if LADDER[t] * growing <= room and t + 1 < LADDER.shape[0]:
            peaks.state[_TIGHT, g] = t + 1
    peaks.state[_LAID, g] = steps


@njit(cache=True)
def _lay_ends(peaks: Peaks, g: int) -> None:
    """Then those just before expected ends."""
    steps = peaks.state[_LAID, g]
    for m in range(steps - LADDER.shape[0], peaks.state[_MEMBERS, g]):
        steps = _lay(
            peaks, g, steps, _last_step(peaks.curves, peaks.member[_ROW, g, m], peaks.member[_GENERATED, g, m])
        )
    peaks.state[_LAID, g] = steps


@njit(cache=True)
def _fits_at(peaks: Peaks, g: int, t: int, capacity: int, tokens: int, generated: int, row: int) -> bool:
    """Whether it fits in step ``time[g, t]``, whose moments are added up unless they are known."""
    ahead, state = peaks.time[g, t], peaks.state
    if state[_HELD, g] + tokens + (state[_MEMBERS, g] + 1) * (ahead + 1) <= capacity:
        return True  # even if nothing ended
    if peaks.moments[1, g, t] == _UNKNOWN:
        peaks.moments[0, g, t], peaks.moments[1, g, t] = _moments_at(peaks, g, ahead)
    mean, variance = peaks.moments[0, g, t], peaks.moments[1, g, t]
    return bool(_with_another(peaks, mean, variance, tokens, generated, row, ahead) <= capacity)


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
    if peaks.state[_MEMBERS, g] == peaks.member.shape[2]:
        return False
    if peaks.state[_LAID, g] == 0:
        _lay_ladder(peaks, g, capacity, tokens)
    if not _fits_at(peaks, g, peaks.state[_TIGHT, g], capacity, tokens, generated, row):
        return False
    begin = 0
    while begin < peaks.state[_LAID, g]:
        steps = peaks.state[_LAID, g]
        for t in range(begin, steps):
            if not _fits_at(peaks, g, t, capacity, tokens, generated, row):
                peaks.state[_TIGHT, g] = t
                return False
        begin = steps
        _lay_ends(peaks, g)
    last = _last_step(peaks.curves, row, generated)
    mean, variance = _moments_at(peaks, g, last)
    return bool(_with_another(peaks, mean, variance, tokens, generated, row, last) <= capacity)


@njit(cache=True)
def add_to_peak(peaks: Peaks, g: int, tokens: int, generated: int, row: int) -> None:
    """Another request runs on worker ``g`` from now on."""
    count = peaks.state[_MEMBERS, g]
    assert count < peaks.member.shape[2]  # compiled code would write on
    peaks.member[_ROW, g, count], peaks.member[_TOKENS, g, count] = row, tokens
    peaks.member[_GENERATED, g, count] = generated
    peaks.state[_MEMBERS, g] = count + 1
    peaks.state[_HELD, g] += tokens
    for t in range(peaks.state[_LAID, g]):
        if peaks.moments[1, g, t] == _UNKNOWN:
            continue
        ahead = peaks.time[g, t]
        p, held = _still_there(peaks.curves, row, generated, ahead), tokens + ahead + 1.0
        peaks.moments[0, g, t] += held * p
        peaks.moments[1, g, t] += held * held * p * (1.0 - p)
