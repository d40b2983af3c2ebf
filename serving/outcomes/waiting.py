"""What waits for the thread that takes outcomes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from endcast.errors import EndcastError
from endcast.serving.outcomes.record import RequestPart
from endcast.serving.outcomes.schema import OutcomeTold, Status


@dataclass(frozen=True)
class Told:
    """An outcome as it was told, checked, with its ``request`` where that was told as well."""

    told: OutcomeTold
    request: RequestPart | None


@dataclass(eq=False)
class Batch:
    """The outcomes of one call, and where its answer goes."""

    outcomes: Sequence[Told]
    answer: Future[list[Status]] = field(default_factory=Future)


@dataclass(eq=False)
class Job:
    """Something to be done between two groups of outcomes."""

    work: Callable[[], None]
    done: Future[None] = field(default_factory=Future)

    def run(self) -> None:
        """Do it; an error goes to whoever waits, and on if it is a fault of ours."""
        try:
            self.work()
        except BaseException as error:
            self.done.set_exception(error)
            if not isinstance(error, EndcastError):
                raise
        else:
            self.done.set_result(None)


def fail(future: Future[Any], error: BaseException) -> None:
    """Let whoever waits know, if nobody has."""
    if not future.done():
        future.set_exception(error)
