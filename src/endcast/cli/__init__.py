"""The console command ``endcast``: one line here registers a sub-command, and it is imported when it is called.

A target is ``"module:object"``: a function with typer annotations, or a ``typer.Typer`` that groups several. Nothing
else is imported for ``endcast --help``, and a command loads no library that only another one needs.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer

from endcast import __version__
from endcast.cli.lazy import LazyCommand, lazy_group

COMMANDS = (
    LazyCommand("demo", "endcast.cli.demo:demo", "Everything once on a synthetic log, in a few minutes."),
    LazyCommand("trace", "endcast.cli.trace:app", "Convert, describe and synthesise request logs."),
    LazyCommand("train", "endcast.cli.train:train", "Train a model on a log and write a bundle."),
    LazyCommand("evaluate", "endcast.cli.evaluate:evaluate", "Measure a bundle on a log, with baselines beside it."),
    LazyCommand("forecast", "endcast.cli.forecast:forecast", "Forecast when one generation will end."),
    LazyCommand("serve", "endcast.cli.serve:serve", "Serve a bundle's forecasts over HTTP."),
    LazyCommand("calibrate", "endcast.cli.calibrate:calibrate", "Fit how long a decode step takes on your engines."),
    LazyCommand("simulate", "endcast.cli.simulate:simulate", "Play a log with each routing policy and compare them."),
    LazyCommand("explain", "endcast.cli.explain:explain", "Tell why a simulated router started what it did."),
    LazyCommand("sweep", "endcast.cli.sweep:sweep", "Play a log with each of a reward's weights: mean against tail."),
    LazyCommand("route", "endcast.cli.route:route", "Route OpenAI requests to the engines of a fleet."),
)


@dataclass
class _Flags:
    debug: bool = False


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"endcast {__version__}")
        raise typer.Exit


def build_app(flags: _Flags, commands: Sequence[LazyCommand] = COMMANDS) -> typer.Typer:
    """The command line; options that hold for every command are written into ``flags``."""
    app = typer.Typer(
        cls=lazy_group(commands),
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
        version: Annotated[
            bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Forecast when each LLM generation will end, and route requests with those forecasts."""
        flags.debug = debug

    return app


def main(arguments: Sequence[str] | None = None, commands: Sequence[LazyCommand] = COMMANDS) -> NoReturn:
    """Run one command and exit: 0 done, 1 it failed, 2 it was called wrongly, 130 interrupted."""
    from endcast.cli.errors import run_reporting_errors

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs shows question marks instead
    flags = _Flags()
    command = typer.main.get_command(build_app(flags, commands))
    code = run_reporting_errors(
        lambda: command(args=None if arguments is None else list(arguments), prog_name="endcast"),
        debug=lambda: flags.debug,
    )
    raise SystemExit(code)
