"""What a simulation plays: the requests of a log as arrays, and the times at which they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from endcast.datasets.trace import Trace
from endcast.errors import SimulationError
from endcast.router.length_class import UNKNOWN_LENGTH, supposed_tokens
from endcast.router.policy import BoolArray
from endcast.router.priority import weights_of
from endcast.survival import NO_CAP, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Workload:
    """n requests in order of arrival.

    ``row`` (n,) each one's row in the log, by which forecasts are asked for; ``arrival_s`` (n,) seconds, non-decreasing;
    ``prompt`` (n,) tokens ≥ 0; ``output`` (n,) tokens ≥ 1; ``supposed`` (n,) output tokens supposed from flags;
    ``tenant`` (n,) numbers ≥ 0, −1 where unknown, ``weight`` (n,) priorities > 0 and ``cap`` (n,) each one's own cap on
    output tokens, ``NO_CAP`` where it has none, or none of these;
    ``prefix_blocks`` n arrays of leading blocks, or none. ``left_out`` says how many requests of the log are not among
    these, and why.
    """

    row: IntArray
    arrival_s: FloatArray
    prompt: IntArray
    output: IntArray
    supposed: IntArray
    tenant: IntArray | None = None
    weight: FloatArray | None = None
    cap: IntArray | None = None
    prefix_blocks: tuple[IntArray, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self) == 0:
            reasons = ", ".join(f"{count} with {reason}" for reason, count in self.left_out.items() if count)
            raise SimulationError(
                f"no request of the log can be simulated{f' ({reasons})' if reasons else ''}",
                hint="A simulation needs requests with prompt and output lengths",
            )
        if np.any(np.diff(self.arrival_s) < 0) or not np.all(np.isfinite(self.arrival_s)):
            raise SimulationError("requests must be in order of arrival, at finite times")
        if int(self.output.min()) < 1 or int(self.prompt.min()) < 0:
            raise SimulationError("prompts must have no fewer than 0 tokens and outputs no fewer than 1")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def from_arrays(
        cls,
        *,
        arrival_s: FloatArray,
        prompt: IntArray,
        output: IntArray,
        supposed: IntArray | None = None,
        tenant: IntArray | None = None,
        weight: FloatArray | None = None,
        cap: IntArray | None = None,
        prefix_blocks: tuple[IntArray, ...] = (),
    ) -> Workload:
        """Requests as they come, sorted by arrival (equal times keep their order).

        Those without output (``output`` 0) and those of unknown prompt (−1) are left out and counted.
        """
        counts = {"no output": int(np.sum(output <= 0)), "unknown prompt": int(np.sum((prompt < 0) & (output > 0)))}
        kept = np.flatnonzero((output > 0) & (prompt >= 0))
        row = kept[np.argsort(arrival_s[kept], kind="stable")]
        return cls(
            row=row,
            arrival_s=np.asarray(arrival_s, dtype=np.float64)[row],
            prompt=np.asarray(prompt, dtype=np.int64)[row],
            output=np.asarray(output, dtype=np.int64)[row],
            supposed=np.full(len(row), UNKNOWN_LENGTH) if supposed is None else supposed[row],
            tenant=None if tenant is None else tenant[row],
            weight=None if weight is None else weight[row],
            cap=None if cap is None else cap[row],
            prefix_blocks=tuple(prefix_blocks[i] for i in row) if prefix_blocks else (),
            left_out=counts,
        )

    @classmethod
    def from_trace(
        cls, trace: Trace, *, arrival_s: FloatArray | None = None, prompt: IntArray | None = None
    ) -> Workload:
        """The requests of a log; ``arrival_s`` and ``prompt`` (len(trace),) where it tells none or others are wanted."""
        return cls.from_arrays(
            arrival_s=trace.arrival_s if arrival_s is None else arrival_s,
            prompt=trace.prompt_tokens if prompt is None else prompt,
            output=trace.output_tokens,
            supposed=_supposed(trace),
            tenant=_tenants(trace),
            weight=weights_of(trace),
            cap=np.where(trace.cap < 0, NO_CAP, trace.cap),
            prefix_blocks=_prefix_blocks(trace),
        )

    def at(self, arrival_s: FloatArray) -> Workload:
        """The same requests at other times (n,), in the same order."""
        return replace(self, arrival_s=arrival_s)

    def oversized(self, capacity: int) -> BoolArray:
        """(n,), which requests come to hold more KV tokens than ``capacity``, prompt and output together."""
        larger: BoolArray = self.prompt + self.output > capacity
        return larger

    def reordered(self, order: IntArray, arrival_s: FloatArray) -> Workload:
        """The requests in ``order`` (k,), arriving at these times (k,), non-decreasing."""
        return replace(
            self,
            row=self.row[order],
            arrival_s=arrival_s,
            prompt=self.prompt[order],
            output=self.output[order],
            supposed=self.supposed[order],
            tenant=None if self.tenant is None else self.tenant[order],
            weight=None if self.weight is None else self.weight[order],
            cap=None if self.cap is None else self.cap[order],
            prefix_blocks=tuple(self.prefix_blocks[i] for i in order) if self.prefix_blocks else (),
        )

    def take(self, kept: BoolArray) -> Workload:
        """Those requests only (a mask (n,)), in the same order."""
        index = np.flatnonzero(kept)
        return self.reordered(index, self.arrival_s[index])


def _prefix_blocks(trace: Trace) -> tuple[IntArray, ...]:
    column = trace.table.column("prefix_blocks").combine_chunks()
    if column.null_count == len(column):
        return ()
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy()
    return tuple(values[offsets[i] : offsets[i + 1]] for i in range(len(column)))


def _tenants(trace: Trace) -> IntArray | None:
    """(n,) a number for each name, −1 where the log tells none; nothing where it tells none at all."""
    column = trace.table.column("tenant").combine_chunks()
    if column.null_count == len(column):
        return None
    codes = column.dictionary_encode().indices
    numbers: IntArray = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _supposed(trace: Trace) -> IntArray:
    supposed = np.full(len(trace), UNKNOWN_LENGTH, dtype=np.int64)
    column = trace.table.column("parameters")
    for i in np.flatnonzero(column.is_valid().to_numpy()):
        supposed[i] = supposed_tokens(msgspec.json.decode(column[int(i)].as_py()))
    return supposed
