"""The command that makes a simulation's page again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from endcast.reporting.olp_words import olp_arguments
from endcast.reporting.simulation_summary import Simulated

_OPTIONS = (
    "workers", "slots", "kv_capacity", "speed", "prefill_rate", "tokens_per_step", "utilization", "horizon", "discount", "candidates",
    "max_overtakes", "soften", "seed", "seeds", "today",
)  # fmt: skip


def command(simulated: Simulated) -> str:
    """The command that makes this page again where the log lies, one option a line."""
    told = simulated.report.settings
    sources = ("none" if name is None else told["bundles"].get(name, name) for name in told["forecasts"])
    options = {
        "policies": ",".join(told["policies"]),
        "forecast": ",".join(sources),
        **{name: told[name] for name in _OPTIONS},
        "requests": told["first_requests"],
        "arrivals": None if told["arrivals"] == "log" else told["arrivals"],
        "columns": told["log_columns"],
        "report": "report.html",
    }
    if told["kv_capacity"] is not None:
        options |= {name: told[name] for name in ("admission", "victim", "recompute_rate")}
    options |= _further_options(told)
    lines = [shlex.join(["endcast", "simulate", told["log"]])]
    for name, value in options.items():
        if value is not None:
            text = ",".join(map(_option, value)) if isinstance(value, tuple | list) else _option(value)
            lines.append(f"  --{name.replace('_', '-')} {shlex.quote(text)}")
    lines += [f"  --olp {shlex.quote(text)}" for text in olp_arguments(told["olp"])]
    lines += [f"  --{name}" for name, given in (
        ("arrivals-prompts", told["arrivals_prompts"]), ("no-report-own", not told["report_own"]),
    ) if given]  # fmt: skip
    return " \\\n".join(lines)


def _option(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _further_options(told: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are left out where they are as they are unless given."""
    further = {
        "lose": told["lose"], "set": told["parameters"], "report_every": told["report_every"],
        "report_delay": told["report_delay"], "step_time": told["step_time_file"],
        "prefill_workers": told["prefill_workers"] if told["prefill_workers"] > 1 else None,
        "recompute_rate": told["recompute_rate"] if told["lose"] else None,
    }  # fmt: skip
    return {name: value for name, value in further.items() if value}
