"""Load reports that come late: what a router knows of queues that are not its own.

Policies that send requests on at once live on what workers tell: how many requests each runs and queues, how much KV
these hold. Workers tell every so many seconds, and a report takes time to arrive. In between, such a router sees the
last report that reached it; most also count what they sent on since that report was made, of which it says nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from endcast.errors import InputError
from endcast.router.policy import ClusterView, Decisions
from endcast.survival import IntArray

#: What of a view is told by the workers.
_TOLD = ("load", "active", "free", "room", "queued", "queued_tokens", "supposed", "queued_supposed")


@dataclass(frozen=True, kw_only=True)
class LoadReports:
    """A report each ``every_s`` seconds that arrives ``delay_s`` later, both ≥ 0; ``own``: whether the router adds what
    it has sent since."""

    every_s: float = 0.0
    delay_s: float = 0.0
    own: bool = True

    def __post_init__(self) -> None:
        for field, value in (("report_every", self.every_s), ("report_delay", self.delay_s)):
            if not (np.isfinite(value) and value >= 0.0):
                raise InputError(field, f"must be a finite number of seconds from 0 on, not {value!r:.60}")

    @property
    def instant(self) -> bool:
        """Whether queues are seen as they are."""
        return self.every_s == 0.0 and self.delay_s == 0.0


@dataclass(eq=False)
class _Report:
    """The workers at ``made_s``, and of what was sent on since: requests, prompt tokens and supposed output (3, G)."""

    made_s: float
    told: dict[str, Any]
    since: IntArray


class LateView:
    """What one router sees in one run. A report is made at the start of the first step at or after it is due."""

    def __init__(self, reports: LoadReports, slots: IntArray, capacity: IntArray) -> None:
        """Before the first report arrives, workers with ``slots`` and KV ``capacity`` (G,) are taken to be empty."""
        self._reports, self._workers, self._due_s = reports, len(slots), 0.0
        self._under_way: deque[_Report] = deque()
        empty = {name: np.zeros_like(slots) for name in _TOLD} | {"free": slots, "room": capacity}
        self._latest = self._report(-np.inf, empty)

    def _report(self, made_s: float, told: dict[str, Any]) -> _Report:
        return _Report(made_s, told, np.zeros((3, self._workers), dtype=np.int64))

    def due(self, now_s: float) -> bool:
        """Whether workers report now."""
        return now_s >= self._due_s

    def report(self, view: ClusterView) -> None:
        """Workers tell what the view shows."""
        every = self._reports.every_s
        self._due_s = view.now_s if every == 0.0 else (view.now_s // every + 1.0) * every
        self._under_way.append(self._report(view.now_s, {name: getattr(view, name).copy() for name in _TOLD}))

    def see(self, view: ClusterView) -> ClusterView:
        """The view with what the latest report to arrive by ``view.now_s`` tells."""
        while self._under_way and self._under_way[0].made_s + self._reports.delay_s <= view.now_s:
            self._latest = self._under_way.popleft()
        told = dict(self._latest.told)
        if self._reports.own:
            requests, prompts, supposed = self._latest.since
            told["queued"] = told["queued"] + requests
            told["queued_tokens"] = told["queued_tokens"] + prompts
            told["queued_supposed"] = told["queued_supposed"] + supposed
        return msgspec.structs.replace(view, **told)

    def sent(self, view: ClusterView, decided: Decisions) -> None:
        """What was decided on this view is on its way to the workers."""
        position, worker = decided.position, decided.worker
        sizes = (np.ones_like(position), view.waiting_prompt[position], view.waiting_supposed[position])
        for report in (self._latest, *self._under_way):
            for row, amount in zip(report.since, sizes, strict=True):
                np.add.at(row, worker, amount)
