"""``--olp NAME=VALUE`` and a sweep's ``NAME=V1,V2,…``: settings of rewards and prices as a user types them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

import typer

from endcast.errors import InputError, UnknownNameError
from endcast.router.olp.rewards import REWARDS
from endcast.router.olp.settings import OlpSettings

OPTION = "--olp"
#: What each setting is, and as which kind of value it is read: that of its default.
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(OlpSettings)}

OlpOption = Annotated[
    list[str] | None,
    typer.Option(
        OPTION,
        metavar="NAME=VALUE",
        help="A reward's weight, a price's step or the like (docs/olp.md), for olp and olp_br_h; may be repeated.",
    ),
]


def olp_settings(given: Sequence[str] | None) -> OlpSettings:
    """``["w_tail=8", "shed=yes"]`` on top of the defaults; an error names what cannot be, and what can."""
    values: dict[str, Any] = {}
    for text in given or ():
        name, value = _parted(text, OPTION)
        if name in values:
            raise InputError(OPTION, f"{name} is given twice")
        values[name] = _value(name, value, OPTION)
    return _checked(OlpSettings(), values)


def grid(given: Sequence[str], base: OlpSettings) -> list[dict[str, Any]]:
    """``["w_tail=0,1,4", "w_ttft=0,1"]`` as all combinations, the last named varying fastest, each checked on ``base``."""
    axes: dict[str, list[Any]] = {}
    for text in given:
        name, listed = _parted(text, "sweep")
        if name in axes:
            raise InputError("sweep", f"{name} is given twice")
        axes[name] = [_value(name, value.strip(), "sweep") for value in listed.split(",")]
        twice = next((value for value in axes[name] if axes[name].count(value) > 1), None)
        if twice is not None:
            raise InputError("sweep", f"{name} has the value {twice} twice")
    points: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    for point in points:
        _checked(base, point)
    return points


def _parted(text: str, option: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise InputError(option, f"{text!r:.60} is no NAME=VALUE", hint=f"Such as {option} w_tail=8")
    if name not in DEFAULTS:
        close = difflib.get_close_matches(name, DEFAULTS, n=1)
        hint = f"Did you mean {close[0]}? Known: " if close else "Known: "
        raise UnknownNameError(f"{option}: unknown setting {name!r:.60}", hint=hint + ", ".join(DEFAULTS))
    return name, value


def _value(name: str, text: str, option: str) -> Any:
    """As its default's kind: a reward's name, yes or no, a whole number, a number."""
    default = DEFAULTS[name]
    if isinstance(default, str):
        REWARDS.get(text)
        return text
    if isinstance(default, bool):
        if text not in ("yes", "no"):
            raise InputError(option, f"{name} is yes or no, not {text!r:.60}")
        return text == "yes"
    kind, what = (int, "a whole number") if isinstance(default, int) else (float, "a number")
    try:
        return kind(text)
    except ValueError:
        raise InputError(option, f"{name} is {what}, not {text!r:.60}") from None


def _checked(base: OlpSettings, values: dict[str, Any]) -> OlpSettings:
    """Bounds are the settings' own, and so are those of the reward that reads them."""
    settings = replace(base, **values)
    REWARDS.get(settings.reward)(settings)
    return settings
