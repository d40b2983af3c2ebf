"""Texts as hashed words and pairs of words, and what a learned table says of them.

A gram is a number below ``2**bits``, the same in every process; a text is the sorted distinct numbers of its grams. Where
words are written without blanks between them, each character counts as a word. Numbers count by how many digits they have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

from endcast.predictors.text.words import MARKS, folded, tokens_of

Grams = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

#: Tables have 2**bits entries.
PROMPT_BITS, TAIL_BITS = 15, 14
#: Of a longer prompt this many words are read at its beginning and as many at its end.
MOST_WORDS = 256
#: Of a tail this many characters at its end are read, of a line's head so many words.
MOST_TAIL, MOST_HEAD = 400, 4
#: Words whose bytes are kept at hand: a cache, of short words only.
_REMEMBERED = 1 << 15
#: Longer words are told apart by their beginning only.
_LONGEST = 24

#: Scripts without blanks between words: kana, Han, Thai, Lao, Khmer, Burmese.
_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
_NUMBER = ("", "0", "00", "000")
_TAIL_TOKEN = re.compile(rf"\n{{1,2}}|\d{{1,3}}|[\w{MARKS}]{{1,{_LONGEST}}}|[^\w\s]")
#: Where a gram stood tells it from the same words elsewhere: start values of the hash.
_ANYWHERE, _LAST, _BEFORE_LAST, _THIRD_LAST, _ENDING, _HEAD, _FIRST, _MARK = range(8)
_PAIR = 0x5BD1E995  #: sets a pair of words apart from one word that is both together
_BEGUN = np.array([_ANYWHERE, _LAST, _BEFORE_LAST, _THIRD_LAST, _ENDING, _HEAD, _PAIR], dtype=np.uint32)


@dataclass(frozen=True, eq=False)
class NgramScore:
    """A linear score of texts: ``table`` (2**bits,) float32, finite, and ``bias``."""

    table: Float32Array
    bias: float

    def of(self, grams: Grams) -> float:
        """``bias`` + Σ ``table[grams]`` / √len(grams): a log-odds or a real number, as it was fitted."""
        return self.bias + float(self.table[grams].sum()) / math.sqrt(max(len(grams), 1))


def hashed(text: str, bits: int = PROMPT_BITS, marks: Iterable[str] = ()) -> Grams:
    """(k,) grams of a prompt: its words and pairs of neighbours, its first words once more as such, and ``marks``: whatever
    else is told of it, never taken for its words."""
    words = _prompt_words(text)
    grams = [crc32(word, _ANYWHERE) for word in words]
    grams += [crc32(word, mark ^ _PAIR) for mark, word in zip(grams, words[1:], strict=False)]
    grams += [crc32(word, _FIRST) for word in words[:2]]
    grams += [crc32(mark.encode(), _MARK) for mark in marks]
    return _distinct(grams, bits)


def hashed_tail(tail: str, line_head: str, bits: int = TAIL_BITS) -> Grams:
    """(k,) grams of the end of an output: words, marks and pairs of neighbours, the last three once more by their place,
    and the first words of the line that is being written, ``line_head``."""
    tail, line_head = tail[-MOST_TAIL:], line_head[: 16 * MOST_HEAD]
    if tail.isascii() and line_head.isascii():
        ends = np.frombuffer(tail.encode(), dtype=np.uint8), np.frombuffer(line_head.encode(), dtype=np.uint8)
        return _compiled()(*ends, _BEGUN, MOST_HEAD, _LONGEST, (1 << bits) - 1)
    return hashed_tail_of_any(tail, line_head, bits)


def hashed_tail_of_any(tail: str, line_head: str, bits: int = TAIL_BITS) -> Grams:
    """``hashed_tail`` of texts in any script."""
    words = _tail_words(tail)
    grams = [crc32(word, _ANYWHERE) for word in words]
    grams += [crc32(word, mark ^ _PAIR) for mark, word in zip(grams, words[1:], strict=False)]
    for word, place in zip(reversed(words), (_LAST, _BEFORE_LAST, _THIRD_LAST), strict=False):
        grams.append(crc32(word, place))
    grams.append(crc32(b" ".join(words[-2:]), _ENDING))
    head = _tail_words(line_head)[:MOST_HEAD]
    grams += [crc32(word, _HEAD) for word in head]
    grams.append(crc32(b" ".join(head[:2]), _HEAD))
    return _distinct(grams, bits)


@cache
def _compiled() -> Callable[..., Grams]:
    """Loaded when first needed: whoever reads no outputs does without."""
    from endcast.predictors.text.tail_kernel import ascii_tail_grams

    grams_of: Callable[..., Grams] = ascii_tail_grams
    return grams_of


def _distinct(grams: Sequence[int], bits: int) -> Grams:
    mask = (1 << bits) - 1
    return np.array(sorted({gram & mask for gram in grams}), dtype=np.int32)


def _prompt_words(text: str) -> list[bytes]:
    words = tokens_of(_parted(folded(text)))
    return _short(words if len(words) <= 2 * MOST_WORDS else [*words[:MOST_WORDS], *words[-MOST_WORDS:]])


def _tail_words(text: str) -> list[bytes]:
    return list(map(_bytes_of, _TAIL_TOKEN.findall(_parted(text.lower()))))


def _parted(plain: str) -> str:
    """Blanks around each character of a script that has none."""
    return plain if plain.isascii() else " ".join(_UNSPACED.split(plain))


@lru_cache(_REMEMBERED)
def _bytes_of(word: str) -> bytes:
    """Numbers by how many digits they have; surrogates that stand alone as they are."""
    return (_NUMBER[min(len(word), 3)] if word[0].isdecimal() else word).encode("utf-8", "surrogatepass")


def _short(words: Sequence[str]) -> list[bytes]:
    return [_bytes_of(word if len(word) <= _LONGEST else word[:_LONGEST]) for word in words]
