"""Reads any known log: into memory (``read``), batch by batch (``read_batches``), or into a file (``convert``)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from endcast.datasets.clean import LINED_SCHEMA, clean
from endcast.datasets.files import LogFile, Progress, open_log
from endcast.datasets.formats import FORMATS
from endcast.datasets.formats.base import TraceFormat, take_sample
from endcast.datasets.formats.generic import NAMES
from endcast.datasets.order import Rows, settle
from endcast.datasets.report import ReadReport, Tally
from endcast.datasets.schema import SCHEMA
from endcast.datasets.sort import Spool, in_order
from endcast.datasets.trace import Trace
from endcast.datasets.write import whole_file, write_batches
from endcast.errors import InputError, TraceError


@dataclass(frozen=True)
class Reading:
    """A log that was read: its trace, and the report of how."""

    trace: Trace
    report: ReadReport


class LogBatches:
    """A log being read: yields its usable rows as canonical record batches, in the log's own order. Iterate once.

    What only the whole log tells (order, duplicates, mixed clocks) is not looked at: ``read`` and ``convert`` do.
    """

    def __init__(self, log: LogFile, format: TraceFormat, columns: Mapping[str, str]) -> None:
        self._log = log
        self._format = format
        self._columns = columns
        self.tally = Tally()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.lined():
            yield batch.select(SCHEMA.names)

    def lined(self) -> Iterator[pa.RecordBatch]:
        """The same, with the line on which each row begins in a last column."""
        for rows in self._format.rows(self._log, self.tally, self._columns):
            batch = clean(rows, self.tally)
            if batch.num_rows:
                yield batch

    @property
    def report(self) -> ReadReport:
        """What was read so far; reads the file once more for its digest."""
        return self.tally.report(format=self._format.name, sha256=self._log.sha256())


@contextmanager
def read_batches(
    path: Path | str,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Iterator[LogBatches]:
    """Open a log for reading in bounded memory; arguments as for ``read``."""
    path = Path(path)
    columns = dict(columns or {})
    unknown = sorted(set(columns) - NAMES)
    if unknown:
        hint = f"Known: {', '.join(sorted(NAMES))}"
        raise InputError("columns", f"no column of the trace is called {unknown[0]!r}", hint=hint)
    if columns and format not in (None, "generic"):
        raise InputError("columns", f"the {format} format names its columns itself", hint="Leave one of the two out")
    with open_log(path, progress) as log:
        name = format or ("generic" if columns else detect(log))
        yield LogBatches(log, FORMATS.get(name), columns)


def detect(log: LogFile) -> str:
    """Name of the one format that recognises the log; ``TraceError`` if none does, or more than one."""
    sample = take_sample(log)
    names = [name for name in FORMATS if FORMATS.get(name).detect(sample)]
    if len(names) == 1:
        return names[0]
    known = ", ".join(FORMATS)
    if names:
        hint = "Choose one with --format"
        raise TraceError(f"{log.path} could be of the formats {' and '.join(names)}", hint=hint)
    found = sorted(sample.names) or sorted({key for record in sample.records for key in record})
    seen = f"; it has {', '.join(found[:12])}" if found else ""
    hint = f"Name the columns with --columns, or choose --format ({known})"
    raise TraceError(f"{log.path} is no log of a known format{seen}", hint=hint)


def read(
    path: Path | str,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Reading:
    """The log at ``path`` as a trace in memory, in order of arrival.

    ``format`` is a name in ``FORMATS``, detected from the content where it is not given. ``columns`` maps names of
    the canonical trace to those of the log, and means the generic format. ``progress`` is told the bytes done and in
    all. ``TraceError`` says what is wrong in which line; ``UnknownNameError`` lists the formats.
    """
    with read_batches(path, format=format, columns=columns, progress=progress) as batches:
        rows = Rows()
        kept = []
        for batch in batches.lined():
            rows.add(batch, own_ids=batches.tally.has_ids)
            kept.append(batch)
        plan = settle(rows, batches.tally, str(path))
        table = in_order(pa.Table.from_batches(kept, schema=LINED_SCHEMA).select(SCHEMA.names), plan)
        return Reading(Trace(table.cast(SCHEMA)), batches.report)


def convert(
    path: Path | str,
    out: Path | str,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ReadReport:
    """Write the log at ``path`` to ``out`` as a canonical trace, the same rows as ``read``; a log of any size.

    Memory stays bounded but for about 110 bytes a row while their order is decided. On failure nothing is left behind.
    """
    out = Path(out)
    with (
        read_batches(path, format=format, columns=columns, progress=progress) as batches,
        whole_file(out) as partial,
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder,
    ):
        rows = Rows()
        spool = Spool(Path(folder))
        for batch in batches.lined():
            rows.add(batch, own_ids=batches.tally.has_ids)
            spool.add(batch.select(SCHEMA.names))
        plan = settle(rows, batches.tally, str(path))
        report = batches.report
        write_batches(partial, spool.ordered(plan), report)
    return report
