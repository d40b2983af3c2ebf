"""Numbers read off a text, kept at hand: a prompt is asked about again at each landmark of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from endcast.predictors.text.prompt_text import bounded

T = TypeVar("T")

#: Texts whose numbers are kept, before all are let go.
MOST_TEXTS = 4096


class Remembered(Generic[T]):
    """``read(kept, characters)`` of a text, computed once while it is remembered: ``kept`` is the text as ``bounded`` leaves
    it, ``characters`` its whole length. Keys are hashes under this process's secret; no text is kept."""

    def __init__(self, read: Callable[[str, int], T]) -> None:
        self._read = read
        self._found: dict[tuple[int, int], T] = {}

    def __call__(self, text: str) -> T:
        """What ``read`` gives; callers do not change it."""
        kept = bounded(text)
        key = (hash(kept), len(text))
        found = self._found.get(key)
        if found is None:
            found = self._read(kept, len(text))
            if len(self._found) >= MOST_TEXTS:
                self._found.clear()
            self._found[key] = found
        return found
