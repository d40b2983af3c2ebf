"""The columns of a synthetic log as a canonical table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth_apps import CONTEXT_LIMIT, MODELS, App
from endcast.datasets.trace import NS_PER_S, UNKNOWN, IntArray
from endcast.types import EndReason

#: 2024-01-01T00:00:00Z.
START_NS = 1_704_067_200 * NS_PER_S


def canonical_table(rows: Mapping[str, npt.NDArray[Any]], apps: Sequence[App], block_tokens: int) -> pa.Table:
    """The table without texts; ``rows`` as ``synthesize`` makes them, in order of arrival."""
    size = len(rows["arrival"])
    finish = rows["finish"]
    unfinished = np.isnan(finish)
    sessions = _joined("s", pa.array(rows["session"]).cast(pa.string()))
    chat = np.asarray([app.chat for app in apps])[rows["app"]]
    made = {
        "request_id": _joined(sessions, "-", pa.array(rows["turn"] + 1).cast(pa.string())),
        "arrival_ns": pa.array(_nanoseconds(rows["arrival"])),
        "finished_ns": pa.array(_nanoseconds(np.where(unfinished, 0.0, finish)), mask=unfinished),
        "prompt_tokens": pa.array(rows["prompt"]),
        "output_tokens": pa.array(rows["output"]),
        "end": _words([reason.value for reason in EndReason], rows["end"]),
        "max_tokens": pa.array(rows["cap"], mask=rows["cap"] == UNKNOWN),
        "context_limit": pa.array(np.full(size, CONTEXT_LIMIT, dtype=np.int64)),
        "model": _words(list(MODELS), rows["model"]),
        "tenant": _words([f"{app.name}-{i + 1}" for app in apps for i in range(app.tenants)], rows["tenant"]),
        "session": pc.if_else(pa.array(chat), sessions, pa.scalar(None, pa.string())),
        "prefix_blocks": prefix_blocks(rows, apps, block_tokens),
        "parameters": _words([app.parameters for app in apps], rows["app"]),
        "attributes": _words([msgspec.json.encode({"app": app.name}).decode() for app in apps], rows["app"]),
    }
    columns = [made.get(name, pa.nulls(size, SCHEMA.field(name).type)) for name in SCHEMA.names]
    return pa.table(columns, schema=SCHEMA)


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*(pa.scalar(p) if isinstance(p, str) else p for p in parts), "")


def _nanoseconds(seconds: npt.NDArray[np.float64]) -> IntArray:
    """Whole microseconds since the log's start, as nanoseconds since 1970."""
    return np.asarray(START_NS + np.round(seconds * 1e6).astype(np.int64) * 1000)


def _words(table: list[str], places: IntArray) -> pa.Array:
    return pa.array(table, pa.string()).take(pa.array(places))


def prefix_blocks(rows: Mapping[str, npt.NDArray[Any]], apps: Sequence[App], block_tokens: int) -> pa.Array:
    """(n,) lists of block ids. Full blocks of the system prompt are the tenant's, later full ones the session's (until
    its history is cut off), a last block that is not full is the request's own."""
    prompt = rows["prompt"]
    counts = -(-prompt // block_tokens)
    ends = np.cumsum(counts)
    row = np.repeat(np.arange(len(prompt)), counts)
    block = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    system = np.asarray([app.system_tokens for app in apps])[rows["app"]] // block_tokens
    most = int(counts.max())
    tenants = int(rows["tenant"].max()) + 1
    segments = int(rows["segment"].max()) + 1
    of_tenant = rows["tenant"][row] * most + block
    of_session = (tenants + rows["session"][row] * segments + rows["segment"][row]) * most + block
    own = (tenants + (int(rows["session"].max()) + 1) * segments) * most + row
    full = (block + 1) * block_tokens <= prompt[row]
    ids = np.where(full, np.where(block < system[row], of_tenant, of_session), own)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
