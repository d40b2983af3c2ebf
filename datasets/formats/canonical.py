"""endcast's own trace: Parquet with the canonical schema and its version. Read again, it is the same trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from endcast.datasets.clean import LogRows
from endcast.datasets.files import LogFile
from endcast.datasets.formats.base import Sample, parquet_file
from endcast.datasets.formats.generic import parquet_batches
from endcast.datasets.report import ReadReport, Tally
from endcast.datasets.schema import SCHEMA, SCHEMA_VERSION, SOURCE_KEY, VERSION_KEY
from endcast.datasets.times import Unit
from endcast.errors import TraceError


@dataclass(frozen=True)
class _Canonical:
    name: str = "canonical"
    summary: str = "endcast's own trace (Parquet)"

    def detect(self, sample: Sample) -> bool:
        return sample.metadata is not None and VERSION_KEY in sample.metadata

    def rows(self, log: LogFile, tally: Tally, columns: Mapping[str, str]) -> Iterator[LogRows]:
        schema = parquet_file(log).schema_arrow
        _check_version(schema, log)
        missing = [name for name in SCHEMA.names if name not in schema.names]
        if missing:
            hint = "Convert the log again, or read the file with --format generic"
            raise TraceError(f"{log.path}: the trace lacks the columns {', '.join(missing)}", hint=hint)
        _recall_notes(schema, tally)
        for lines, found in parquet_batches(log, tally, SCHEMA.names):
            found["arrival"], found["finished"] = found.pop("arrival_ns"), found.pop("finished_ns")
            yield LogRows(lines, found, units={"arrival": Unit.NS, "finished": Unit.NS})


def _check_version(schema: pa.Schema, log: LogFile) -> None:
    told = (schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    if not told.isdecimal():
        hint = "Read it with --format generic"
        raise TraceError(f"{log.path}: the file has no version of the canonical trace", hint=hint)
    if int(told) > SCHEMA_VERSION:
        message = f"{log.path}: the trace has schema version {told}, this endcast knows {SCHEMA_VERSION}"
        raise TraceError(message, hint="Update endcast, or convert the log again with this one")


def _recall_notes(schema: pa.Schema, tally: Tally) -> None:
    """What was noted when the trace was converted still holds, for instance that token counts are estimates."""
    packed = (schema.metadata or {}).get(SOURCE_KEY)
    if packed is None:
        return
    try:
        source = msgspec.json.decode(packed, type=ReadReport)
    except msgspec.DecodeError:
        tally.note("the trace does not tell which log it comes from")
        return
    for note in source.notes:
        tally.note(note)


CANONICAL = _Canonical()
