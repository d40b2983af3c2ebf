"""A plugin of the test engines: collectives that vLLM lacks on CPU and data-parallel mixture-of-experts ranks need.

Ranks hold different numbers of tokens, so gathers and scatters have a size for each rank. These use gloo, as the rest does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def register() -> None:
    """Called by vLLM in each of its processes."""
    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _all_gatherv(self: Any, rows: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """All ranks' rows, one behind the other; of each tensor where it is a list of them."""
    if isinstance(rows, torch.Tensor):
        return _gathered(self, rows, sizes)
    return [_gathered(self, each, sizes) for each in rows]


def _gathered(self: Any, rows: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
    counts = sizes or [rows.shape[0]] * self.world_size
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=self.cpu_group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _reduce_scatterv(self: Any, rows: torch.Tensor, dim: int = 0, sizes: list[int] | None = None) -> torch.Tensor:
    """The sum over ranks, of which each gets its own rows; summed in float32."""
    total = rows.float().contiguous()
    dist.all_reduce(total, group=self.cpu_group)
    counts = sizes or [total.shape[0] // self.world_size] * self.world_size
    first = sum(counts[: self.rank_in_group])
    return total[first : first + counts[self.rank_in_group]].to(rows.dtype).contiguous()
