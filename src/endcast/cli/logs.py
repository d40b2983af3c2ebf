"""The log that a command reads: its options, and reading it with progress and remarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from endcast.cli.output import err_console, progress
from endcast.datasets.files import Progress
from endcast.datasets.formats import FORMATS
from endcast.datasets.read import Reading, read
from endcast.errors import InputError

LogArgument = Annotated[Path, typer.Argument(metavar="LOG", help="A log file; .gz and .zst are read as they are.")]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="F", help=f"Its format; detected if not given: {', '.join(FORMATS)}."),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="A=B,…", help="The trace's column A is the log's column B (generic format)."),
]


def parse_columns(options: list[str] | None) -> dict[str, str]:
    """``["a=b,c=d", "e=f"]`` as ``{"a": "b", "c": "d", "e": "f"}``; ``InputError`` for anything else."""
    columns: dict[str, str] = {}
    for part in ",".join(options or []).split(",") if options else ():
        ours, equals, theirs = (piece.strip() for piece in part.partition("="))
        if not (ours and equals and theirs):
            raise InputError("--columns", f"{part!r} is not of the form trace_column=log_column")
        if ours in columns:
            raise InputError("--columns", f"{ours} is given twice")
        columns[ours] = theirs
    return columns


@contextmanager
def reading(log: Path) -> Iterator[Progress]:
    """Progress of reading a log, for ``endcast.datasets.read``."""
    with progress(f"reading {log.name}") as handle:
        yield handle.update


def read_log(log: Path, format: str | None, columns: list[str] | None) -> Reading:
    """Read a log; that rows were dropped is said on stderr."""
    with reading(log) as show:
        found = read(log, format=format, columns=parse_columns(columns), progress=show)
    report = found.report
    if report.rows_dropped:
        err_console.print(
            f"{log}: {report.rows_dropped:,} of {report.rows_read:,} requests were dropped; "
            "'endcast trace convert' says why",
            markup=False,
        )
    return found
