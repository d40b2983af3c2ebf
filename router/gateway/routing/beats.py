"""The step clock of a decode fleet, inferred from its streams.

An engine gives each running request at most one event a step. So the second event in one slot since a step began says
that another one has begun: all streams together tell one clock, and no engine is asked.
"""

from __future__ import annotations

#: Weight of the newest step in running means.
_NEWEST = 0.1
#: A pause longer than this many mean steps is idleness, not a step.
_IDLE_STEPS = 20.0


class Beats:
    """Which of ``slots`` were heard in the step going on, how long steps last, and tokens per event."""

    __slots__ = ("_began_s", "_heard", "_silent", "count", "step_s", "tokens_per_step")

    def __init__(self, slots: int) -> None:
        self._silent = bytes(slots)
        self._heard = bytearray(self._silent)
        self._began_s: float | None = None
        self.count = 0  #: steps seen
        self.step_s: float | None = None  #: mean seconds a step; ``None`` until two steps were seen
        self.tokens_per_step = 1.0  #: mean tokens that an event brings; more than 1 with speculative decoding

    def go_on(self, before: Beats) -> None:
        """Take on what was measured before the fleet changed; the step that goes on is begun anew."""
        self.count, self.step_s, self.tokens_per_step = before.count, before.step_s, before.tokens_per_step

    def hear(self, slot: int, tokens: float, now_s: float) -> bool:
        """An event with ``tokens`` (a mean, where several came at once) came in ``slot``: whether it is the first of a new step."""
        new = self._heard[slot] != 0
        if new:
            self._begin(now_s)
        self._heard[slot] = 1
        if tokens > 0:
            self.tokens_per_step += 0.01 * (tokens - self.tokens_per_step)
        return new

    def vacate(self, slot: int) -> None:
        """What ran in ``slot`` is gone: its successor's first event opens no step."""
        self._heard[slot] = 0

    def _begin(self, now_s: float) -> None:
        self.count += 1
        self._heard = bytearray(self._silent)
        if self._began_s is not None:
            lasted = now_s - self._began_s
            if self.step_s is None:
                self.step_s = lasted
            elif lasted < _IDLE_STEPS * max(self.step_s, 1e-4):
                self.step_s += _NEWEST * (lasted - self.step_s)
        self._began_s = now_s
