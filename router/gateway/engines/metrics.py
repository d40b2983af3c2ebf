"""What an engine's ``/metrics`` tell of each rank. The names of metrics and labels are here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from prometheus_client.parser import text_string_to_metric_families

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second in older engines
_CACHE = "vllm:cache_config_info"
_WANTED = (_RUNNING, _WAITING, *_USAGE, _CACHE)


class RankMetrics(msgspec.Struct, frozen=True):
    """One rank: requests that run or wait there, its KV tokens in use, and tokens a block (1 where it does not tell).

    ``None`` where the engine does not tell: a missing metric is not zero.
    """

    requests: int | None = None
    kv_tokens: int | None = None
    block_size: int = 1


class _Rank:
    def __init__(self) -> None:
        self.requests: float | None = None
        self.usage: float | None = None
        self.block_size = self.blocks = 0

    def shown(self) -> RankMetrics:
        tokens = None
        if self.usage is not None and self.block_size and self.blocks:
            tokens = max(round(self.usage * self.blocks * self.block_size), 0)
        requests = None if self.requests is None else max(round(self.requests), 0)
        return RankMetrics(requests, tokens, max(self.block_size, 1))


def read_metrics(text: str) -> dict[int, RankMetrics]:
    """Each rank by its ``engine`` label, 0 where there is none; ``ValueError`` where a line cannot be read."""
    ranks: dict[int, _Rank] = {}
    for name, labels, value in _samples(text):
        engine = labels.get("engine", "0")
        if not engine.isdecimal():
            continue
        rank = ranks.setdefault(int(engine), _Rank())
        if name == _CACHE:
            size, blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
            rank.block_size = int(size) if size.isdecimal() else 0
            rank.blocks = int(blocks) if blocks.isdecimal() else 0
        elif not math.isfinite(value):
            continue
        elif name in _USAGE:
            rank.usage = value
        else:
            rank.requests = value + (rank.requests or 0.0)
    return {engine: rank.shown() for engine, rank in ranks.items()}


def together(ranks: dict[int, RankMetrics]) -> RankMetrics:
    """All ranks behind an address that the router takes for one worker."""
    told = list(ranks.values())
    requests = [rank.requests for rank in told if rank.requests is not None]
    tokens = [rank.kv_tokens for rank in told if rank.kv_tokens is not None]
    return RankMetrics(
        sum(requests) if requests else None,
        sum(tokens) if tokens and len(tokens) == len(told) else None,
        max((rank.block_size for rank in told), default=1),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]  # a few of the hundreds that engines tell
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name in _WANTED:
                yield sample.name, dict(sample.labels), float(sample.value)
