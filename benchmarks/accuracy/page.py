"""The accuracy page as Markdown, from figures alone: what was not measured is not on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
NOT_MEASURED = "*Not measured yet.*\n"
#: A skill that shows as 0.000 is none.
LEAST_SHOWN = 0.0005
TEMPLATE = Path(__file__).with_name("page.md")


def page(figures: Figures) -> str:
    """``page.md`` with a table in the place of each ``{{ name }}``."""
    text = TEMPLATE.read_text()
    for name, (section, table) in TABLES.items():
        made = table(figures[section]) if section in figures else NOT_MEASURED
        text = text.replace("{{ " + name + " }}\n", made)
    return text


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _logs(section: Figures) -> list[tuple[str, Figures]]:
    return [(name, figures) for name, figures in section.items() if name != "endcast"]


def _accuracy(section: Figures) -> str:
    rows = []
    for name, log in _logs(section):
        pooled = log["baselines"]["kaplan_meier"]["horizons"]
        unread = log["baselines"].get("admission", {}).get("horizons", {})
        for horizon, one in log["horizons"].items():
            low, high = one["intervals"]["brier_skill"]
            rows.append(
                [
                    name if horizon == "16" else "",
                    horizon,
                    f"{one['base_rate']:.3f}",
                    f"**{one['brier_skill']:.3f}** ({low:.3f} … {high:.3f})",
                    f"{unread[horizon]['brier_skill']:.3f}" if unread else "–",
                    f"{one['auc']:.3f}",
                    f"{pooled[horizon]['auc']:.3f}",
                    f"{one['ece']:.4f}",
                    f"{one['rmse_within']:.2f}",
                    f"{pooled[horizon]['rmse_within']:.2f}",
                ]
            )
    titles = ["log", "H", "end", "Brier skill (95 %)", "unread", "AUC", "AUC, KM", "ECE", "RMSE", "RMSE, KM"]
    return _table(titles, rows)


def _admission(section: Figures) -> str:
    rows = []
    for name, log in _logs(section):
        ours, pooled = log["admission"], log["baselines"]["kaplan_meier"]["admission"]
        rows.append([name, f"{ours['c_index']:.3f}", f"{ours['mae_median']:.1f}", f"{pooled['mae_median']:.1f}"])
    return _table(["log", "C-index", "error of the median, tokens", "the same, Kaplan-Meier"], rows)


def _elapsed(section: Figures) -> str:
    rows = []
    for one in section["AlpacaEval outputs"]["elapsed"]:
        span = f"{one['least']} … {one['below'] - 1}"
        unread = "–" if one["unread"] is None else f"{one['unread']:.3f}"
        rows.append([span, f"{one['pairs']:,}", f"{one['base_rate']:.3f}", unread, f"**{one['brier_skill']:.3f}**"])
    return _table(["tokens so far", "landmarks", "end within 64", "skill, unread", "skill, text so far"], rows)


def _costs(section: Figures) -> str:
    rows = []
    for name, log in _logs(section):
        text = f"{log['text_ms']:.2f}" if "text_ms" in log else "–"
        rows.append(
            [
                name,
                f"{log['training_requests']:,}",
                f"{log['training_cpu_s']:.0f}",
                f"{log['bytes'] / 1e6:.1f}",
                f"{log['admission_ms']:.2f}",
                text,
            ]
        )
    titles = [
        "log",
        "requests",
        "training, CPU s",
        "graphs, MB",
        "ms a forecast at admission",
        "ms with 1,000 characters",
    ]
    return _table(titles, rows)


def _ceiling(section: Figures) -> str:
    unread = section["baselines"]["admission"]["horizons"]
    rows = [
        [horizon, f"{unread[horizon]['brier_skill']:.3f}", f"{one['brier_skill']:.3f}", f"{one['auc']:.3f}"]
        for horizon, one in section["horizons"].items()
    ]
    return _table(["H", "skill, unread", "skill, text so far", "AUC, text so far"], rows)


def _over_time(section: Figures) -> str:
    rows = [
        [
            name,
            f"{one['frozen']['ece']:.4f}",
            f"**{one['online']['ece']:.4f}**",
            f"{one['ece_if_calibrated']:.4f}",
            f"{one['frozen']['brier_skill']:.3f}",
            f"{one['online']['brier_skill']:.3f}",
        ]
        for name, one in _logs(section)
    ]
    titles = ["log", "ECE, frozen", "ECE, recalibrated", "ECE, if calibrated", "skill, frozen", "skill, recalibrated"]
    return _table(titles, rows)


def _ablation(section: Figures) -> str:
    parts = []
    for name, variants in _logs(section):
        whole = variants["all"]
        rows = [
            [
                variant,
                *(
                    f"{one[horizon]:.4f}" + (f" ({one[horizon] - whole[horizon]:+.4f})" if variant != "all" else "")
                    for horizon in ("16", "64", "128")
                ),
                f"{one['mae_median']:.1f}" if "mae_median" in one else "–",
            ]
            for variant, one in variants.items()
        ]
        titles = ["features", "skill, H = 16", "H = 64", "H = 128", "error of the median"]
        parts.append(f"**{name}**\n\n{_table(titles, rows)}")
    return "\n".join(parts)


def _families(section: Figures) -> str:
    rows = [[name, family, *_family_row(one)] for name, found in _logs(section) for family, one in found.items()]
    titles = ["log", "family", "skill, H = 16", "H = 64 (95 %)", "H = 128", "below 0 at H", "nats, H = 64"]
    titles += ["ECE, H = 64", "C-index", "error of the median", "µs a landmark", "kB", "training, CPU s"]
    return _table(titles, rows)


def _family_row(one: Figures) -> list[str]:
    if "refused" in one:
        return [one["refused"], *["–"] * 10]
    low, high = one["interval"]["64"]
    below = [horizon for horizon, skill in one["skill"].items() if skill < -LEAST_SHOWN]
    return [
        f"{one['skill']['16']:.3f}",
        f"{one['skill']['64']:.3f} ({low:.3f} … {high:.3f})",
        f"{one['skill']['128']:.3f}",
        ", ".join(below) or "–",
        f"{one['nats']['64']:+.4f}",
        f"{one['ece_64']:.3f}",
        f"{one['c_index']:.3f}",
        f"{one['mae_median']:.0f}",
        "–" if one["graph"] is None else _sum_of_costs(one["graph"], one["output_graph"]),
        f"{one['bytes'] / 1e3:,.0f}",
        f"{one['training_cpu_s']:.0f}",
    ]


def _sum_of_costs(admission: float, output: float | None) -> str:
    return f"{admission:.1f}" + ("" if output is None else f" + {output:.1f}")


def _family_routing(section: Figures) -> str:
    rows = []
    for name, found in _logs(section):
        for family, one in found.items():
            if (routing := one.get("routing")) is None:
                continue
            e2e = routing["e2e_mean_s"]
            gained = (e2e["arrival"] - e2e["model"]) / (e2e["arrival"] - e2e["truth"])
            rows.append(
                [
                    name,
                    family,
                    f"{routing['br_0']:.4f}",
                    f"{routing['efficiency']:.4f} ± {routing['deviation']:.4f}",
                    f"{routing['truth']:.4f}",
                    _share(routing["captured"]),
                    f"{e2e['arrival']:.1f}",
                    f"{e2e['model']:.1f}",
                    f"{e2e['truth']:.1f}",
                    _share(gained),
                ]
            )
    if not rows:
        return NOT_MEASURED
    titles = ["log", "family", "BR-0", "efficiency", "with true lengths", "captured"]
    return _table([*titles, "mean E2E by arrival, s", "by forecast", "by true length", "captured"], rows)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}".replace("%", " %")


def _placement(section: Figures) -> str:
    rows = []
    for name, log in _logs(section):
        for one in log["placement"]:
            tuning, figures, without = one["tuning"], one["figures"], one["without"]
            gain = figures["throughput"]["mean"] / without["throughput"]["mean"] - 1.0
            rows.append(
                [
                    name,
                    str(one["workers"]),
                    one["forecast"],
                    f"{tuning['horizon']}, {tuning['discount']}, {tuning['soften']}",
                    f"{without['efficiency']['mean']:.4f}",
                    f"{figures['efficiency']['mean']:.4f} ± {figures['efficiency']['deviation']:.4f}",
                    f"{gain:+.2%}".replace("%", " %"),
                    f"{figures['kv_per_slot']['mean']:.2f}",
                    f"{figures['longest_wait_s']['mean']:.0f}",
                    _share(one["captured"]),
                    _share(one["captured_of_best"]),
                ]
            )
    titles = ["log", "workers", "forecast", "H, γ, soften", "BR-0", "efficiency", "tokens/s over BR-0", "KV a slot"]
    return _table([*titles, "longest wait, s", "captured", "of tuned truth"], rows)


def _order(section: Figures) -> str:
    rows = [
        [
            name,
            one["order"],
            *(f"{one[key]['mean']:.0f}" for key in ("e2e_mean_s", "e2e_p99_s", "wait_mean_s", "longest_wait_s")),
        ]
        for name, log in _logs(section)
        for one in log["order"]
    ]
    return _table(["log", "order", "mean E2E, s", "p99, s", "mean wait, s", "longest wait, s"], rows)


def _drain(section: Figures) -> str:
    rows = []
    for name, log in _logs(section):
        left = {one["forecast"]: one for one in log["remaining"]}
        for one in log["drain"]:
            error = left.get(one["choice"])
            rows.append(
                [
                    name,
                    one["choice"],
                    f"{one['tokens']:.0f} ± {one['standard_error']:.0f}",
                    "–" if error is None else f"{error['median_error']:.0f}",
                ]
            )
    return _table(["log", "chosen by", "tokens until empty", "median error of time left, tokens"], rows)


#: Place in the page → the section of figures it needs, and what makes the table.
TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    "accuracy": ("accuracy", _accuracy),
    "admission": ("accuracy", _admission),
    "elapsed": ("accuracy", _elapsed),
    "costs": ("accuracy", _costs),
    "ceiling": ("ceiling", _ceiling),
    "over_time": ("over_time", _over_time),
    "ablation": ("ablation", _ablation),
    "text_ablation": ("text_ablation", _ablation),
    "families": ("families", _families),
    "family_routing": ("families", _family_routing),
    "placement": ("value", _placement),
    "order": ("value", _order),
    "drain": ("value", _drain),
}
