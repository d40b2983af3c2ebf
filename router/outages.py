"""Workers that are lost and come back, on a schedule: ``WORKER@SECONDS`` for good, ``WORKER@SECONDS-SECONDS`` for a while.

Seconds are those of the simulation's clock, on which the first request arrives at 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from endcast.errors import InputError

_NUMBER = r"(\d+(?:\.\d*)?(?:e\+?\d+)?)"
_FORM = re.compile(rf"(\d+)@{_NUMBER}(?:-{_NUMBER})?")


@dataclass(frozen=True)
class Outage:
    """``worker`` is lost at ``from_s`` and comes back, empty, at ``until_s``; never, where that is none."""

    worker: int
    from_s: float
    until_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Outage:
        """``"2@30-60"``; ``InputError`` for anything else."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise InputError(
                "lose", f"{text!r:.60} is not WORKER@SECONDS or WORKER@SECONDS-SECONDS", hint="Such as 2@30-60"
            )
        worker, begins, ends = found.groups()
        outage = cls(int(worker), float(begins), None if ends is None else float(ends))
        if outage.until_s is not None and outage.until_s <= outage.from_s:
            raise InputError("lose", f"{text!r:.60} ends before it begins")
        return outage


class Event(NamedTuple):
    """At ``at_s`` a worker is lost, or ``returns``; ``for_good``, where no schedule says that it comes back."""

    at_s: float
    returns: bool
    worker: int
    for_good: bool


def schedule(outages: Sequence[Outage], workers: int) -> tuple[Event, ...]:
    """All events in order of time, at equal times those that return first. ``InputError`` where a worker does not exist
    or is lost while it is away."""
    events: list[Event] = []
    for g in sorted({outage.worker for outage in outages}):
        if g >= workers:
            raise InputError("lose", f"there is no worker {g}: they are numbered from 0 to {workers - 1}")
        own = sorted((outage for outage in outages if outage.worker == g), key=lambda outage: outage.from_s)
        for i, outage in enumerate(own):
            if i > 0 and ((before := own[i - 1].until_s) is None or before > outage.from_s):
                raise InputError("lose", f"worker {g} is lost at {outage.from_s:g} s while it is away")
            events.append(Event(outage.from_s, False, g, outage.until_s is None))
            if outage.until_s is not None:
                events.append(Event(outage.until_s, True, g, False))
    return tuple(sorted(events, key=lambda event: (event.at_s, not event.returns, event.worker)))
