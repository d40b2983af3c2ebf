"""``endcast forecast``: one forecast, readable or as the service would answer it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from endcast.cli.options import BundleArgument, listed, whole_numbers
from endcast.cli.output import JsonOption, console, emit_json, table
from endcast.survival import Forecast
from endcast.types import Landmark, Request, check_count

PLOT_COLUMNS = 60
_BLOCKS = " ▁▂▃▄▅▆▇█"


def forecast(
    bundle: BundleArgument,
    prompt: Annotated[str | None, typer.Option(help="Text of the prompt.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens of the prompt.")] = None,
    generated_tokens: Annotated[int, typer.Option(help="Tokens generated so far.")] = 0,
    output: Annotated[str | None, typer.Option(help="Text generated so far.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The request's own cap on output tokens.")] = None,
    context_limit: Annotated[int | None, typer.Option(help="Most tokens of prompt and output together.")] = None,
    model: Annotated[str | None, typer.Option(help="Model that was asked for.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose request it is.")] = None,
    session: Annotated[str | None, typer.Option(help="Conversation that it belongs to.")] = None,
    horizons: Annotated[str, typer.Option(help="Windows in tokens, comma-separated.")] = "16,32,64,80,128",
    quantiles: Annotated[str, typer.Option(help="Quantiles of the remaining tokens, comma-separated.")] = "0.1,0.5,0.9",
    as_json: JsonOption = False,
) -> None:
    """Forecast when one generation will end. What is not given is unknown, never zero."""
    from endcast import load_forecaster

    windows = whole_numbers(horizons, "--horizons")
    for window in windows:
        check_count("horizon", window)
    levels = listed(quantiles, "--quantiles", float, "number")
    request = Request(
        request_id="forecast",
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        context_limit=context_limit,
        model=model,
        tenant=tenant,
        session=session,
        parameters={} if max_tokens is None else {"max_tokens": max_tokens},
    )
    landmark = Landmark(request=request, generated_tokens=generated_tokens, output=output)
    made = load_forecaster(bundle).forecast([landmark])[0]
    if as_json:
        from endcast.serving.forecasts.reply import forecasts_reply

        emit_json(forecasts_reply([made], [None], horizons=sorted(set(windows)), quantiles=sorted(set(levels))))
    else:
        console.print(readable(made, windows, levels))


def readable(made: Forecast, horizons: tuple[int, ...], quantiles: tuple[float, ...]) -> RenderableType:
    """A forecast for people."""
    rows = [(h, f"{100 * made.p_end(h):.1f} %", f"{made.expected_within(h):.1f}") for h in horizons]
    known = [name for name, had in made.known.items() if had]
    unknown = [name for name, had in made.known.items() if not had]
    reached = ", ".join(f"{100 * q:g} % by {made.quantile(q):,.0f}" for q in quantiles)
    return Group(
        Text(f"{made.bundle}, {made.generated_tokens} tokens so far", style="bold"),
        table("", ("within (tokens)", "ends", "expected tokens"), rows, text_columns=0),
        Text(f"expected remaining  {made.expected_remaining:,.1f} tokens, {made.expected_output_tokens:,.1f} in all"),
        Text(f"quantiles           {reached}"),
        Text(f"known               {', '.join(known) or 'nothing'}"),
        Text(f"unknown             {', '.join(unknown) or 'nothing'}"),
        Text(""),
        Text("still running after so many more tokens"),
        survival_plot(made),
    )


def survival_plot(made: Forecast, columns: int = PLOT_COLUMNS) -> Text:
    """P(R > h) as a row of blocks, from now to where one generation in a hundred still runs."""
    end = max(int(made.quantile(0.99)), 1)
    at = [round(i * end / (columns - 1)) for i in range(columns)]
    bar = "".join(_BLOCKS[round(made.survival(h) * (len(_BLOCKS) - 1))] for h in at)
    last = f"{end:,}"
    return Text(f"1 {bar}\n  0{' ' * (columns - 1 - len(last))}{last}")
