"""Names for models, features, policies and trace formats: one line each, loaded when asked for.

An entry is a string ``"module:object"``, so that naming a model imports no training library. A name registered
twice and a name that nobody registered both fail loudly.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from endcast.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """A read-only table from names to lazily imported objects of one protocol."""

    def __init__(self, kind: str, entries: tuple[tuple[str, str], ...]) -> None:
        names = [name for name, _ in entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{kind} registered twice: {', '.join(twice)}")
        self.kind = kind
        self._targets: Mapping[str, str] = MappingProxyType(dict(entries))

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __len__(self) -> int:
        return len(self._targets)

    def get(self, name: str) -> T:
        """The object registered as ``name``; ``UnknownNameError`` lists the known names."""
        target = self._targets.get(name)
        if target is None:
            raise UnknownNameError(f"unknown {self.kind} {name!r}", hint=f"Known: {', '.join(self._targets)}")
        module, _, attribute = target.partition(":")
        entry: T = getattr(importlib.import_module(module), attribute)
        return entry
