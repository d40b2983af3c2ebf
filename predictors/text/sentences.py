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
_ENDING = re.compile(
    r"""[.!?…]++["'”’»)\]*_`]*+(?:\s++|$)"""
    r"""|[。！？．｡؟।॥۔։።။។།]++["'”’»」』）)\]*_]*+\s*+"""
    r"""|(?<=[\u0e00-\u0eff])\s++"""
)


def count_unspaced(text: str) -> int:
    """Characters of scripts that are written without spaces between words."""
    if text.isascii():
        return 0
    return len(_NO_IDEOGRAPH.sub("", text)) + len(_NO_ABUGIDA.sub("", text))


def count_words(text: str) -> float:
    """Words of ``text``: those between spaces, or by characters where there are no spaces (a multiple of 1/4)."""
    if text.isascii():
        return len(text.split())
    words = len(_NO_IDEOGRAPH.sub("", text)) + len(_NO_ABUGIDA.sub("", text)) / 4
    return words + len((_UNSPACED.sub(" ", text) if words else text).split())


def sentence_ends(text: str, start: int = 0) -> list[int]:
    """Where the sentences that end in ``text[start:]`` end: the index after the stop, closing quotes and spaces."""
    return [match.end() for match in _ENDING.finditer(text, start)]
