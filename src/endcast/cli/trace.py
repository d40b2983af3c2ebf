"""``endcast trace``: convert logs to the canonical trace, describe them, make synthetic ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument, parse_columns, reading
from endcast.cli.output import JsonOption, console, emit_json, progress, table
from endcast.datasets.describe import Description, Spread, describe
from endcast.datasets.read import convert, read
from endcast.datasets.report import ReadReport, describe_lines

app = typer.Typer(no_args_is_help=True)

OutOption = Annotated[Path, typer.Option("--out", metavar="T.parquet", help="Where to write the trace.")]


@app.command("convert")
def convert_command(
    log: LogArgument,
    out: OutOption,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> None:
    """Write any known log as a canonical trace, and say what was dropped and repaired, and why."""
    with reading(log) as show:
        report = convert(log, out, format=format, columns=parse_columns(columns), progress=show)
    if json:
        emit_json({"out": str(out), **_report_json(report)})
    else:
        _print_report(log, report)
        console.print(f"wrote {out}: {report.rows_kept:,} requests", markup=False)


@app.command("describe")
def describe_command(
    log: LogArgument, format: FormatOption = None, columns: ColumnsOption = None, json: JsonOption = False
) -> None:
    """Counts, spans, percentiles, censoring, caps and oddities of a log."""
    with reading(log) as show:
        found = read(log, format=format, columns=parse_columns(columns), progress=show)
    described = describe(found.trace)
    if json:
        emit_json({"read": _report_json(found.report), **msgspec.to_builtins(described)})
    else:
        _print_report(log, found.report)
        _print_description(described)


@app.command("synth")
def synth_command(
    out: OutOption,
    requests: Annotated[int, typer.Option("--requests", metavar="N", help="How many requests.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The same seed makes the same log.")] = 0,
    text: Annotated[bool, typer.Option("--text", help="With prompts and outputs.")] = False,
    hours: Annotated[float, typer.Option("--hours", metavar="H", help="Hours over which sessions begin.")] = 24.0,
    json: JsonOption = False,
) -> None:
    """Make a log with known hazards: apps, tenants, sessions, caps, aborts, heavy tails, bursts."""
    from endcast.datasets.synth import SynthSettings, synthesize
    from endcast.datasets.write import write_trace

    settings = SynthSettings(requests=requests, seed=seed, text=text, hours=hours)
    with progress("making requests", total=requests) as handle:
        log = synthesize(settings, progress=lambda done, _: handle.update(done))
        write_trace(out, log.trace)
    if json:
        ends = describe(log.trace).ends
        made = {"requests": len(log.trace), "seed": seed, "text": text, "digest": log.trace.digest, "ends": ends}
        emit_json({"out": str(out), **made})
    else:
        console.print(f"wrote {out}: {len(log.trace):,} requests", markup=False)


def _report_json(report: ReadReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return plain


def _print_report(log: Path, report: ReadReport) -> None:
    console.print(
        f"{log}: {report.format}, {report.rows_read:,} requests read, {report.rows_kept:,} kept, "
        f"{report.rows_dropped:,} dropped",
        markup=False,
    )
    for what, reasons in (("dropped", report.dropped), ("repaired", report.repaired)):
        for reason, lines in reasons.items():
            console.print(f"  {what} {describe_lines(lines, report.numbering)}: {reason}", markup=False)
    for note in report.notes:
        console.print(f"  {note}", markup=False)


def _print_description(described: Description) -> None:
    rows = [(name, _words(value)) for name, value in _facts(described) if value is not None]
    console.print(table("Trace", ("what", "value"), rows))
    names = list(described.output_tokens.percentiles)
    spreads = {
        "prompt tokens": described.prompt_tokens,
        "output tokens": described.output_tokens,
        "seconds between arrivals": described.inter_arrival_s,
        "turns a session": described.turns,
    }
    lines = [(name, *_spread_cells(spread, names)) for name, spread in spreads.items() if spread is not None]
    console.print(table("Spread", ("of", "mean", "least", *(f"p{n}" for n in names), "most"), lines))
    for oddity in described.oddities:
        console.print(f"! {oddity}", markup=False)


def _facts(described: Description) -> Iterator[tuple[str, object]]:
    yield "requests", described.requests
    yield "first arrival", described.first_arrival
    yield "last arrival", described.last_arrival
    yield "requests a second", described.requests_per_s
    yield "prompt tokens in all", described.total_prompt_tokens
    yield "output tokens in all", described.total_output_tokens
    yield "output tokens of the longest tenth", f"{described.longest_tenth:.1%}"
    yield from ((f"ended by {reason}", count) for reason, count in described.ends.items())
    yield "censored", f"{described.censored:.1%}"
    yield "with a known cap", f"{described.caps_known:.1%}"
    yield "at or above their cap", described.at_cap
    yield "models, tenants, sessions", f"{described.models:,}, {described.tenants:,}, {described.sessions:,}"
    if described.prefixes is not None:
        yield "prefix blocks seen before", f"{described.prefixes.reused:.1%} of {described.prefixes.blocks:,}"
    yield from ((f"with {name}", f"{share:.1%}") for name, share in described.with_text.items() if share)


def _words(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def _spread_cells(spread: Spread, names: list[str]) -> list[str]:
    values = [spread.mean, spread.least, *(spread.percentiles[name] for name in names), spread.most]
    return [f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}" for value in values]
