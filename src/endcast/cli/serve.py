"""``endcast serve``: a bundle's forecasts over HTTP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from endcast.cli.options import BundleArgument
from endcast.cli.output import JsonOption

if TYPE_CHECKING:
    from endcast.serving.operations.config import Config, Value
    from endcast.serving.operations.settings import Settings

_EXAMPLE = '{"requests": [{"prompt_tokens": 374, "generated_tokens": 64, "parameters": {"max_tokens": 512}}]}'


def serve(
    bundle: BundleArgument,
    host: Annotated[
        str | None, typer.Option(help="Name or address to listen on; 0.0.0.0 for every one.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.", show_default="8080"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings; see docs/operating.md.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be given more than once."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and where it comes from, and exit.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a bundle's forecasts over HTTP until stopped by Ctrl-C or SIGTERM.

    Settings: a flag wins over the environment (ENDCAST_PORT), that over the file, that over the default.
    """
    found = _config(config, {"host": host, "port": port}, assignments or [])
    if print_config:
        _print(found, as_json=as_json)
        return
    _serve(bundle, found.settings)


def _config(file: Path | None, options: Mapping[str, Any], assignments: list[str]) -> Config:
    from endcast.serving.operations.config import Value, load_config, of_assignments

    flags: dict[str, Value] = of_assignments(assignments)
    flags |= {name: Value(value=value, source=f"--{name}") for name, value in options.items() if value is not None}
    return load_config(file=file, environment=os.environ, flags=flags)


def _print(config: Config, *, as_json: bool) -> None:
    from endcast.cli.output import emit_json
    from endcast.serving.operations.config import printed, printed_json

    if as_json:
        emit_json(printed_json(config))
    else:
        typer.echo(printed(config), nl=False)


def _serve(bundle: Path, settings: Settings) -> None:
    """Load and check the bundle, listen, say where, and serve until stopped."""
    from endcast.cli.output import console
    from endcast.serving.launch import folder_context, serve_folder
    from endcast.serving.operations.logs import configure_logging
    from endcast.serving.processes.run import listen, url_of

    configure_logging(settings)
    context = folder_context(bundle, settings)
    with listen(settings.host, settings.port) as listening:
        url = url_of(listening, tls=settings.tls_certificate is not None)
        console.print(f"serving {context.bundles.current.id} at {url}", soft_wrap=True, markup=False)
        console.print(f"try: curl -s {url}/v1/forecasts -d '{_EXAMPLE}'", soft_wrap=True, markup=False)
        _warn_if_open(settings)
        serve_folder(context, listening)


def _warn_if_open(settings: Settings) -> None:
    from endcast.cli.output import err_console
    from endcast.serving.operations.auth import is_loopback

    keys = settings.api_keys or settings.api_keys_file
    if not keys and not is_loopback(settings.host):
        err_console.print(
            "warning: whoever reaches this address may ask for forecasts; api_keys in docs/operating.md changes that",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
