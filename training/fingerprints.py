"""Has a bundle seen these requests? A sample of hashed training requests answers without keeping any."""

from __future__ import annotations

import hashlib
from itertools import repeat

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import Trace

#: Fingerprints in a bundle at most; characters of a prompt that tell it.
MOST, PROMPT_CHARACTERS = 4096, 2000
#: Share of fingerprints that two logs may have in common by chance (coarse clocks, few sizes).
BY_CHANCE = 0.005


def fingerprints(trace: Trace) -> npt.NDArray[np.uint64]:
    """(n,), one number a request: of its arrival and sizes, so that it is the same in another cut of the log, where ids may
    be line numbers. Without arrivals: of its prompt and sizes, or of its id where there is no prompt."""
    arrivals = trace.arrival_ns.tolist() if trace.has_arrivals else repeat(None, len(trace))
    told = repeat(None, len(trace)) if trace.has_arrivals else _names(trace)
    rows = zip(arrivals, told, trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    hashes = (hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows)
    return np.fromiter((int.from_bytes(h) for h in hashes), dtype=np.uint64, count=len(trace))


def _names(trace: Trace) -> list[str]:
    """(n,), what tells each request where the log has no clock."""
    columns = (trace.table.column(name).to_pylist() for name in ("prompt", "messages", "request_id"))
    return [(prompt or messages or own)[:PROMPT_CHARACTERS] for prompt, messages, own in zip(*columns, strict=True)]


def sample(trace: Trace, seed: int) -> npt.NDArray[np.uint64]:
    """(≤ MOST,), sorted, of rows drawn at random."""
    drawn = np.random.default_rng(seed).permutation(len(trace))[:MOST]
    return np.sort(fingerprints(trace.take(np.sort(drawn))))


def overlap(sampled: npt.NDArray[np.uint64], trace: Trace) -> float:
    """Share of the sampled training requests that are in ``trace``, 0 to 1."""
    if sampled.size == 0:
        return 0.0
    return float(np.isin(sampled, fingerprints(trace)).mean())
