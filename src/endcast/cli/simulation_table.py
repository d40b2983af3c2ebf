"""A simulation as a table for a terminal of 120 columns, and the sentences below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from endcast.reporting.simulation_summary import (
    Key,
    Simulated,
    each_text,
    efficiency,
    key_of,
    label_of,
    value_captured,
)
from endcast.router.results import PolicyResult


class Column(NamedTuple):
    """One figure: its title, where it is found, how it and its spread are written (the same decimals), whether more
    (+1) or less (−1) is better, and whether the spread is shown where there is one."""

    title: str
    path: tuple[str, ...]
    write: Callable[[float, int], str]
    better: int = 0
    spread: bool = False


def decimals(value: float) -> int:
    """Of seconds and the like: three digits say enough."""
    return 0 if value >= 100.0 else 1 if value >= 1.0 else 2


def _number(value: float, places: int) -> str:
    return f"{value:,.{places}f}"


def _share(value: float, places: int) -> str:
    return f"{value:.3f}".removeprefix("0")


def _whole(value: float, places: int) -> str:
    return f"{value:,.0f}"


COLUMNS = (
    Column("tokens/s", ("throughput",), _whole, +1, spread=True),
    Column("efficiency", ("efficiency",), _share, +1, spread=True),
    Column("wait s,\nmean", ("wait_s", "mean"), _number, -1, spread=True),
    Column("\np99", ("wait_s", "p99"), _number, -1),
    Column("\nlongest", ("wait_s", "max"), _number, -1),
    Column("E2E s,\nmean", ("e2e_s", "mean"), _number, -1),
    Column("over-\ntaken", ("overtakings_max",), _whole, -1),
    Column("back-\nlog", ("backlog",), _whole, -1),
    Column("KV a\nslot", ("kv_per_slot",), lambda value, places: f"{value:.2f}"),
)


_LINE_UNDER_TITLES = box.Box("    \n    \n ── \n    \n    \n    \n    \n    \n")


def title_of(simulated: Simulated) -> str:
    """What was simulated, in one line."""
    told, seeds = simulated.report.settings, simulated.report.seeds
    runs = "1 run" if seeds == 1 else f"means of {seeds} runs ± standard deviation"
    return (
        f"{told['log']}, simulated: {told['requests']:,} requests, {_fleet(told)} slots, "
        f"utilization {told['utilization']:g}, {runs}"
    )


def _fleet(told: dict[str, Any]) -> str:
    one_each = isinstance(told["slots"], Sequence)
    return (
        f"{told['workers']} workers with {each_text(told['slots'])}"
        if one_each
        else f"{told['workers']} × {told['slots']}"
    )


def result_table(simulated: Simulated, title: str) -> Table:
    """One row a result; the best of each column that a fleet could have is marked with a star."""
    report = simulated.report
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=_LINE_UNDER_TITLES,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("policy, forecasts", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.title, justify="right", vertical="bottom")
    table.add_column("value\ncaptured", justify="right")
    best = [_best_of(column, simulated.attainable) for column in COLUMNS]
    fair: set[Key] = {key_of(result) for result in simulated.attainable}
    for result in report.results:
        starred = best if key_of(result) in fair else [""] * len(COLUMNS)
        cells = [
            _cell(column, result, star, spread=column.spread and report.seeds > 1)
            for column, star in zip(COLUMNS, starred, strict=True)
        ]
        captured = value_captured(report, result)
        name = label_of(result) + (" (saw the answers)" if result.forecast in simulated.saw_answers else "")
        table.add_row(Text(name), *cells, Text("–" if captured is None else f"{captured:.0%}"))
    return table


def _value(figures: dict[str, Any], path: tuple[str, ...]) -> float:
    found: Any = figures
    for name in path:
        found = found[name]
    return float(found)


def _best_of(column: Column, results: list[PolicyResult]) -> str:
    """The best value as it is written; empty where nothing is better than another."""
    if column.better == 0 or len(results) < 2:
        return ""
    best = column.better * max(column.better * _value(result.mean, column.path) for result in results)
    return column.write(best, decimals(best))


def _cell(column: Column, result: PolicyResult, best: str, *, spread: bool) -> Text:
    value = _value(result.mean, column.path)
    written = column.write(value, decimals(value))
    text = Text(f"{written}*" if written == best else written, style="bold" if written == best else "")
    if spread:
        text.append(f" ±{column.write(_value(result.spread, column.path), decimals(value))}", style="dim not bold")
    return text


def sentences(simulated: Simulated) -> Iterator[str]:
    """What the table says, in words."""
    now, then = simulated.now, simulated.best
    yield "* the best that a fleet could have; true lengths (oracle) cannot be had. KV a slot: 1 = nothing heavy was put off."
    yield "Value captured: of the efficiency that true lengths gain over br_0, the share that these forecasts gain."
    yield (
        f"Simulated with {label_of(now)}: {1.0 - efficiency(now):.1%} of decode time is lost waiting for the heaviest "
        f"worker; a request waits {_wait(now)} s for a slot in the mean."
    )
    if then is not now:
        gain = then.mean["throughput"] / now.mean["throughput"] - 1.0
        yield (
            f"Simulated with {label_of(then)}: {1.0 - efficiency(then):.1%} is lost, a request waits {_wait(then)} s, and "
            f"{abs(gain):.1%} {'more' if gain >= 0 else 'fewer'} tokens a second are decoded."
        )
    yield from memory_sentences(simulated)
    yield from loss_sentences(simulated)
    rounds = then.mean["decision_ms"]
    yield (
        f"A routing round of {label_of(then)} took {rounds['p50']:.2f} ms in the median, {rounds['p99']:.2f} ms at p99 "
        "(measured here, CPU time)."
    )


def memory_sentences(simulated: Simulated) -> Iterator[str]:
    """What bounded KV memory did; nothing where it is not bounded."""
    told, results = simulated.report.settings, simulated.report.results
    if told["kv_capacity"] is None:
        return
    yield (
        f"KV memory of {each_text(told['kv_capacity'])} tokens a worker, admission {told['admission']}, victim {told['victim']}. "
        "Thrown out, and tokens prefilled anew:"
    )
    for result in results:
        found = result.mean
        yield (
            f"  {label_of(result)}: {found['preemptions']:,.0f} times, {found['preempted_share']:.2%} of the requests, "
            f"{found['recomputed_tokens']:,.0f} tokens"
        )
    if any(result.mean["rejected"] for result in results):
        most = max(result.mean["rejected"] for result in results)
        yield f"{most:,.0f} requests were refused: they are larger than a worker."


def loss_sentences(simulated: Simulated) -> Iterator[str]:
    """What lost workers did; nothing where none was lost."""
    told = simulated.report.settings
    if told["lose"]:
        back = ", ".join(f"{label_of(result)} {result.mean['requeued']:,.0f}" for result in simulated.report.results)
        yield f"Workers lost ({', '.join(told['lose'])}): requests that went back into the queue: {back}."


def _wait(result: PolicyResult) -> str:
    mean = float(result.mean["wait_s"]["mean"])
    return _number(mean, decimals(mean))
