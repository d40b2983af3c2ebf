"""Writes traces as Parquet: whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from endcast.datasets.report import ReadReport
from endcast.datasets.schema import SCHEMA, SOURCE_KEY
from endcast.datasets.trace import Trace
from endcast.errors import TraceError

#: A row group is written at so many rows or bytes, whichever comes first; bounds what is held in memory.
GROUP_ROWS, GROUP_BYTES = 1 << 17, 1 << 26


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``: moved there at the end, removed if anything went wrong."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error.strerror or error}", hint="Check the folder") from error
    finally:
        partial.unlink(missing_ok=True)


def write_trace(path: Path | str, trace: Trace | Iterable[pa.RecordBatch], source: ReadReport | None = None) -> int:
    """Write a trace, or canonical batches in order of arrival, to ``path``; returns the number of rows.

    ``source`` is kept in the file, so that it tells which log it was made from, and how. On failure nothing is left
    behind and an older file stays as it was; no row at all is a ``TraceError``.
    """
    path = Path(path)
    batches = trace.table.to_batches() if isinstance(trace, Trace) else trace
    with whole_file(path) as partial:
        rows = write_batches(partial, batches, source)
        if rows == 0:
            raise TraceError(f"no request to write to {path}", hint="Nothing can be learned from an empty log")
    return rows


def write_batches(path: Path, batches: Iterable[pa.RecordBatch], source: ReadReport | None = None) -> int:
    """Write canonical batches to ``path``, joined into row groups; returns the number of rows."""
    metadata = dict(SCHEMA.metadata)
    if source is not None:
        metadata[SOURCE_KEY] = msgspec.json.encode(source)
    schema = SCHEMA.with_metadata(metadata)
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3) as writer:
        for group in _groups(batches, schema):
            writer.write_table(group, row_group_size=GROUP_ROWS)
            rows += group.num_rows
    return rows


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.num_rows for b in held) >= GROUP_ROWS or sum(b.nbytes for b in held) >= GROUP_BYTES:
            yield pa.Table.from_batches(held).cast(schema)
            held = []
    if held:
        yield pa.Table.from_batches(held).cast(schema)
