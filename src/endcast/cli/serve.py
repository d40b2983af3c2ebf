"""``endcast serve``: a bundle's forecasts over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from endcast.cli.options import BundleArgument
from endcast.forecaster import Forecaster

_EXAMPLE = '{"requests": [{"prompt_tokens": 374, "generated_tokens": 64, "parameters": {"max_tokens": 512}}]}'


def serve(
    bundle: BundleArgument,
    host: Annotated[str, typer.Option(help="Name or address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 8080,
) -> None:
    """Serve a bundle's forecasts over HTTP until stopped by Ctrl-C or SIGTERM."""
    from endcast import load_forecaster

    serve_forecaster(load_forecaster(bundle), host=host, port=port)


def serve_forecaster(forecaster: Forecaster, *, host: str, port: int) -> None:
    """Listen, say where, and serve until stopped."""
    from endcast.cli.output import console
    from endcast.serving.app import create_app
    from endcast.serving.run import listen, serve_until_stopped, url_of
    from endcast.serving.settings import Settings

    app = create_app(Settings(), forecaster, getattr(forecaster, "manifest", None))
    with listen(host, port) as listening:
        url = url_of(listening)
        console.print(f"serving {forecaster.bundle} at {url}", soft_wrap=True, markup=False)
        console.print(f"try: curl -s {url}/v1/forecasts -d '{_EXAMPLE}'", soft_wrap=True, markup=False)
        serve_until_stopped(app, listening)
