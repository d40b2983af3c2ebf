"""Admission rules by name; a new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable

from endcast.errors import InputError
from endcast.registry import Registry
from endcast.router.admission.rule import AdmissionRule

_HERE = "endcast.router.admission"

ADMISSION_RULES: Registry[Callable[..., AdmissionRule]] = Registry(
    "admission rule",
    (
        ("optimistic", f"{_HERE}.optimistic:Optimistic"),
        ("headroom", f"{_HERE}.headroom:Headroom"),
        ("reserve_cap", f"{_HERE}.reserve_cap:ReserveCap"),
        ("forecast", f"{_HERE}.forecast_peak:ForecastPeak"),
    ),
)


def admission_rule(text: str) -> AdmissionRule:
    """``RULE`` or ``RULE:NUMBER`` as a rule; ``UnknownNameError`` or ``InputError`` where it is none."""
    name, colon, number = text.partition(":")
    make = ADMISSION_RULES.get(name)
    if not colon:
        return make()
    try:
        parameter = float(number)
    except ValueError:
        raise InputError("admission", f"{name} takes a number behind the colon, not {number!r:.60}") from None
    return make(parameter)
