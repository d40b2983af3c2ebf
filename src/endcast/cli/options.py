"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

BundleArgument = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder, as `endcast train` writes it.")
]


def listed(text: str, option: str, parse: Callable[[str], T], what: str) -> tuple[T, ...]:
    """The parts of a comma-separated option, each through ``parse``; a usage error says which is no ``what``."""
    values = []
    for part in text.split(","):
        try:
            values.append(parse(part.strip()))
        except ValueError:
            raise typer.BadParameter(f"{part.strip()!r} is no {what}", param_hint=option) from None
    return tuple(values)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """``"16,32"`` as (16, 32)."""
    return listed(text, option, int, "whole number")
