"""``endcast demo``: everything once, on a log that it makes itself. Each step shows the command that it runs."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endcast.cli.output import console, table
from endcast.errors import EndcastError

if TYPE_CHECKING:
    from endcast.reporting.simulation_summary import Simulated
    from endcast.training.evaluate import Evaluation

MODEL = "lightgbm"
#: A fleet small enough for the log to keep it busy.
FLEET = ("--workers", "8", "--slots", "16", "--utilization", "1.05", "--seeds", "4")
_QUESTION = {
    "horizons": [16, 64],
    "requests": [{"prompt_tokens": 374, "generated_tokens": 64, "parameters": {"max_tokens": 512}}],
}
#: Seconds that the service may take to start, to answer and to stop.
_PATIENCE_S = 60


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where to write; what a former run left is replaced.")
    ] = Path("demo-out"),
    requests: Annotated[
        int, typer.Option("--requests", min=1_000, metavar="N", help="Requests of the synthetic log.")
    ] = 8_000,
) -> None:
    """Make a log, train on it, evaluate, forecast, serve, and simulate routing with what was learned."""
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    log, bundle = out / "log.parquet", out / "bundle"
    log.unlink(missing_ok=True)
    _step("A synthetic log with known hazards")
    _run("trace", "synth", "--requests", requests, "--seed", 1, "--out", log)
    _run("trace", "describe", log)
    _step("Train on its first 70 %, by time")
    _run("train", log, "--model", MODEL, "--out", bundle, "--force")
    _step("How good are the forecasts on the rest? Kaplan-Meier, which knows elapsed time only, stands beside them")
    evaluation = _run("evaluate", bundle, log, "--report", out / "evaluation.html", "--plots", out / "plots")
    _step("One forecast: 64 tokens in, at most 512")
    _run("forecast", bundle, "--prompt-tokens", 374, "--generated-tokens", 64, "--max-tokens", 512)
    _step("The same over HTTP")
    _serve_and_ask(bundle)
    _step("What would forecasts give a fleet's router? Learned ones are made by models that did not see the request")
    report, forecasts = out / "simulation.html", f"oracle,kaplan_meier,crossfit:{MODEL}"
    simulated = _run("simulate", log, *FLEET, "--forecast", forecasts, "--report", report, "--plots", out / "plots")
    _step(f"Done in {time.monotonic() - began:.0f} s")
    _summarise(evaluation, simulated)
    for path, what in (
        (log, "the log"),
        (bundle, "the bundle, for 'endcast serve' and 'endcast forecast'"),
        (out / "evaluation.html", "how good its forecasts are"),
        (report, "what routing would give: open this one first"),
        (out / "plots", "the plots of both as PNG"),
    ):
        console.print(f"{path!s:<28} {what}", markup=False)


def _step(text: str) -> None:
    console.print(f"\n== {text}", style="bold", markup=False)


def _run(name: str, *arguments: object) -> Any:
    """Show a command and run it in this process; what its function returns."""
    from endcast.cli import COMMANDS

    words = [str(argument) for argument in arguments]
    _show("endcast", name, *words)
    command = next(command for command in COMMANDS if command.name == name).load()
    return command.main(args=words, prog_name=f"endcast {name}", standalone_mode=False)


def _show(*words: str) -> None:
    console.print(f"$ {shlex.join(words)}", style="cyan", markup=False, soft_wrap=True)


def _serve_and_ask(bundle: Path) -> None:
    """Start the service on a free port, ask it as any client would, stop it."""
    with _service(bundle) as url:
        body = json.dumps(_QUESTION)
        _show("curl", "-s", f"{url}/v1/forecasts", "-d", body)
        with urllib.request.urlopen(f"{url}/v1/forecasts", body.encode(), timeout=_PATIENCE_S) as answer:
            console.print_json(answer.read().decode())


@contextmanager
def _service(bundle: Path) -> Iterator[str]:
    """The service's address while it runs; afterwards it has stopped with exit code 0, else ``EndcastError``."""
    words = ["serve", str(bundle), "--port", "0", "--set", "log_level=warning"]
    _show("endcast", *words)
    with subprocess.Popen([sys.executable, "-m", "endcast", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline().strip()
            _, at, url = first.rpartition(" at ")
            if not at:
                raise EndcastError("the service did not start", hint="Its own message stands above")
            console.print(first, markup=False, soft_wrap=True)
            yield url
            process.send_signal(signal.SIGTERM)
            if (code := process.wait(_PATIENCE_S)) != 0:
                raise EndcastError(f"the service stopped with exit code {code}")
        finally:
            process.kill()


def _summarise(evaluation: Evaluation, simulated: Simulated) -> None:
    from endcast.reporting.simulation_summary import NO_WINDOW, key_of, label_of, uses_forecasts, value_captured

    skill = evaluation.horizons["64"]
    console.print(
        f"Forecasts: the squared error of the chance to end within 64 tokens is {skill.brier_skill:.0%} below Kaplan-Meier's "
        f"(AUC {skill.auc:.2f}).",
        markup=False,
    )
    wanted = [r for r in simulated.report.results if r.policy == NO_WINDOW or uses_forecasts(r.policy)]
    rows = []
    for result in {key_of(r): r for r in [simulated.now, *wanted]}.values():
        captured = value_captured(simulated.report, result)
        mean = result.mean
        rows.append(
            (
                label_of(result) + (" (stands for today)" if result is simulated.now else ""),
                f"{mean['throughput']:,.0f}",
                f"{1.0 - mean['efficiency']:.1%}",
                f"{mean['wait_s']['mean']:,.1f}",
                "–" if captured is None else f"{captured:.0%}",
            )
        )
    titles = ("policy, forecasts", "tokens/s", "time lost", "mean wait, s", "value captured")
    console.print(table("Routing, simulated", titles, rows))
