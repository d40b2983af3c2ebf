"""The request's earlier turns: how long they ran, how long ago, how much is new in the prompt.

The earlier turn is the session's last finished request where sessions are named. Where only prefix blocks are known it is
the longest finished request whose blocks, but for the last (which the answer went on to fill), lead ours. A prefix
under which many requests have finished is a shared system prompt, not a turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from endcast.errors import BundleError
from endcast.predictors.features.lengths import key_of
from endcast.predictors.features.protocol import Columns, Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.types import Completion, EndReason, Request

#: A prefix that ends more requests than this is shared by sessions.
SHARED_PREFIX = 8
#: Turns that are remembered, the oldest out first.
MOST_TURNS = 100_000
_MASK = (1 << 60) - 1


class Turn(msgspec.Struct, array_like=True):
    """The latest finished turn under one key, with what is kept of those before it."""

    finished_s: float | None
    prompt_tokens: int | None
    log_output: float
    turns: int
    mean_log: float
    most_log: float
    least_log: float
    previous_log: float | None
    requests: int  #: finished under this key


def prefix_keys(blocks: Sequence[int]) -> list[int]:
    """(len(blocks),), one number for each leading part: rolling, the same in every process."""
    keys, rolling = [], 0x9E3779B97F4A7C1
    for block in blocks:
        rolling = ((rolling ^ (block & _MASK)) * 0x100000001B3 + 0x5BD1E995) & _MASK
        keys.append(rolling)
    return keys


class EarlierTurn:
    """Columns about the turns before this one; interval columns: how far each interval is from their lengths."""

    name = "earlier_turn"
    stateful = True
    inputs = ("session", "prefix_blocks")
    columns = (
        "last_log",
        "log_idle_s",
        "log_new_tokens",
        "turns",
        "mean_log",
        "most_log",
        "least_log",
        "previous_log",
    )
    interval_columns = ("from_last", "from_mean", "from_most", "from_least", "from_previous")
    _relative_to = (0, 4, 5, 6, 7)

    def __init__(self, grid: IntervalGrid) -> None:
        self._grid = grid
        self._turns: dict[int, Turn] = {}

    def _find(self, request: Request) -> Turn | None:
        if request.session is not None:
            return self._turns.get(_session_key(request.session))
        for key in reversed(prefix_keys(request.prefix_blocks)):
            turn = self._turns.get(key)
            if turn is not None:
                return turn if turn.requests <= SHARED_PREFIX else None
        return None

    def collect(self, requests: Sequence[Request]) -> Float32Array:
        """(n, 8), the columns themselves."""
        out = np.full((len(requests), len(self.columns)), np.nan, dtype=np.float32)
        for row, request in zip(out, requests, strict=True):
            turn = self._find(request)
            if turn is not None:
                row[:] = _describe(turn, request)
        return out

    def transform(self, raw: Float32Array) -> Columns:
        """The raw numbers, and each interval's distance from the earlier lengths."""
        intervals = self._grid.log_middle[None, :, None] - raw[:, None, self._relative_to]
        return Columns(raw, intervals)

    def observe(self, completion: Completion) -> None:
        """Remember a turn that ran to its end or its cap."""
        if completion.output_tokens < 1 or completion.end not in (EndReason.STOP, EndReason.LENGTH):
            return
        request = completion.request
        key = self._own_key(request)
        if key is None:
            return
        earlier, same = self._find(request), self._turns.pop(key, None)
        if len(self._turns) == MOST_TURNS:
            del self._turns[next(iter(self._turns))]
        self._turns[key] = _turn(completion, earlier, 1 + (same.requests if same and request.session is None else 0))

    @staticmethod
    def _own_key(request: Request) -> int | None:
        if request.session is not None:
            return _session_key(request.session)
        return prefix_keys(request.prefix_blocks)[-2] if len(request.prefix_blocks) > 1 else None

    def dump(self) -> object:
        """A list of [key, turn], oldest first."""
        return [[key, list(msgspec.structs.astuple(turn))] for key, turn in self._turns.items()]

    def load(self, memory: object) -> None:
        """Take over such a list."""
        try:
            self._turns = dict(msgspec.convert(memory, list[tuple[int, Turn]])[-MOST_TURNS:])
        except msgspec.ValidationError as error:
            raise BundleError(f"the memory of {self.name} is damaged: {error}") from None


def _session_key(session: str) -> int:
    key = key_of("session", session)
    assert key is not None
    return key


def _turn(completion: Completion, earlier: Turn | None, requests: int) -> Turn:
    log = math.log(completion.output_tokens)
    before = earlier.turns if earlier else 0
    return Turn(
        finished_s=completion.finished_s,
        prompt_tokens=completion.request.prompt_tokens,
        log_output=log,
        turns=before + 1,
        mean_log=log if earlier is None else (earlier.mean_log * before + log) / (before + 1),
        most_log=log if earlier is None else max(log, earlier.most_log),
        least_log=log if earlier is None else min(log, earlier.least_log),
        previous_log=None if earlier is None else earlier.log_output,
        requests=requests,
    )


def _describe(turn: Turn, request: Request) -> list[float]:
    idle = new = math.nan
    if request.arrival_s is not None and turn.finished_s is not None:
        idle = math.log1p(max(request.arrival_s - turn.finished_s, 0.0))
    if request.prompt_tokens is not None and turn.prompt_tokens is not None:
        grown = request.prompt_tokens - turn.prompt_tokens - math.exp(turn.log_output)
        new = math.copysign(math.log1p(abs(grown)), grown)
    previous = math.nan if turn.previous_log is None else turn.previous_log
    return [
        turn.log_output,
        idle,
        new,
        min(turn.turns, 1000),
        turn.mean_log,
        turn.most_log,
        turn.least_log,
        previous,
    ]
