"""The table of ``language`` made ready for looking up: dictionaries from words, and a pattern for each script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import NamedTuple

from endcast.predictors.text.language import INTENTS, Language
from endcast.predictors.text.languages_script import SCRIPT_LANGUAGES
from endcast.predictors.text.languages_spaced import SPACED_LANGUAGES
from endcast.predictors.text.words import folded

#: What can be counted, and what can be said without a number.
COUNTED = ("items", "sentences", "words", "paragraphs", "lines", "characters")
FLAGS = ("yes_or_no", "brief", "detailed", "code", "structured", "listed")
#: Kind of a unit that numbers count, but that asks for nothing ("minutes").
NOTHING = ""
#: Larger numbers ask for nothing.
MOST = 100_000
#: Stands for all languages together: digits are read alike in each.
ANY = -1
#: Words whose kinds are kept at hand.
_REMEMBERED = 8192


class Number(NamedTuple):
    """A number word as one language reads it; an article counts only what stands beside it."""

    language: int
    value: float
    article: bool


@dataclass(frozen=True, slots=True)
class Phrase:
    """``rest``: the words after the first."""

    rest: list[str]
    flag: str


class SpacedWords:
    """All languages that are looked up word by word, in one dictionary a subject; a language is a number."""

    def __init__(self, rows: Iterable[Language]) -> None:
        self.numbers: dict[str, tuple[Number, ...]] = {}
        self.phrases: dict[str, list[Phrase]] = {}
        self.intents: dict[str, str] = {}
        self.asks: list[frozenset[str]] = []
        self._units: dict[str, dict[int, str]] = {}
        self._stems: dict[str, dict[int, str]] = {}
        for language, row in enumerate(rows):
            self.asks.append(frozenset(row.asks.split()))
            self._add_numbers(language, row)
            self._add_units(language, row)
            for flag, phrase in _phrases(row):
                first, *rest = phrase.split()
                self.phrases.setdefault(first, []).append(Phrase(rest, flag))
            for intent, words in _intents(row):
                for word in words:
                    self.intents.setdefault(word, intent)
        self.asks.append(frozenset().union(*self.asks))  # at ``ANY``
        self._stem_lengths = sorted({len(stem) for stem in self._stems})
        self.kinds = lru_cache(_REMEMBERED)(self._kinds)

    def _add_numbers(self, language: int, row: Language) -> None:
        read = {word: Number(language, value, False) for word, value in _numbers(row).items()}
        read |= {word: Number(language, 1.0, True) for word in row.articles.split()}
        for word, number in read.items():
            self.numbers[word] = (*self.numbers.get(word, ()), number)

    def _add_units(self, language: int, row: Language) -> None:
        for unit, kind in _units(row):
            where = self._stems if unit.endswith("*") else self._units
            where.setdefault(unit.rstrip("*"), {})[language] = kind

    def _kinds(self, word: str) -> Mapping[int, str]:
        """Language → kind, for those that have ``word`` as a unit; whole words before stems, longer stems before shorter."""
        kinds: dict[int, str] = {}
        for length in self._stem_lengths:
            kinds |= self._stems.get(word[:length], {})
        kinds |= self._units.get(word, {})
        return kinds if not kinds else {ANY: kinds[min(kinds)], **kinds}


class ScriptWords:
    """One language that is looked for inside the text."""

    def __init__(self, row: Language) -> None:
        self.script = re.compile(f"[{row.script}]")
        self._values = _numbers(row)
        self._kinds = dict(_units(row))
        self._flags = [(flag, getattr(row, flag).split(",")) for flag in FLAGS if getattr(row, flag)]
        self._intents = list(_intents(row))
        guard = f"(?<![{row.not_before}])" if row.not_before else ""
        counters = f"(?:{_any_of(row.counters.split())})?" if row.counters else ""
        number = rf"(?:(?<![\d.,])(\d{{1,6}})(?!\d)|{guard}({_any_of(self._values)}))"
        self._counted = re.compile(rf"{number}\s?{counters}\s?({_any_of(self._kinds)})")

    def counted(self, plain: str) -> Iterator[tuple[str, float]]:
        """Kind and number of all that is counted, in order. One item is no more than an article."""
        for digits, word, unit in self._counted.findall(plain):
            kind, value = self._kinds[unit], float(digits) if digits else self._values[word]
            if kind != NOTHING and (1 if kind != "items" else 2) <= value <= MOST:
                yield kind, value

    def flags(self, plain: str) -> list[str]:
        """Those of which ``plain`` has a phrase."""
        return [flag for flag, phrases in self._flags if any(phrase in plain for phrase in phrases)]

    def intent(self, plain: str) -> str | None:
        """The first one of the row of which ``plain`` has a word."""
        return next((intent for intent, words in self._intents if any(word in plain for word in words)), None)


def _numbers(row: Language) -> dict[str, float]:
    named = (word.partition("=") for word in row.numbers.split())
    return {word: float(value or place) for place, (word, _, value) in enumerate(named, start=1)}


def _units(row: Language) -> Iterator[tuple[str, str]]:
    for kind in COUNTED:
        yield from ((unit, kind) for unit in getattr(row, kind).split())
    yield from ((unit, NOTHING) for unit in row.not_items.split())


def _intents(row: Language) -> Iterator[tuple[str, list[str]]]:
    for part in filter(None, row.intents.split(";")):
        intent, _, words = part.strip().partition(":")
        if intent not in INTENTS:
            raise ValueError(f"{row.name} names an intent that is none: {intent}")
        yield intent, words.split()


def _phrases(row: Language) -> Iterator[tuple[str, str]]:
    for flag in FLAGS:
        yield from ((flag, phrase) for phrase in getattr(row, flag).split(",") if phrase)


def _any_of(words: Iterable[str]) -> str:
    """A pattern of alternatives, longest first."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _as_read(row: Language) -> Language:
    """The row's words as ``folded`` makes them of a prompt."""
    patterns = ("name", "script", "not_before")
    words = {field.name: folded(getattr(row, field.name)) for field in fields(row) if field.name not in patterns}
    return replace(row, **words)


SPACED = SpacedWords(map(_as_read, SPACED_LANGUAGES))
SCRIPTS = tuple(ScriptWords(_as_read(row)) for row in SCRIPT_LANGUAGES)


def script_of(plain: str) -> ScriptWords | None:
    """The first language with a script of its own whose script ``plain`` has."""
    if plain.isascii():
        return None
    return next((words for words in SCRIPTS if words.script.search(plain)), None)
