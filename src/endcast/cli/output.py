"""What every command prints with: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

#: Columns where the output is no terminal: wide, so that a table in a file or a pipe keeps its rows whole.
PIPE_WIDTH = 160
#: Seconds of work before the first line of plain progress, and the factor by which the gaps grow.
FIRST_LINE_S, GAP_GROWTH = 5.0, 1.6


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


console = _console(stderr=False)
err_console = _console(stderr=True)

#: The ``--json`` option of every reporting command.
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else, to stdout.")]


def _plain(value: object) -> object:
    """Whatever JSON does not know: numpy's numbers and arrays, and anything that prints as one word."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"cannot write a {type(value).__name__} as JSON")


def to_json(value: object) -> str:
    """``value`` as indented JSON; a number that is not finite (an undefined figure) is written as null."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode()


def emit_json(value: object) -> None:
    """Print ``value`` as JSON to stdout, as it is: no colours, no wrapping."""
    sys.stdout.write(to_json(value) + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, text_columns: int = 1) -> Table:
    """A table to ``console.print``: the first ``text_columns`` flush left, the rest, numbers, flush right.

    Cells are printed as they are: brackets are no markup. ``None`` prints as a dash.
    """
    from rich.text import Text

    out = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for i, column in enumerate(columns):
        out.add_column(column, justify="left" if i < text_columns else "right", overflow="fold")
    for row in rows:
        out.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    return out


class ProgressHandle(Protocol):
    """What work tells of itself."""

    def advance(self, amount: float = 1) -> None:
        """``amount`` more is done."""

    def update(self, done: float, total: float | None = None) -> None:
        """``done`` in all; ``total`` where it has become known."""


@dataclass
class _Bar:
    bar: RichProgress
    task: Any

    def advance(self, amount: float = 1) -> None:
        self.bar.advance(self.task, amount)

    def update(self, done: float, total: float | None = None) -> None:
        self.bar.update(self.task, completed=done, total=total)  # rich keeps its total where this one is None


@dataclass
class _Lines:
    """Progress where nobody watches (a log file): a line now and then, none for quick work."""

    description: str
    total: float | None
    clock: Callable[[], float] = time.monotonic
    done: float = 0
    lines: int = 0
    started: float = field(init=False)
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.due = self.started + FIRST_LINE_S

    def advance(self, amount: float = 1) -> None:
        self.update(self.done + amount)

    def update(self, done: float, total: float | None = None) -> None:
        self.done = done
        self.total = self.total if total is None else total
        now = self.clock()
        if now >= self.due:
            self.due = self.started + (now - self.started) * GAP_GROWTH
            self._print("")

    def finish(self) -> None:
        """The last line, if there was a first."""
        if self.lines:
            self._print(", done")

    def _print(self, suffix: str) -> None:
        self.lines += 1
        share = f"{100 * self.done / self.total:.0f} %" if self.total else f"{self.done:,.0f}"
        sys.stderr.write(f"{self.description}: {share} after {self.clock() - self.started:.0f} s{suffix}\n")


@contextmanager
def progress(description: str, total: float | None = None) -> Iterator[ProgressHandle]:
    """Show how far long work is: a bar on a terminal, else sparse lines, always on stderr.

    ``total`` is in the units that the handle is advanced by; ``None`` where it is unknown.
    """
    if not err_console.is_terminal:
        lines = _Lines(description, total)
        yield lines
        lines.finish()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=err_console, transient=True) as bar:
        yield _Bar(bar, bar.add_task(description, total=total))
