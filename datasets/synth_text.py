"""Prompts and outputs for a synthetic log. One token is one word with the space before it, so that the text so far at
any token is a prefix of the whole.

The prompt says what is wanted ("list 10 …"); the shape of the output tells how far along it is: list items, sentences
asked for, an open code fence or object, paragraphs, and a closing phrase at the very end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from endcast.datasets.schema import SCHEMA
from endcast.datasets.synth_apps import KINDS, App
from endcast.datasets.synth_words import CODE_WORDS, LANGUAGES, Language

_PARAGRAPH, _SENTENCE, _LINE = 60, 14, 8
#: Share of a code answer that the fence takes; the rest explains.
_FENCED = 0.8


def with_texts(
    table: pa.Table, rows: Mapping[str, npt.NDArray[Any]], apps: Sequence[App], rng: np.random.Generator
) -> pa.Table:
    """``table`` with ``prompt`` or ``messages``, and ``output``, filled in; ``rows`` in order of arrival."""
    system: dict[int, str] = {}
    said: dict[tuple[int, int], list[dict[str, str]]] = {}
    prompts: list[str | None] = []
    chats: list[str | None] = []
    outputs: list[str] = []
    for i in range(len(rows["arrival"])):
        row = {name: int(rows[name][i]) for name in _NEEDED}
        app = apps[row["app"]]
        language = LANGUAGES[list(app.languages)[row["language"]]]
        question = _question(row, language, rng)
        if row["tenant"] not in system:
            system[row["tenant"]] = _filler(app.system_tokens, language, rng)
        frame = system[row["tenant"]]
        pieces = _answer(row["natural"], row["output"], KINDS[row["kind"]].name, row["asked"], language, rng)
        output = "".join(pieces[: row["output"]])
        if app.chat:
            chat = said.setdefault((row["session"], row["segment"]), [{"role": "system", "content": frame}])
            chat.append({"role": "user", "content": question})
            chats.append(msgspec.json.encode(chat).decode())
            chat.append({"role": "assistant", "content": output})
        else:
            chats.append(None)
        prompts.append(None if app.chat else f"{frame}\n\n{question}")
        outputs.append(output)
    for name, texts in (("prompt", prompts), ("messages", chats), ("output", outputs)):
        place = SCHEMA.get_field_index(name)
        table = table.set_column(place, SCHEMA.field(name), pa.array(texts, pa.string()))
    return table


_NEEDED = ("app", "language", "tenant", "session", "segment", "kind", "asked", "natural", "output", "new")


def _words(number: int, language: Language, rng: np.random.Generator) -> list[str]:
    table = language.words
    return [table[i] for i in rng.integers(0, len(table), size=max(number, 0)).tolist()]


def _filler(number: int, language: Language, rng: np.random.Generator) -> str:
    return "".join(_spaced(_sentences(_words(number, language, rng), _SENTENCE, language), language)).lstrip()


def _question(row: Mapping[str, int], language: Language, rng: np.random.Generator) -> str:
    """What is asked, after so much context that the turn has about its number of tokens."""
    topic = language.topics[int(rng.integers(len(language.topics)))]
    asked = language.ask[KINDS[row["kind"]].name].format(n=row["asked"], topic=topic)
    spare = row["new"] - 12  # the question itself has about a dozen
    if spare < 12:
        return asked
    return f"{language.context}\n{_filler(spare, language, rng)}\n\n{asked}"


def _sentences(words: list[str], length: int, language: Language) -> list[str]:
    """The words as sentences of about ``length``: capitals and full stops."""
    for start in range(0, len(words), length):
        last = min(start + length, len(words)) - 1
        words[start] = words[start][:1].upper() + words[start][1:]
        words[last] += language.stop
    return words


def _spaced(words: list[str], language: Language) -> list[str]:
    return [language.space + word for word in words]


def _answer(natural: int, shown: int, kind: str, asked: int, language: Language, rng: np.random.Generator) -> list[str]:
    """At least ``shown`` pieces, one a token, of an answer that would be ``natural`` tokens long."""
    if kind == "list":
        return _list(natural, asked, language, rng)
    if kind == "sentences":
        return _asked_sentences(natural, asked, language, rng)
    if kind == "code":
        return _code(natural, language, rng)
    if kind == "json":
        return _json(natural, language, rng)
    if kind == "brief":
        return _spaced(_sentences(_words(natural, language, rng), natural, language), language)
    return _open(natural, shown, language, rng)


def _list(natural: int, asked: int, language: Language, rng: np.random.Generator) -> list[str]:
    """An opening line, ``asked`` items of about one length, a closing phrase."""
    opening, closing = _phrase(language.intro, language), _phrase(language.closing, language)
    body = natural - len(opening) - len(closing)
    if body < 2 * asked:
        opening, closing, body = [], [], natural
    bounds = np.round(np.linspace(0, body, asked + 1)).astype(int)
    pieces = list(opening)
    for item, (start, stop) in enumerate(pairwise(bounds), start=1):
        words = _words(int(stop - start) - 1, language, rng)
        if stop > start:
            pieces += [f"\n{item}.", *(f" {word}" if not i else language.space + word for i, word in enumerate(words))]
    return pieces + (["\n\n" + closing[0].lstrip(), *closing[1:]] if closing else [])


def _phrase(text: str, language: Language) -> list[str]:
    return [language.space + word for word in text.split()] if language.space else [text]


def _asked_sentences(natural: int, asked: int, language: Language, rng: np.random.Generator) -> list[str]:
    length = max(-(-natural // asked), 1)
    return _spaced(_sentences(_words(natural, language, rng), length, language), language)


def _code(natural: int, language: Language, rng: np.random.Generator) -> list[str]:
    """A fenced block, then an explanation that ends with the closing phrase."""
    fenced = max(int(natural * _FENCED) - 2, 0)
    places = rng.integers(0, len(CODE_WORDS), size=fenced).tolist()
    code = [("\n    " if i % _LINE == 0 else " ") + CODE_WORDS[place] for i, place in enumerate(places)]
    explained = _open(max(natural - fenced - 2, 0), natural, language, rng)
    return ["```python", *code, "\n```", *explained][:natural]


def _json(natural: int, language: Language, rng: np.random.Generator) -> list[str]:
    """An object with a few words a field."""
    words = _words(max(natural - 2, 0), language, rng)
    inside = [f'\n  "{word}":' if i % 4 == 0 else f' "{word}",' for i, word in enumerate(words)]
    return ["{", *inside, "\n}"][:natural] if natural > 1 else ["{}"]


def _open(natural: int, shown: int, language: Language, rng: np.random.Generator) -> list[str]:
    """Paragraphs of sentences; the last one ends with the closing phrase."""
    closing = _phrase(language.closing, language)
    body = max(natural - len(closing), 0)
    made = min(body, max(shown, 0))  # what is cut off need not be written
    pieces = _spaced(_sentences(_words(made, language, rng), _SENTENCE, language), language)
    for start in range(_PARAGRAPH, len(pieces), _PARAGRAPH):
        pieces[start] = "\n\n" + pieces[start].lstrip()
    return (pieces + closing)[:natural] if made == body else pieces
