"""Has a bundle seen these requests? A sample of hashed training requests answers without keeping any."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import UNKNOWN, Trace

#: Fingerprints in a bundle at most.
MOST = 4096


def fingerprints(trace: Trace) -> npt.NDArray[np.uint64]:
    """(n,), one number a request: of its id, arrival, sizes, so that the same row of a log has the same one."""
    ids = trace.table.column("request_id").to_pylist()
    arrivals = trace.arrival_ns if trace.has_arrivals else np.full(len(trace), UNKNOWN)
    rows = zip(ids, arrivals.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    hashes = (hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows)
    return np.fromiter((int.from_bytes(h) for h in hashes), dtype=np.uint64, count=len(trace))


def sample(trace: Trace, seed: int) -> npt.NDArray[np.uint64]:
    """(≤ MOST,), sorted, of rows drawn at random."""
    drawn = np.random.default_rng(seed).permutation(len(trace))[:MOST]
    return np.sort(fingerprints(trace.take(np.sort(drawn))))


def overlap(sampled: npt.NDArray[np.uint64], trace: Trace) -> float:
    """Share of the sampled training requests that are in ``trace``, 0 to 1."""
    if sampled.size == 0:
        return 0.0
    return float(np.isin(sampled, fingerprints(trace)).mean())
