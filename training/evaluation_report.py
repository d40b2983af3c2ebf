"""An evaluation for people: two plots, and a page around them."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from endcast.reporting.figures import COLOURS, as_svg, style, write_png
from endcast.reporting.page import render, safe, write_page
from endcast.training.evaluate import Evaluation


def reliability_figure(evaluation: Evaluation) -> Figure:
    """Forecast against happened, one panel a horizon; the area of a dot is the mass of its bin."""
    count = len(evaluation.horizons)
    figure, axes = plt.subplots(1, count, figsize=(2.4 * count, 2.7), sharey=True, squeeze=False)
    for axis, (horizon, figures) in zip(axes[0], evaluation.horizons.items(), strict=True):
        bins = figures.reliability
        axis.plot([0, 1], [0, 1], linewidth=0.8, color=COLOURS[-1], linestyle="--")
        axis.plot(bins.forecast, bins.happened, color=COLOURS[0], linewidth=1.2)
        axis.scatter(bins.forecast, bins.happened, s=[max(300 * mass, 4) for mass in bins.mass], color=COLOURS[0])
        axis.set(title=f"H = {horizon}", xlim=(0, 1), ylim=(0, 1), xlabel="forecast")
        axis.set_aspect("equal")
    axes[0][0].set_ylabel("ended within H")
    return figure


def survival_figure(evaluation: Evaluation) -> Figure:
    """Share still running after t tokens: happened, model, Kaplan-Meier."""
    curves = evaluation.survival
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    axis.step(curves.tokens, curves.happened, where="post", color=COLOURS[-1], linewidth=2.5, label="happened")
    axis.plot(curves.tokens, curves.model, color=COLOURS[0], label="forecast at admission")
    axis.plot(curves.tokens, curves.kaplan_meier, color=COLOURS[1], linestyle="--", label="Kaplan-Meier")
    axis.set(xlabel="tokens t", ylabel="share longer than t", ylim=(0, 1.02), xlim=(0, curves.tokens[-1]))
    axis.legend()
    return figure


def write_plots(evaluation: Evaluation, folder: Path) -> list[Path]:
    """``reliability.png`` and ``survival.png`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "reliability.png", folder / "survival.png"]
    with style():
        for path, draw in zip(paths, (reliability_figure, survival_figure), strict=True):
            write_png(draw(evaluation), path)
    return paths


def write_report(evaluation: Evaluation, log: str, path: Path) -> None:
    """The page, in one file."""
    with style():
        reliability = as_svg(reliability_figure(evaluation), "Reliability of the forecasts by horizon")
        survival = as_svg(survival_figure(evaluation), "Survival of generation lengths")
    values = {
        "title": f"endcast: accuracy on {log}",
        "verdict": verdict(evaluation),
        "cards": _cards(evaluation),
        "titles": horizon_titles(evaluation),
        "rows": horizon_rows(evaluation),
        "cluster": "stretches of time, sessions or prompts",
        "reliability": safe(reliability),
        "survival": safe(survival),
        "method": _method(evaluation, log),
        "bundle": evaluation.bundle,
    }
    write_page(path, render("evaluation.html.j2", values))


def verdict(evaluation: Evaluation) -> str:
    """One sentence on what the middle horizon says."""
    names = list(evaluation.horizons)
    horizon = "64" if "64" in names else names[len(names) // 2]
    figures = evaluation.horizons[horizon]
    low, high = figures.intervals["brier_skill"]
    if low > 0.0:
        return (
            f"Yes, better than elapsed time alone: at H = {horizon} the squared error is {figures.brier_skill:.0%} lower than "
            f"Kaplan-Meier's ({low:.0%} to {high:.0%})."
        )
    if high < 0.0:
        return f"No: at H = {horizon} they are worse than Kaplan-Meier. Use the kaplan_meier model on this log."
    return (
        f"No better than Kaplan-Meier at H = {horizon}, and no worse: nothing in this log tells more than elapsed time."
    )


def horizon_titles(evaluation: Evaluation) -> list[str]:
    """Titles of the table by horizon; where outputs were read, what skill there is without."""
    unread = ["unread"] if "admission" in evaluation.baselines else []
    return ["H", "end within H", "Brier skill", "95 %", *unread, "AUC", "AUC, KM", "ECE", "log loss", "RMSE within"]


def horizon_rows(evaluation: Evaluation) -> list[list[str]]:
    """Cells of the table by horizon."""
    rows = []
    pooled = evaluation.baselines["kaplan_meier"]["horizons"]
    unread = evaluation.baselines.get("admission", {}).get("horizons", {})
    for horizon, figures in evaluation.horizons.items():
        low, high = figures.intervals["brier_skill"]
        rows.append(
            [
                horizon,
                f"{figures.base_rate:.3f}",
                f"{figures.brier_skill:.3f}",
                f"{low:.3f} … {high:.3f}",
                *([f"{unread[horizon].brier_skill:.3f}"] if unread else []),
                f"{figures.auc:.3f}",
                f"{pooled[horizon].auc:.3f}",
                f"{figures.ece:.3f}",
                f"{figures.log_loss:.3f}",
                f"{figures.rmse_within:.2f}",
            ]
        )
    return rows


def _cards(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    pooled = evaluation.baselines["kaplan_meier"]["admission"]
    admission = evaluation.admission
    return [
        ("requests measured", f"{evaluation.n_requests:,}", f"{evaluation.n_draws:,} (request, elapsed) pairs"),
        ("C-index at admission", f"{admission.c_index:.3f}", "0.5 is chance"),
        ("error of the median", f"{admission.mae_median:.1f}", f"tokens; Kaplan-Meier {pooled.mae_median:.1f}"),
    ]


def _method(evaluation: Evaluation, log: str) -> str:
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in evaluation.excluded.items()) or "none"
    population = (
        "requests in proportion to their length, elapsed tokens uniform within each, which is what a router meets"
        if evaluation.population == "decode_steps"
        else "every 32 tokens of each request, equally weighted"
    )
    return (
        f"On {log}, lived through in order of arrival: each request was forecast with what had finished before it came. "
        f"Population: {population}. Requests left out: {left_out}."
    )
