"""Train and test parts of a trace, as row indices: by time, by session, by prompt, or by groups given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from endcast.datasets.trace import BoolArray, IntArray, Trace
from endcast.errors import InputError, TraceError


@dataclass(frozen=True, eq=False)
class Split:
    """``train`` and ``test`` (indices of rows, ascending, disjoint). ``cut_ns``: arrivals before it train, for a split
    by time. ``dropped``: rows in neither part."""

    train: IntArray
    test: IntArray
    cut_ns: int | None = None
    dropped: int = 0


def by_time(trace: Trace, train: float = 0.7) -> Split:
    """The first ``train`` of all requests, by arrival, against the rest.

    Training requests that are still running when the test part begins are dropped: nobody could have learned from
    them by then. Requests that arrive at one instant stay on one side.
    """
    _check_share("train", train)
    arrivals = trace.arrival_ns
    order = np.sort(arrivals)
    cut = int(order[min(round(train * len(order)), len(order) - 1)])
    before = arrivals < cut
    finished = trace.finished_s <= (cut - arrivals.min()) / 1e9
    split = Split(
        train=np.flatnonzero(before & finished),
        test=np.flatnonzero(~before),
        cut_ns=cut,
        dropped=int((before & ~finished).sum()),
    )
    return _checked(split, "Take another share, or a longer log")


def by_session(trace: Trace, test: float = 0.3, seed: int = 0) -> Split:
    """Whole sessions on one side each; a request without a session is one of its own."""
    sessions = trace.table.column("session").to_pylist()
    own = trace.table.column("request_id").to_pylist()
    return by_hash([f"s{s}" if s is not None else f"r{r}" for s, r in zip(sessions, own, strict=True)], test, seed)


def by_prompt(trace: Trace, test: float = 0.3, seed: int = 0) -> Split:
    """All requests with one prompt (text, or messages) on one side; ``TraceError`` if the log has no prompts."""
    prompts = trace.table.column("prompt").to_pylist()
    messages = trace.table.column("messages").to_pylist()
    texts = [p if p is not None else m for p, m in zip(prompts, messages, strict=True)]
    if all(text is None for text in texts):
        raise TraceError("the log has no prompts to split by", hint="Split it by time or by session")
    own = trace.table.column("request_id").to_pylist()
    return by_hash([f"p{t}" if t is not None else f"r{r}" for t, r in zip(texts, own, strict=True)], test, seed)


def by_hash(groups: Sequence[str], test: float = 0.3, seed: int = 0) -> Split:
    """About ``test`` of the groups against the rest; ``groups`` (n,) names each row's. A group's side depends on its
    name and ``seed`` only, so that it keeps its side when the log grows."""
    _check_share("test", test)
    sides = {group: _fraction(group, seed) < test for group in set(groups)}
    return _of_mask(np.fromiter((sides[group] for group in groups), dtype=bool, count=len(groups)))


def by_group(groups: npt.NDArray[np.generic] | Sequence[object], test: Iterable[object]) -> Split:
    """The rows whose group is in ``test`` against all others; ``groups`` (n,) names each row's."""
    wanted = set(test)
    listed = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)
    return _of_mask(np.fromiter((group in wanted for group in listed), dtype=bool, count=len(listed)))


def _of_mask(in_test: BoolArray) -> Split:
    split = Split(train=np.flatnonzero(~in_test), test=np.flatnonzero(in_test))
    return _checked(split, "Take another share, or name other groups")


def _checked(split: Split, hint: str) -> Split:
    for name in ("train", "test"):
        if len(getattr(split, name)) == 0:
            raise TraceError(f"the split leaves no request to the {name} part", hint=hint)
    return split


def _check_share(name: str, share: float) -> None:
    if not 0.0 < share < 1.0:
        raise InputError(name, f"must lie between 0 and 1, not {share}")


def _fraction(group: str, seed: int) -> float:
    """A number in [0, 1), uniform over groups."""
    digest = hashlib.blake2b(group.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest) / 2.0**64
