"""Puts rows into the order of a ``Plan``: a table in memory, or a log of any size by way of temporary files.

The second is a distribution sort: each row's place in the result is known, so rows are dealt into buckets of
neighbouring places, and each bucket is put in order in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from endcast.datasets.order import Plan
from endcast.datasets.schema import SCHEMA
from endcast.datasets.trace import IntArray

BUCKET_BYTES = 1 << 26
MOST_BUCKETS = 200  # each is an open file


def in_order(table: pa.Table, plan: Plan) -> pa.Table:
    """The rows of a canonical table that ``plan`` keeps, in its order."""
    return table if plan.keeps_all(table.num_rows) else _amend(table.take(pa.array(plan.order)), plan.order, plan)


def _amend(table: pa.Table, rows: IntArray, plan: Plan) -> pa.Table:
    """Change ids and arrivals as ``plan`` says; ``rows`` (n,) are the places that the table's rows had in the log."""
    if plan.renamed:
        ids = table.column("request_id").to_pylist()
        new = [name + plan.renamed.get(row, "") for name, row in zip(ids, rows.tolist(), strict=True)]
        table = _replace(table, "request_id", pa.array(new, pa.string()))
    if plan.forget_arrivals:
        for name in ("arrival_ns", "finished_ns"):
            table = _replace(table, name, pa.nulls(table.num_rows, pa.int64()))
    return table


def _replace(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), column)


class Spool:
    """Canonical batches on disk, in the order in which they came, until the whole log has been seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "spool.arrow"
        self._writer = pa.ipc.new_file(self._path, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._bytes = 0
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write_batch(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows

    def close(self) -> None:
        """No more batches will come; may be called again."""
        self._writer.close()

    def ordered(self, plan: Plan) -> Iterator[pa.RecordBatch]:
        """What ``plan`` keeps, in its order."""
        self.close()
        if plan.keeps_all(self._rows):
            yield from self._read(self._path)
            return
        size = self._bucket_rows()
        for bucket, path in enumerate(self._deal(plan, size)):
            rows = plan.order[bucket * size : (bucket + 1) * size]
            table = pa.Table.from_batches(list(self._read(path)))
            table = table.take(pa.array(np.argsort(table.column("place").to_numpy())))
            yield from _amend(table.select(SCHEMA.names), rows, plan).to_batches()
            path.unlink()

    def _bucket_rows(self) -> int:
        by_bytes = self._rows * BUCKET_BYTES // max(self._bytes, 1)
        return max(by_bytes, -(-self._rows // MOST_BUCKETS), 1)

    def _deal(self, plan: Plan, size: int) -> list[Path]:
        """Write each kept row into its bucket's file, with its place in the result."""
        place = np.full(self._rows, -1, dtype=np.int64)
        place[plan.order] = np.arange(len(plan.order))
        paths = [self._folder / f"bucket{i}.arrow" for i in range(-(-len(plan.order) // size))]
        schema = SCHEMA.append(pa.field("place", pa.int64()))
        done = 0
        with ExitStack() as stack:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            writers = [stack.enter_context(pa.ipc.new_file(path, schema, options=options)) for path in paths]
            for batch in self._read(self._path):
                places = place[done : done + batch.num_rows]
                done += batch.num_rows
                lined = batch.append_column("place", pa.array(places)).cast(schema)
                for bucket in np.unique(places[places >= 0] // size).tolist():
                    inside = (places >= 0) & (places // size == bucket)
                    writers[bucket].write_batch(lined.filter(pa.array(inside)))
        return paths

    @staticmethod
    def _read(path: Path) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
