"""What the core knows of one request from its arrival to its end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from endcast.survival import NO_CAP, SurvivalBatch
from endcast.types import Request

#: No slot.
NOWHERE = -1


class Phase(Enum):
    """Where a request stands; it only moves forward, except back to ``ARRIVING`` for another attempt, or to go on elsewhere."""

    ARRIVING = "arriving"  #: its forecast is being made
    WAITING = "waiting"  #: in the pool, or in a worker's queue
    RUNNING = "running"  #: placed on a worker
    AWAY = "away"  #: its engine gave it back before its end; its prompt is being computed anew
    REFUSED = "refused"  #: the policy will not serve it; ``on_end`` is due all the same
    GONE = "gone"  #: ended, however


#: The same by name, for what is done with every token: Python 3.11 is slow to find members in their class.
ARRIVING, WAITING, RUNNING, AWAY, GONE = Phase.ARRIVING, Phase.WAITING, Phase.RUNNING, Phase.AWAY, Phase.GONE


class Intake(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request as routing sees it. ``width`` answers (n) need so many slots; ``request`` is for forecasts."""

    prompt_tokens: int
    width: int = 1
    max_tokens: int = NO_CAP
    tenant: int = -1
    weight: float = 1.0
    supposed: int = 0
    prefix_blocks: tuple[int, ...] = ()  #: leading ones of the prompt, for policies that look at them
    request: Request | None = None


class Ticket:
    """A request in the router's books. Made by ``RoutingCore.open``; others read it and pass it back."""

    __slots__ = (
        "arrived_s",
        "carried",
        "companions",
        "expected",
        "forecast",
        "generated",
        "intake",
        "key",
        "number",
        "overtaken",
        "owner",
        "phase",
        "placed_s",
        "prompt",
        "reason",
        "slots",
        "worker",
    )

    def __init__(self, key: int, intake: Intake) -> None:
        self.key = key  #: its own for life
        self.number = key  #: of its entry in the cluster; another for each attempt
        self.companions: Sequence[int] = ()  #: numbers of the entries of its other answers
        self.intake = intake
        self.phase = Phase.ARRIVING
        self.overtaken = 0  #: how many later ones were placed before it in books before these
        self.worker = NOWHERE
        self.slots: list[int] = []  #: one for each answer, or ``NOWHERE``
        self.prompt = intake.prompt_tokens  #: as well as it is known
        self.generated = [0] * intake.width  #: tokens of each answer
        self.carried = 0  #: of these, tokens generated before an engine gave it back: prompt by now
        self.forecast: SurvivalBatch | None = None  #: at admission; kept for requests of several answers
        self.expected: float | None = None  #: output tokens expected at admission
        self.reason = ""  #: which policy placed it, and why that one
        self.arrived_s = 0.0  #: when it began to wait for a place
        self.placed_s = 0.0
        self.owner: Any = None  #: for whoever opened it

    @property
    def to_prefill(self) -> int:
        """KV tokens that a worker must have before it generates the next one."""
        return self.prompt + self.carried
