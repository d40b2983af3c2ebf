"""One HTML page: a template of this package, filled, in one file with nothing to fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, values: dict[str, Any]) -> str:
    """The page; values are escaped unless they are ``Markup``."""
    environment = Environment(
        loader=PackageLoader("endcast.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(values)


def write_page(path: Path, text: str) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.tmp")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def safe(svg: str) -> Markup:
    """Text that this package made itself and that needs no escaping."""
    return Markup(svg)
