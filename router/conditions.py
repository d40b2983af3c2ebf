"""What is played beside the reference cluster: bounded memory, a prefill stage, unlike workers, losses and the like."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from endcast.errors import InputError
from endcast.router.admission.optimistic import Optimistic
from endcast.router.admission.rule import AdmissionRule
from endcast.router.outages import Outage
from endcast.router.preemption import VictimRule, newest
from endcast.router.prefill import Prefill
from endcast.router.reports import LoadReports
from endcast.router.speculation import Speculation


@dataclass(frozen=True, kw_only=True)
class KvRules:
    """What holds where KV memory is bounded: when requests may start, which ones go when it runs out, and how many
    tokens a second, > 0, are prefilled anew when one goes on (there, or where its worker was lost)."""

    admission: AdmissionRule = field(default_factory=lambda: Optimistic(0.0))
    victim: VictimRule = newest
    recompute_rate: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.recompute_rate > 0.0:
            raise InputError(
                "recompute_rate", f"must be a number of tokens a second above 0, not {self.recompute_rate}"
            )


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The default is the reference cluster.

    ``speed`` (G,) > 0 at which each worker reads KV, all 1 unless given; ``prefill`` a stage before decode; ``outages``
    when workers are lost; ``reports`` what policies that dispatch at once know of queues; ``speculation`` how many tokens
    a step makes.
    """

    speed: tuple[float, ...] | None = None
    prefill: Prefill | None = None
    outages: tuple[Outage, ...] = ()
    reports: LoadReports = field(default_factory=LoadReports)
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        for value in self.speed or ():
            if not (np.isfinite(value) and value > 0.0):
                raise InputError("speed", f"must be finite numbers above 0, not {value!r:.60}")
