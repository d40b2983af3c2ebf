"""Parameters of policies by name: ``NAME=VALUE`` for any that ``PolicySettings`` or its parts have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from endcast.errors import InputError, UnknownNameError
from endcast.router.policy import PolicySettings

_TRUTHS = {"true": True, "false": False}


def parameter_names() -> list[str]:
    """All names, those of the parts behind the policies' own."""
    own, parts = _parted(PolicySettings())
    return [*own, *(name for part in parts.values() for name in part)]


def with_parameters(settings: PolicySettings, assignments: Sequence[str]) -> PolicySettings:
    """``settings`` with ``("urgency=0.5", "horizon=40")`` carried out; ``UnknownNameError`` lists the names there are."""
    own, parts = _parted(settings)
    for text in assignments:
        name, equals, value = (piece.strip() for piece in text.partition("="))
        if not (name and equals and value):
            raise InputError("set", f"{text!r:.60} is not of the form NAME=VALUE")
        holder = next((part for part in (own, *parts.values()) if name in part), None)
        if holder is None:
            raise UnknownNameError(f"unknown parameter {name!r:.60}", hint=f"Known: {', '.join(parameter_names())}")
        holder[name] = _parsed(name, value, holder[name])
    made = {name: replace(getattr(settings, name), **part) for name, part in parts.items()}
    return replace(settings, **own, **made)


def _parted(settings: PolicySettings) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values by name: the settings' own, and those of each part that is settings itself."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    parts = {
        name: {field.name: getattr(value, field.name) for field in fields(value)}
        for name, value in values.items()
        if is_dataclass(value)
    }
    return {name: value for name, value in values.items() if name not in parts}, parts


def _parsed(name: str, text: str, before: Any) -> Any:
    """``text`` as what the parameter is."""
    kind = type(before)
    try:
        return _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        what = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise InputError(name, f"must be {what}, not {text!r:.60}") from None
