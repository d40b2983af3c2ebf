"""Words and sentences in any script.

Scripts written without spaces count a word for each ideograph or kana, and one for every four characters of Thai, Lao,
Khmer, Burmese and Tibetan. A sentence of Thai or Lao, which know no full stop, ends where a space or line break does.
"""

from __future__ import annotations

import re

#: Ideographs, kana, bopomofo: one word each.
_IDEOGRAPHS = "\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31f0-\u31ff"
_IDEOGRAPHS += "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U000323af"
#: Thai, Lao, Tibetan, Burmese, Khmer: four characters a word.
_ABUGIDAS = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
_NO_IDEOGRAPH = re.compile(f"[^{_IDEOGRAPHS}]+")
_NO_ABUGIDA = re.compile(f"[^{_ABUGIDAS}]+")
_UNSPACED = re.compile(f"[{_IDEOGRAPHS}{_ABUGIDAS}\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+")
_STOPS = ".!?"
_ONE_STOP = frozenset(_STOPS)
_CLOSERS = "\"')]*_`"
_ANY_END = re.compile(
    r"""[.!?…]++["'”’»)\]*_`]*+(?:\s++|$)"""
    r"""|[。！？．｡؟।॥۔։።။។།]++["'”’»」』）)\]*_]*+\s*+"""
    r"""|(?<=[\u0e00-\u0eff])\s++"""
)


def count_unspaced(text: str) -> tuple[int, int]:
    """Ideographs and kana of ``text``, and its characters of Thai and the like: scripts without spaces."""
    if text.isascii():
        return 0, 0
    return len(_NO_IDEOGRAPH.sub("", text)), len(_NO_ABUGIDA.sub("", text))


def count_spaced(text: str) -> int:
    """Words of ``text`` in scripts that set them apart."""
    return len(_UNSPACED.sub(" ", text).split())


def ascii_sentences(words: list[str], first: int) -> tuple[int, str]:
    """How many of ``words[first:]``, all ASCII, end a sentence, closing quotes aside, and the last that does."""
    count, last = 0, ""
    for word in words[first:]:
        end = word[-1]
        if end in _STOPS or (end in _CLOSERS and word.rstrip(_CLOSERS)[-1:] in _ONE_STOP):
            count += 1
            last = word
    return count, last


def sentence_ends(text: str, start: int = 0) -> list[int]:
    """Where the sentences that end in ``text[start:]`` end: the index after the stop, closing quotes and spaces."""
    return [match.end() for match in _ANY_END.finditer(text, start)]
