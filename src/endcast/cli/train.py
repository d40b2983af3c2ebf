"""``endcast train``: a log in, a bundle out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from endcast.cli.logs import ColumnsOption, FormatOption, LogArgument, read_log
from endcast.cli.output import JsonOption, console, emit_json, err_console, progress, table
from endcast.errors import InputError


def train(
    log: LogArgument,
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="The folder to write.")],
    model: Annotated[
        str, typer.Option("--model", metavar="M", help="The model family; auto takes the best.")
    ] = "lightgbm",
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="µS", help="What auto may spend on a landmark, microseconds.")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="last:SHARE keeps the last share for evaluation; all keeps nothing.")
    ] = "last:0.3",
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the model family.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option("--features", metavar="A,B", help="Feature groups; all that the log can feed if not given."),
    ] = None,
    intervals: Annotated[int, typer.Option("--intervals", min=4, max=512, help="Intervals of the hazard grid.")] = 48,
    most_rows: Annotated[
        int, typer.Option("--most-rows", min=1000, help="Person-period rows held in memory; more are drawn from.")
    ] = 1_000_000,
    outputs: Annotated[
        bool, typer.Option("--outputs/--no-outputs", help="A second model that reads outputs, if the log has them.")
    ] = True,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads that fit.")] = 1,
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="Where networks train: auto, cpu, cuda, npu.")
    ] = "auto",
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FOLDER", help="Where an interrupted training of a network goes on."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            "--encoder", metavar="FOLDER", help="A text encoder's weights: for text, or as a score of prompts."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of every random choice.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    json: JsonOption = False,
) -> None:
    """Train a model on a log and write a bundle: split by time, fit, calibrate, export, check."""
    from endcast.training.train import Settings
    from endcast.training.train import train as fit

    settings = Settings(
        model=model,
        split=split,
        intervals=intervals,
        features=None if features is None else features.split(","),
        most_rows=most_rows,
        read_outputs=outputs,
        threads=threads,
        seed=seed,
        options=_options(option or []),
        device=device,
        checkpoint=checkpoint,
        encoder=encoder,
        budget_us=budget,
    )
    if out.exists() and not force:
        raise InputError("--out", f"{out} exists already", hint="Choose another folder, or replace it with --force")
    trace = read_log(log, format, columns).trace
    with progress("reading the log as it happened", total=len(trace)) as bar:
        trained = fit(
            trace,
            settings,
            out,
            replace=force,
            tell=lambda text: None if json else err_console.print(text, markup=False),
            advance=bar.advance,
        )
    manifest = trained.manifest
    if json:
        emit_json({"bundle": trained.id, "path": str(out), "manifest": msgspec.to_builtins(manifest)})
        return
    validation = manifest.metrics["validation"]
    rows = [
        ["requests that trained", f"{manifest.training['requests'] - manifest.training['left_out']:,}"],
        ["log loss a request, validation", f"{validation['log_loss_a_request']:.4f} nats"],
        ["the same, no model (Kaplan-Meier)", f"{validation['log_loss_a_request_uncorrected']:.4f} nats"],
        ["calibration", "kept" if validation["calibration_kept"] else "not needed"],
        ["graph against native model", f"{manifest.metrics['parity']:.1e} at most"],
    ]
    if manifest.output is not None:
        text = manifest.output.metrics["validation"]
        rows += [
            ["landmarks along outputs that trained", f"{manifest.output.landmarks:,}"],
            ["log loss a landmark, validation", f"{text['log_loss_a_request']:.4f} nats"],
            ["the same, text unread", f"{text['log_loss_a_request_uncorrected']:.4f} nats"],
        ]
    console.print(table(f"{manifest.model} → {out}", ["", ""], rows))
    console.print(f"bundle {trained.id}", markup=False, soft_wrap=True)
    if split != "all":
        console.print(f"next: endcast evaluate {out} {log}", markup=False, soft_wrap=True)


def _options(pairs: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError("--option", f"must read NAME=VALUE, not {pair!r:.60}")
        try:
            options[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            options[name] = value
    return options
