"""The mock fleet without HTTP: ranks with slots and KV memory, and one step loop with a barrier over all of them.

A step lasts t_fixed + t_kv·(heaviest rank's KV tokens), as in the simulator's reference cluster; then every running answer of
every rank has one more token. A request of n answers takes n slots of its rank.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

#: What answers are made of: scripts of one to four bytes a character.
WORDS = ("the", " fox", "\n\n", " \u4f60\u597d", " \U0001f30d", " caf\u00e9", '"usage":{', " \\")


#: The id of an answer's first token.
_FIRST_ID = 1000


@dataclass(frozen=True, kw_only=True)
class MockSettings:
    """What every rank of a mock fleet is like. ``ranks``: behind one address, pinned by header; ``None`` for no ranks."""

    workers: int = 2
    ranks: int | None = None
    slots: int = 8
    kv_capacity: int = 100_000
    block_size: int = 16
    t_fixed_s: float = 0.002
    t_kv_s: float = 0.0
    model: str = "mock"
    context_limit: int = 4096
    output_tokens: int = 12  #: of a request that does not say, with ``mock_output_tokens``
    prefill_s: float = 0.0  #: what a prefill lasts, where it is asked for alone
    tokens_per_step: int = 1  #: more than 1 as with speculative decoding
    key: str | None = None
    metrics: bool = True  #: whether ``/metrics`` is there


@dataclass
class Faults:
    """What is wrong with a rank at present."""

    unavailable: int = 0  #: so many next calls are answered 503; health checks too while below 0
    hang: bool = False  #: calls are taken and never answered
    reset: int = 0  #: so many next connections are dropped before any answer
    empty: int = 0  #: so many next answers are 200 and end at once
    cut_after: int | None = None  #: streams are cut off after so many tokens
    silent_after: int | None = None  #: streams fall silent after so many tokens
    error_after: int | None = None  #: streams tell of an error after so many tokens
    recompute: int = 0  #: so many next requests of more than ``recompute_after`` tokens are given back after those
    recompute_after: int = 3
    piece: int | None = None  #: bytes are sent in pieces of this size
    line_end: str = "\n"


@dataclass(eq=False)
class Generation:
    """One request in an engine: its answers' lengths, and tokens so far; ``news`` is set when there are more."""

    request_id: str
    prompt_tokens: int
    lengths: list[int]
    capped: list[bool]
    first: int = 0  #: tokens of the answer that the prompt has already, where it goes on after having been given back
    given_back: bool = False  #: it ends with a marker that says so
    made: list[int] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.made = [0] * len(self.lengths)

    @property
    def kv_tokens(self) -> int:
        """The prompt once, and what was generated."""
        return self.prompt_tokens + sum(self.made)

    @property
    def active(self) -> int:
        """Answers that still run."""
        return sum(made < length for made, length in zip(self.made, self.lengths, strict=True))


def word(answer: int, token: int) -> str:
    """The text of a token: the same for every engine, so that answers can be compared."""
    return WORDS[(3 * answer + token) % len(WORDS)]


def text_of(answer: int, start: int, end: int) -> str:
    """The text of the tokens from ``start`` on and before ``end``."""
    return "".join(word(answer, token) for token in range(start, end))


def ids_of(start: int, end: int) -> list[int]:
    """The ids of those tokens."""
    return [_FIRST_ID + token for token in range(start, end)]


def tokens_in(prompt: str | list[int]) -> int:
    """How many tokens of an answer a prompt ends with: how far it had come when it was given back."""
    if isinstance(prompt, list):
        return next((k for k in range(len(prompt), 0, -1) if prompt[-k:] == ids_of(0, k)), 0)
    texts = (text_of(0, 0, k) for k in range(len(prompt), 0, -1))
    return next((len(prompt) - k for k, text in enumerate(texts) if prompt.endswith(text)), 0)


class Rank:
    """One engine rank."""

    def __init__(self, index: int, settings: MockSettings) -> None:
        self.index, self.settings = index, settings
        self.faults = Faults()
        self.running: list[Generation] = []
        self.waiting: deque[Generation] = deque()
        self.aborted = self.finished = self.seen = self.peak = 0
        self.request_ids: list[str] = []

    @property
    def kv_tokens(self) -> int:
        """In use."""
        return sum(generation.kv_tokens for generation in self.running)

    def admit(self) -> None:
        """Start what waits, in order, as far as there are slots and memory."""
        active = sum(generation.active for generation in self.running)
        while self.waiting:
            first = self.waiting[0]
            fits = active + len(first.lengths) <= self.settings.slots or not self.running
            if not fits or self.kv_tokens + first.prompt_tokens > self.settings.kv_capacity:
                return
            self.running.append(self.waiting.popleft())
            active += len(first.lengths)
        self.peak = max(self.peak, active)

    def step(self) -> None:
        """Every running answer gains its tokens; generations that have all of theirs leave."""
        for generation in self.running:
            for answer, (made, length) in enumerate(zip(generation.made, generation.lengths, strict=True)):
                generation.made[answer] = min(made + self.settings.tokens_per_step, length)
            generation.news.set()
        done = [generation for generation in self.running if not generation.active]
        self.finished += len(done)
        self.running = [generation for generation in self.running if generation.active]

    def abort(self, generation: Generation) -> None:
        """Its client left."""
        if generation in self.running:
            self.running.remove(generation)
            self.aborted += 1
        elif generation in self.waiting:
            self.waiting.remove(generation)
            self.aborted += 1

    def metrics(self, engine: int) -> list[str]:
        """Its lines in ``/metrics``."""
        labels = f'{{engine="{engine}",model_name="{self.settings.model}"}}'
        size = self.settings.block_size
        blocks = self.settings.kv_capacity // size
        return [
            f"vllm:num_requests_running{labels} {float(len(self.running))}",
            f"vllm:num_requests_waiting{labels} {float(len(self.waiting))}",
            f"vllm:kv_cache_usage_perc{labels} {self.kv_tokens / self.settings.kv_capacity}",
            f"vllm:num_preemptions_total{labels} 0.0",
            f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{blocks}",engine="{engine}"}} 1.0',
        ]


class Steps:
    """The barrier: all ranks step together, as fast as the heaviest one allows."""

    def __init__(self, ranks: list[Rank], settings: MockSettings) -> None:
        self._ranks, self._settings = ranks, settings
        self._work = asyncio.Event()
        self.paused = False  #: no step is taken until it is unset
        self.count = 0
        self.busy_s = 0.0
        self.imbalance_tokens = self.heaviest_tokens = 0

    def wake(self) -> None:
        """There is something to run."""
        self._work.set()

    async def run(self) -> None:
        """Step for ever."""
        while True:
            for rank in self._ranks:
                rank.admit()
            if not any(rank.running for rank in self._ranks):
                self._work.clear()
                await self._work.wait()
                continue
            loads = [rank.kv_tokens for rank in self._ranks]
            lasts = self._settings.t_fixed_s + self._settings.t_kv_s * max(loads)
            await asyncio.sleep(lasts)
            while self.paused:
                await asyncio.sleep(0.01)
            for rank in self._ranks:
                rank.step()
            self.count += 1
            self.busy_s += lasts
            self.heaviest_tokens += max(loads)
            self.imbalance_tokens += max(loads) * len(loads) - sum(loads)
