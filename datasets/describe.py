"""What is in a trace: counts, spans, percentiles, censoring, caps, shared prefixes, and what looks odd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.times import EPOCH_FROM_NS, format_ns
from endcast.datasets.trace import UNKNOWN, IntArray, Trace
from endcast.types import EndReason

QUANTILES = (1, 10, 25, 50, 75, 90, 95, 99)
#: A length is a point mass where it has at least so many requests, this share of those that reach it, and so many
#: times the number that its neighbours have: then an unrecorded cap is likely.
_MASS_LEAST, _MASS_SHARE, _MASS_FACTOR, _NEIGHBOURS = 20, 0.1, 8.0, 8
_MOST_MASSES = 5
#: A pause in the arrivals is odd where it takes this share of the log.
_ODD_PAUSE = 0.1


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one quantity: how many rows tell it, mean, least, most, and percentiles (key ``"50"``: the median)."""

    count: int
    mean: float
    least: float
    most: float
    percentiles: Mapping[str, float]


class PointMass(msgspec.Struct, frozen=True, kw_only=True):
    """A length that too many requests share: ``share`` of those that got so far ended there."""

    output_tokens: int
    requests: int
    share: float
    known_cap: bool


class Prefixes(msgspec.Struct, frozen=True, kw_only=True):
    """Re-use of prefix blocks, as a cache that forgets nothing would see it: ``reused`` of all blocks were in an
    earlier request's prompt at the same place; ``requests`` begin with one or more of those."""

    requests_with_blocks: int
    blocks: int
    reused: float
    requests: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``endcast trace describe`` tells. Shares are in [0, 1], times in seconds; ``None``: not told."""

    requests: int
    first_arrival: str | None
    last_arrival: str | None
    span_s: float | None
    requests_per_s: float | None
    prompt_tokens: Spread | None
    output_tokens: Spread
    inter_arrival_s: Spread | None
    total_prompt_tokens: int
    total_output_tokens: int
    ends: Mapping[str, int]
    censored: float
    zero_outputs: int
    caps_known: float
    at_cap: int
    point_masses: tuple[PointMass, ...]
    longest_tenth: float
    models: int
    tenants: int
    sessions: int
    turns: Spread | None
    prefixes: Prefixes | None
    with_text: Mapping[str, float]
    oddities: tuple[str, ...]


def describe(trace: Trace) -> Description:
    """Describe a trace; takes time and memory in proportion to its rows and blocks."""
    outputs, prompts = trace.output_tokens, trace.prompt_tokens
    known_prompts = prompts[prompts != UNKNOWN]
    arrivals = np.sort(trace.arrival_ns) if trace.has_arrivals else None
    span = None if arrivals is None else float(arrivals[-1] - arrivals[0]) / 1e9
    first, last = (None, None) if arrivals is None else _clock(arrivals)
    gaps = None if arrivals is None or len(arrivals) < 2 else spread(np.diff(arrivals) / 1e9)
    masses = tuple(point_masses(trace))
    return Description(
        requests=len(trace),
        first_arrival=first,
        last_arrival=last,
        span_s=span,
        requests_per_s=len(trace) / span if span else None,
        prompt_tokens=spread(known_prompts) if len(known_prompts) else None,
        output_tokens=spread(outputs),
        inter_arrival_s=gaps,
        total_prompt_tokens=int(known_prompts.sum()),
        total_output_tokens=int(outputs.sum()),
        ends=_ends(trace),
        censored=float(1.0 - trace.is_event.mean()),
        zero_outputs=int((outputs == 0).sum()),
        caps_known=float((trace.cap != UNKNOWN).mean()),
        at_cap=int(((trace.cap != UNKNOWN) & (outputs >= trace.cap)).sum()),
        point_masses=masses,
        longest_tenth=_longest_tenth(outputs),
        models=_distinct(trace, "model"),
        tenants=_distinct(trace, "tenant"),
        sessions=_distinct(trace, "session"),
        turns=_turns(trace),
        prefixes=_prefixes(trace),
        with_text={name: _told(trace, name) for name in ("prompt", "messages", "output")},
        oddities=tuple(_oddities(trace, masses, gaps, span)),
    )


def spread(values: npt.NDArray[np.number]) -> Spread:
    """Of at least one value."""
    marks = np.percentile(values, QUANTILES)
    return Spread(
        count=len(values),
        mean=float(values.mean()),
        least=float(values.min()),
        most=float(values.max()),
        percentiles={str(q): float(mark) for q, mark in zip(QUANTILES, marks, strict=True)},
    )


def point_masses(trace: Trace) -> Iterator[PointMass]:
    """Lengths at which suspiciously many requests end: the likely caps, the most frequent first."""
    outputs = trace.output_tokens
    counts = np.bincount(outputs[outputs > 0])
    reach = np.cumsum(counts[::-1])[::-1]  # requests that get at least so far
    candidates = np.flatnonzero((counts >= _MASS_LEAST) & (counts >= _MASS_SHARE * reach))
    odd = [t for t in candidates.tolist() if counts[t] >= _MASS_FACTOR * max(_around(counts, t), 1.0)]
    for t in sorted(odd, key=lambda t: -int(counts[t]))[:_MOST_MASSES]:
        known = bool((trace.cap[outputs == t] == t).mean() > 0.5)
        share = float(counts[t] / reach[t])
        yield PointMass(output_tokens=t, requests=int(counts[t]), share=share, known_cap=known)


def _around(counts: IntArray, t: int) -> float:
    """Mean number of requests at the lengths next to ``t``."""
    beside = np.concatenate([counts[max(t - _NEIGHBOURS, 0) : t], counts[t + 1 : t + 1 + _NEIGHBOURS]])
    return float(np.mean(beside)) if len(beside) else 0.0


def _clock(arrivals: IntArray) -> tuple[str, str]:
    ends = (int(arrivals[0]), int(arrivals[-1]))
    if ends[0] >= EPOCH_FROM_NS:
        return format_ns(ends[0]), format_ns(ends[1])
    return f"{ends[0] / 1e9:.3f} s", f"{ends[1] / 1e9:.3f} s"


def _ends(trace: Trace) -> dict[str, int]:
    found, counts = np.unique(trace.end, return_counts=True)
    table = dict(zip(found.tolist(), counts.tolist(), strict=True))
    return {reason.value: table.get(reason.value, 0) for reason in EndReason}


def _longest_tenth(outputs: IntArray) -> float:
    """Share of all output tokens that the longest tenth of the answers has."""
    total = int(outputs.sum())
    longest = np.sort(outputs)[::-1][: -(-len(outputs) // 10)]
    return float(longest.sum() / total) if total else 0.0


def _distinct(trace: Trace, name: str) -> int:
    return int(pc.count_distinct(trace.table.column(name), mode="only_valid").as_py())


def _told(trace: Trace, name: str) -> float:
    column = trace.table.column(name)
    return float(1.0 - column.null_count / len(column))


def _turns(trace: Trace) -> Spread | None:
    """Requests a session."""
    sessions = trace.table.column("session").drop_null()
    return spread(np.asarray(pc.value_counts(sessions).field("counts"))) if len(sessions) else None


def _prefixes(trace: Trace) -> Prefixes | None:
    """Count blocks that an earlier request had: ids name a block with all that stands before it, so an id seen before
    is a hit if all ids before it in the prompt were seen too."""
    column = pa.chunked_array(trace.table.column("prefix_blocks")).combine_chunks()
    sizes = np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)
    if not sizes.any():
        return None
    ids = np.asarray(column.flatten()).astype(np.int64)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    _, first, back = np.unique(ids, return_index=True, return_inverse=True)
    seen = rows[first][back] < rows  # the first request with that id came before
    starts = np.cumsum(sizes) - sizes
    misses = np.cumsum(~seen)
    before = np.concatenate([[0], misses])[np.repeat(starts, sizes)]
    hits = seen & (misses == before)
    return Prefixes(
        requests_with_blocks=int((sizes > 0).sum()),
        blocks=len(ids),
        reused=float(hits.mean()),
        requests=len(np.unique(rows[hits])),
    )


def _oddities(trace: Trace, masses: tuple[PointMass, ...], gaps: Spread | None, span: float | None) -> Iterator[str]:
    outputs, events = trace.output_tokens, trace.is_event
    for mass in masses:
        if not mass.known_cap:
            yield (
                f"{mass.requests:,} answers ({mass.share:.0%} of those that got so far) have exactly "
                f"{mass.output_tokens:,} tokens: likely a cap that the log does not tell"
            )
    beyond = int(((trace.cap != UNKNOWN) & (outputs > trace.cap)).sum())
    if beyond:
        yield f"{beyond:,} answers are longer than their cap"
    if not events.any():
        yield "no answer ended by itself: a model has nothing to learn from"
    elif events.all():
        yield "every answer counts as ended by itself: does the log tell which were cut?"
    if int((outputs == 0).sum()):
        yield f"{int((outputs == 0).sum()):,} answers have no token; fits leave them out"
    if gaps is not None and span and gaps.most > _ODD_PAUSE * span:
        yield f"nothing arrives for {gaps.most:,.0f} s, {gaps.most / span:.0%} of the log"
    if trace.has_arrivals and len(trace) > 1 and span == 0:
        yield "all requests arrive at one instant"
    if (trace.prompt_tokens == UNKNOWN).any():
        yield f"{int((trace.prompt_tokens == UNKNOWN).sum()):,} requests tell no prompt_tokens"
