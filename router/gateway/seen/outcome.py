"""How a request went, for the log and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from endcast.types import EndReason


@dataclass(slots=True)
class Outcome:
    """How a request went, for the log and the metrics. Times are Unix seconds, durations from arrival."""

    arrival_s: float
    status: int = 0
    end: EndReason = EndReason.ERROR
    problem: str = ""  #: what went wrong, if anything did
    attempts: int = 0
    worker: str = ""
    wait_s: float = 0.0
    ttft_s: float | None = None
    duration_s: float = 0.0
    recomputed: int = 0  #: how often it went on elsewhere since an engine had given it back
    failed_on: list[str] = field(default_factory=list)
    engine: str = ""  #: address that was called last
    prefill_worker: str = ""  #: where its prompt was computed, if not where it ran
    prefill_s: float | None = None
    cached_tokens: int | None = None  #: of the prompt, by the prefill worker: decode counts all that it fetched
