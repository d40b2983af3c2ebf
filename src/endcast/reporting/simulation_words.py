"""The words and tables of a simulation's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from endcast.reporting.simulation_summary import (
    NO_WINDOW,
    ORACLE,
    Simulated,
    by_efficiency,
    each_text,
    efficiency,
    forecast_label,
    forecast_results,
    key_of,
    label_of,
    slots_in_all,
    uses_forecasts,
    value_captured,
)
from endcast.router.results import PolicyResult


def decimals(value: float) -> int:
    """As many as make three digits."""
    return 0 if value >= 100.0 else 1 if value >= 1.0 else 2


def _three_digits(value: float) -> str:
    return f"{value:,.{decimals(value)}f}"


def seconds(value: float) -> str:
    """Three digits, and the unit, not to be parted at a line's end."""
    return f"{_three_digits(value)}\u00a0s"


def percent(value: float) -> str:
    """A share of 1 with one decimal."""
    return f"{100.0 * value:.1f}\u00a0%"


class Column(NamedTuple):
    """A column of the table of results; ``unit`` stands behind the mean only, ``scale`` is for shares."""

    title: str
    path: tuple[str, ...]
    unit: str = ""
    places: int | None = None  #: ``None``: three digits
    scale: float = 1.0

    def cell(self, result: PolicyResult, *, several: bool) -> tuple[str, str]:
        """Mean and, over several runs, spread with as many decimals."""
        mean, spread = (self.scale * _value(figures, self.path) for figures in (result.mean, result.spread))
        places = decimals(mean) if self.places is None else self.places
        return f"{mean:,.{places}f}{self.unit}", f"±{spread:,.{places}f}" if several else ""


COLUMNS = (
    Column("tokens/s", ("throughput",), places=0),
    Column("efficiency", ("efficiency",), " %", places=1, scale=100.0),
    Column("wait, mean", ("wait_s", "mean"), " s"),
    Column("median", ("wait_s", "p50"), " s"),
    Column("99 of 100", ("wait_s", "p99"), " s"),
    Column("longest", ("wait_s", "max"), " s"),
    Column("E2E, mean", ("e2e_s", "mean"), " s"),
    Column("99 of 100", ("e2e_s", "p99"), " s"),
    Column("KV a slot", ("kv_per_slot",), places=2),
    Column("overtaken", ("overtakings_max",), places=0),
    Column("backlog", ("backlog",), places=0),
)
#: Behind those where KV memory is bounded.
MEMORY_COLUMNS = (
    Column("thrown out", ("preempted_share",), " %", places=2, scale=100.0),
    Column("prefilled anew, tokens", ("recomputed_tokens",), places=0),
    Column("refused", ("rejected",), places=0),
)
_KNOWS: Mapping[str, str] = MappingProxyType(
    {
        "none": "nothing: as far as it looks ahead, nothing ends",
        "kaplan_meier": "how long this log's generations run, but not one from another",
        ORACLE: "the true lengths; nobody has them, they mark what perfect forecasts would give",
    }
)
_LEFT_OUT = (
    "A step takes {step}, so no time here is a promise.",
    "Arrivals keep the log's pattern, stretched to the load asked for. Nobody leaves or asks again because of a long wait.",
    "{prefill} No transfer of KV is simulated, and no prefix cache that would make a hit cheaper.",
    "{memory}",
    "{workers} {tokens}",
    "{reports}",
    "The time to make forecasts is not counted.",
)


def _value(figures: dict[str, Any], path: tuple[str, ...]) -> float:
    found: Any = figures
    for name in path:
        found = found[name]
    return float(found)


def lead(simulated: Simulated) -> str:
    """The answer in two sentences."""
    now, best = simulated.now, simulated.best
    lost = 1.0 - efficiency(now)
    noise = max(now.spread["efficiency"], best.spread["efficiency"])
    if best is now or efficiency(best) - efficiency(now) <= noise:
        return (
            f"In simulation this fleet loses {percent(lost)} of its decode time with {label_of(now)}, because all workers wait for the "
            "heaviest one, and none of the other policies played here does clearly better."
        )
    gain = best.mean["throughput"] / now.mean["throughput"] - 1.0
    return (
        f"In simulation this fleet loses {percent(lost)} of its decode time with {label_of(now)}, because all workers wait for the "
        f"heaviest one. With {label_of(best)} it would lose {percent(1.0 - efficiency(best))}, decode {percent(abs(gain))} "
        f"{'more' if gain >= 0.0 else 'fewer'} tokens a second, and a request would wait {seconds(best.mean['wait_s']['mean'])} for a slot "
        f"instead of {seconds(now.mean['wait_s']['mean'])}."
    )


def cards(simulated: Simulated) -> list[tuple[str, str, str]]:
    """Name, value and remark of the figures that matter most."""
    now, best = simulated.now, simulated.best

    def change(path: tuple[str, ...], write: Callable[[float], str]) -> str:
        before, after = (write(_value(result.mean, path)) for result in (now, best))
        return before if best is now else f"{before} → {after}"

    remark = f"simulated with {label_of(now)}" if best is now else "simulated, today → best"
    made = [
        ("decode time lost, %", change(("efficiency",), lambda value: f"{100.0 * (1.0 - value):.1f}"), remark),
        ("tokens a second", change(("throughput",), lambda value: f"{value:,.0f}"), remark),
        ("mean wait for a slot, s", change(("wait_s", "mean"), _three_digits), remark),
        ("longest wait, s", change(("wait_s", "max"), _three_digits), remark),
    ]
    captured = value_captured(simulated.report, best)
    if captured is not None:
        made.append(("forecast value captured, %", f"{100.0 * captured:.0f}", "simulated; 100 = true lengths"))
    return made


def setup(simulated: Simulated) -> str:
    """What was played, and how to read it."""
    told, seeds = simulated.report.settings, simulated.report.seeds
    runs = (
        "in one run"
        if seeds == 1
        else f"in {seeds} runs, of which all figures are means and ± is the standard deviation"
    )
    text = (
        f"{told['requests']:,} requests of {told['log']} were played through {told['workers']} decode workers with {each_text(told['slots'])} "
        f"slots each, at {told['utilization']:.0%} of the load that the fleet could just serve if it were always perfectly balanced, {runs}."
    )
    if told["utilization"] >= 1.0:
        text += (
            " At such a load queues grow to the end of the log under any policy: the differences between policies count, "
            "the seconds are those of this log's length."
        )
    return text


def losses(simulated: Simulated) -> str:
    """Where today's time goes."""
    now = simulated.now
    details = simulated.details[key_of(now)]
    shares = details.shares
    return (
        f"Of 100 simulated seconds of decoding with {label_of(now)}, {100 * shares.fixed:.0f} are what steps cost whatever the load, "
        f"{100 * shares.reading:.0f} go to reading KV that a perfectly balanced fleet would read as well, and "
        f"{100 * shares.imbalance:.1f} are lost. {shares.occupancy:.0%} of the slots are busy. A request waits {seconds(details.wait_s)} "
        f"for a slot and then decodes for {seconds(details.decode_s)}, in the mean."
    )


def _columns(simulated: Simulated) -> tuple[Column, ...]:
    return COLUMNS if simulated.report.settings.get("kv_capacity") is None else (*COLUMNS, *MEMORY_COLUMNS)


def columns(simulated: Simulated) -> list[str]:
    """Titles of the table of results."""
    return ["policy, forecasts", *(column.title for column in _columns(simulated))]


class Row(NamedTuple):
    """One result: its name, remark, whether it is the best, and cells of value and spread."""

    name: str
    remark: str
    best: bool
    cells: list[tuple[str, str]]


def result_rows(simulated: Simulated) -> list[Row]:
    """The table of results, the most efficient first."""
    several = simulated.report.seeds > 1
    rows = []
    for result in by_efficiency(simulated):
        cells = [column.cell(result, several=several) for column in _columns(simulated)]
        rows.append(Row(label_of(result), _remark(simulated, result), result is simulated.best, cells))
    return rows


def _remark(simulated: Simulated, result: PolicyResult) -> str:
    if result.forecast in simulated.saw_answers:
        return "saw the answers"
    if result.forecast == ORACLE:
        return "true lengths"
    return "today" if result is simulated.now else "best" if result is simulated.best else ""


def longest_waits(simulated: Simulated) -> list[str]:
    """A paragraph each on today's policy and the best (the tail, overtaking, sizes), and one on the bound."""
    told = simulated.report.settings
    made = []
    for key in dict.fromkeys((key_of(simulated.now), key_of(simulated.best))):
        found = simulated.report.result(*key)
        wait, passed = found.mean["wait_s"], found.mean["overtakings_max"]
        classes = sorted(simulated.details[key].by_prompt, key=lambda size: size.mean)
        made.append(
            f"With {label_of(found)}, 99 of 100 requests wait less than {seconds(wait['p99'])} in simulation and the longest wait is "
            f"{seconds(wait['max'])}; one request saw {passed:,.0f} later arrivals start before it. Prompts of {classes[-1].label} tokens "
            f"wait longest, {seconds(classes[-1].mean)} in the mean, those of {classes[0].label} shortest, {seconds(classes[0].mean)}."
        )
    made.append(
        f"Policies with a central pool may choose whom to start, but a request that {told['max_overtakes']:,} later arrivals have passed is "
        "started next, so nobody waits for ever."
    )
    return made


def forecast_rows(simulated: Simulated) -> list[tuple[str, str, str, str]]:
    """Policy and forecasts, what these know, efficiency, and value captured; the best first."""
    rows = []
    for result in reversed(forecast_results(simulated)):
        captured = value_captured(simulated.report, result)
        rows.append(
            (
                label_of(result),
                _knows(result),
                percent(efficiency(result)),
                "–" if captured is None else f"{captured:.0%}",
            )
        )
    return rows


def _knows(result: PolicyResult) -> str:
    if not uses_forecasts(result.policy):
        return "needs none: it balances the next step only" if result.policy == NO_WINDOW else "needs none"
    name = forecast_label(result.forecast)
    if name.startswith("crossfit:"):
        return "what a model learned on the other half of the log"
    return _KNOWS.get(name, "what its model forecasts when a request arrives")


def left_out(simulated: Simulated) -> list[str]:
    """What a reader must not take from these figures."""
    told = simulated.report.settings
    said = {
        "step": _step(told),
        "prefill": _prefill(told),
        "memory": "KV memory never runs out, so nothing is preempted."
        if told["kv_capacity"] is None
        else _memory(told),
        "workers": _workers(told),
        "tokens": _tokens(told),
        "reports": _reports(told),
    }
    return [
        *(text.format(**said) for text in _LEFT_OUT),
        *(_sentence(note) for note in simulated.notes),
    ]


def _step(told: Mapping[str, Any]) -> str:
    step, speed = told["step_time"], told["speed"]
    power = sum(speed) if speed is not None else told["workers"]
    full = 1000.0 * step["kv_s"] * slots_in_all(told) / power * told["kv_per_slot_tokens"]
    source = (
        f"as {told['step_time_file']} says"
        if told["step_time_file"]
        else "a default scale, not measured on your engines"
    )
    return (
        f"{1000.0 * step['fixed_s']:.0f} ms and another {full:.0f} ms when all slots are taken and balanced: {source}"
    )


def _prefill(told: Mapping[str, Any]) -> str:
    if told["prefill_rate"] is None:
        return "Only decode is simulated: no prefill."
    return f"Prompts are read by {told['prefill_workers']} prefill workers at {told['prefill_rate']:,.0f} tokens a second each, in order."


def _workers(told: Mapping[str, Any]) -> str:
    alike = (
        "Workers read KV equally fast"
        if told["speed"] is None
        else f"Workers read KV at speeds of {each_text(told['speed'])}"
    )
    if not told["lose"]:
        return f"{alike}, and none fails or joins."
    return f"{alike}; lost as scheduled: {', '.join(told['lose'])} (worker@seconds). What ran there goes on elsewhere after a new prefill."


def _tokens(told: Mapping[str, Any]) -> str:
    mean = told["tokens_per_step"]
    if mean == 1.0:
        return "Each step makes one token (no speculative decoding)."
    return f"A step makes {mean:g} tokens in the mean, whatever the text."


def _reports(told: Mapping[str, Any]) -> str:
    if told["report_every"] == 0.0 and told["report_delay"] == 0.0:
        return "Policies that send requests on at once see all queues as they are. Real routers see them late, and do worse."
    own = "and count what they sent on since" if told["report_own"] else "and do not count what they sent on since"
    return f"Policies that send requests on at once see queues as reported every {told['report_every']:g} s, {told['report_delay']:g} s late, {own}."


def _memory(told: Mapping[str, Any]) -> str:
    return (
        f"A worker holds {each_text(told['kv_capacity'])} KV tokens (admission {told['admission']}, victim {told['victim']}); what is thrown out is "
        f"prefilled anew at {told['recompute_rate']:,.0f} tokens a second, which slows nobody else down."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def settings_rows(simulated: Simulated) -> list[tuple[str, str]]:
    """Everything that it takes to repeat the simulation."""
    return [(name, _plain(value)) for name, value in simulated.report.settings.items() if name != "warnings"]


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
