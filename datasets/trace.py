"""A trace in memory: the canonical table, its columns as arrays, and its rows as requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.schema import SCHEMA
from endcast.errors import TraceError
from endcast.types import Completion, EndReason, Request

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Stands for "unknown" in integer arrays.
UNKNOWN = -1
NS_PER_S = 1_000_000_000


def supposed_service_s(prompt_tokens: Any, output_tokens: Any) -> Any:
    """Seconds from arrival to finish where a log does not tell (DESIGN section 8); numbers or arrays."""
    return 0.2 + prompt_tokens / 10_000 + 0.03 * output_tokens


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests of one log, in order of arrival where the log tells arrivals; never empty."""

    table: pa.Table

    def __post_init__(self) -> None:
        if not self.table.schema.equals(SCHEMA):
            raise TraceError("the table does not have the canonical trace's schema", hint="Use endcast.datasets.read")
        if self.table.num_rows == 0:
            raise TraceError("the trace holds no request", hint="Nothing can be learned from an empty log")

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def _integers(self, name: str) -> IntArray:
        column = self.table.column(name).fill_null(UNKNOWN)
        return np.asarray(column.to_numpy(), dtype=np.int64)

    @cached_property
    def has_arrivals(self) -> bool:
        """Whether every row has an arrival time."""
        return bool(self.table.column("arrival_ns").null_count == 0)

    @cached_property
    def arrival_ns(self) -> IntArray:
        """(n,), nanoseconds; only where ``has_arrivals``."""
        if not self.has_arrivals:
            raise TraceError("the log has no arrival times", hint="Give some with --arrivals poisson or a log's name")
        return self._integers("arrival_ns")

    @cached_property
    def arrival_s(self) -> npt.NDArray[np.float64]:
        """(n,), seconds since the first arrival."""
        since: npt.NDArray[np.float64] = (self.arrival_ns - self.arrival_ns.min()) / NS_PER_S
        return since

    @cached_property
    def prompt_tokens(self) -> IntArray:
        """(n,), ``UNKNOWN`` where the log does not tell."""
        return self._integers("prompt_tokens")

    @cached_property
    def output_tokens(self) -> IntArray:
        """(n,), ≥ 0."""
        return self._integers("output_tokens")

    @cached_property
    def end(self) -> npt.NDArray[np.str_]:
        """(n,), each an ``EndReason``'s value."""
        return np.asarray(self.table.column("end").to_numpy(), dtype=np.str_)

    @cached_property
    def is_event(self) -> BoolArray:
        """(n,), ended by itself; all others are right-censored after their last token."""
        event: BoolArray = self.end == EndReason.STOP.value
        return event

    @cached_property
    def cap(self) -> IntArray:
        """(n,), most output tokens allowed, as ``Request.cap``; ``UNKNOWN`` where no cap is known."""
        limit, prompt = self._integers("context_limit"), self.prompt_tokens
        room = np.where((limit > 0) & (prompt >= 0), np.maximum(limit - prompt, 1), UNKNOWN)
        most = self._integers("max_tokens")
        both = (room > 0) & (most > 0)
        smallest: IntArray = np.where(both, np.minimum(room, most), np.maximum(room, most))
        return smallest

    @cached_property
    def finished_s(self) -> npt.NDArray[np.float64]:
        """(n,), seconds since the first arrival: as logged, else as DESIGN section 8 supposes."""
        supposed = self.arrival_s + supposed_service_s(np.maximum(self.prompt_tokens, 0), self.output_tokens)
        logged = self._integers("finished_ns")
        told = self.table.column("finished_ns").is_valid().to_numpy()
        finished: npt.NDArray[np.float64] = np.where(told, (logged - self.arrival_ns.min()) / NS_PER_S, supposed)
        return finished

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` over the canonical table's values."""
        sink = hashlib.sha256()
        for name in SCHEMA.names:
            sink.update(name.encode())
            for part in _value_bytes(self.table.column(name)):
                sink.update(part)
        return f"sha256:{sink.hexdigest()}"

    def take(self, index: npt.NDArray[np.integer[Any]] | BoolArray) -> Trace:
        """Those rows only, in the order given (indices or a mask)."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return Trace(self.table.take(pa.array(index)))

    def attribute(self, name: str) -> list[Any]:
        """(n,), each row's attribute ``name``, ``None`` where it has none."""
        texts = self.table.column("attributes").to_pylist()
        return [None if text is None else msgspec.json.decode(text).get(name) for text in texts]

    def requests(self) -> Iterator[Request]:
        """Each row as a ``Request``, in order; ``arrival_s`` on the log's own clock."""
        for batch in self.table.to_batches(max_chunksize=4096):
            columns = {name: batch.column(name).to_pylist() for name in _REQUEST_COLUMNS}
            for values in zip(*columns.values(), strict=True):
                yield _to_request(dict(zip(columns, values, strict=True)))

    def completions(self) -> Iterator[Completion]:
        """Each row as a ``Completion``, in the trace's order."""
        outputs, ends = self.output_tokens, self.end
        finished = self.finished_s + self.arrival_ns.min() / NS_PER_S if self.has_arrivals else None
        for i, request in enumerate(self.requests()):
            yield Completion(
                request=request,
                output_tokens=int(outputs[i]),
                end=EndReason(str(ends[i])),
                finished_s=None if finished is None else float(finished[i]),
            )


_REQUEST_COLUMNS = [name for name in SCHEMA.names if name not in ("finished_ns", "output_tokens", "end", "output")]
_JSON_COLUMNS = ("messages", "parameters", "attributes")


def _to_request(row: dict[str, Any]) -> Request:
    arrival = row.pop("arrival_ns")
    for name in _JSON_COLUMNS:
        text = row[name]
        row[name] = None if text is None else msgspec.json.decode(text)
    row["messages"] = None if row["messages"] is None else tuple(row["messages"])
    row["parameters"] = row["parameters"] or {}
    row["attributes"] = row["attributes"] or {}
    row["prefix_blocks"] = tuple(row["prefix_blocks"] or ())
    return Request(arrival_s=None if arrival is None else arrival / NS_PER_S, **row)


def _value_bytes(column: pa.ChunkedArray) -> Iterator[bytes]:
    """Bytes that depend on the values only: not on how the column was cut, padded, or what lies under its nulls."""
    yield np.packbits(column.is_valid().to_numpy()).tobytes()
    if pa.types.is_integer(column.type):
        yield column.fill_null(0).to_numpy().astype("<i8").tobytes()
        return
    is_list = pa.types.is_list(column.type)
    lengths = pc.list_value_length(column) if is_list else pc.binary_length(column)
    yield lengths.fill_null(0).to_numpy().astype("<i8").tobytes()
    for chunk in column.chunks:
        if is_list:
            yield np.asarray(chunk.flatten().fill_null(0)).astype("<i8").tobytes()
        else:
            yield "".join(chunk.drop_null().to_pylist()).encode()
