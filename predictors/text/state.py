"""State that is copied often: what has been read of a text, before a look at what may come next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Self


@cache
def _values_of(kind: type[Any]) -> Callable[[Any], Any]:
    return attrgetter(*(field.name for field in fields(kind)))


class State:
    """Base of dataclasses with slots and two fields or more."""

    __slots__ = ()

    def copy(self) -> Self:
        """A shallow copy; subclasses copy the states that they hold as well."""
        kind: type[Self] = type(self)
        return kind(*_values_of(kind)(self))  # type: ignore[arg-type]
