"""The protocol of a trace format, and the sample of a log by which formats recognise themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from endcast.datasets.clean import LogRows, plain_values
from endcast.datasets.csv_rows import csv_header
from endcast.datasets.files import PARQUET_MAGIC, LogFile
from endcast.datasets.json_records import json_records
from endcast.datasets.report import Tally
from endcast.datasets.text import first_character
from endcast.errors import TraceError

SAMPLE_RECORDS = 5


@dataclass(frozen=True)
class Sample:
    """The beginning of a log. ``kind`` is ``parquet``, ``csv``, ``json`` or ``unknown``; ``names`` are the columns of
    a table, ``records`` the first objects of a JSON log or rows of a Parquet file, ``metadata`` the latter's own."""

    kind: str
    names: frozenset[str] = frozenset()
    records: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[bytes, bytes] | None = None

    def has(self, *names: str) -> bool:
        """Whether all of these are columns of the table, or keys of every sampled record."""
        if self.kind == "json":
            return bool(self.records) and all(name in record for record in self.records for name in names)
        return self.names.issuperset(names)


class TraceFormat(Protocol):
    """How one kind of log is recognised and read. Register it in ``FORMATS``; the file's name is never looked at."""

    name: str
    summary: str

    def detect(self, sample: Sample) -> bool:
        """Whether the log is of this format; at most one format says so."""

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        """The log's rows, in its own order. ``columns`` maps canonical names to the log's, where a user gave a map."""


def take_sample(log: LogFile) -> Sample:
    """Look at the beginning of a log; ``TraceError`` if it is compressed and damaged there."""
    head = log.stream().read(4096)
    if head[:4] == PARQUET_MAGIC:
        file = parquet_file(log)
        schema = file.schema_arrow
        first = next(parquet_rows(log, file, batch_rows=SAMPLE_RECORDS), None)
        records = () if first is None else tuple(plain_values(first.to_struct_array()))
        return Sample("parquet", names=frozenset(schema.names), records=records, metadata=schema.metadata or {})
    if not head.strip() or b"\0" in head:
        return Sample("unknown")
    if first_character(log) in ("[", "{"):
        records = tuple(record.value for record in islice(json_records(log, Tally()), SAMPLE_RECORDS))
        return Sample("json", records=records)
    return Sample("csv", names=frozenset(name.strip() for name in csv_header(log)))


def parquet_file(log: LogFile) -> pq.ParquetFile:
    """The log as a Parquet file; ``TraceError`` if it is damaged or cut off."""
    try:
        return pq.ParquetFile(log.seekable())
    except (pa.ArrowException, OSError) as error:
        message = f"{log.path} is no whole Parquet file ({error})"
        raise TraceError(message, hint="It may be cut off: write or copy it again") from error


def parquet_rows(
    log: LogFile, file: pq.ParquetFile, *, batch_rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of a Parquet file, all columns or those named; ``TraceError`` if it is damaged inside."""
    done = 0
    try:
        for batch in file.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False):
            yield batch
            done += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        message = f"{log.path}, after row {done}: the Parquet file is damaged ({error})"
        raise TraceError(message, hint="Write or copy the file again") from error
