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
_AFTER_STOP = re.compile(r"""["')\]*_`]*(?:\s+|$)""")
_WIDE_STOPS = "。！？．｡؟।॥۔։።။។།"  # need no space after them
_WIDE_CLOSERS = "」』）】"
_ANY_END = re.compile(
    rf"""[{_STOPS}…{_WIDE_STOPS}]++["'”’»)\]*_`{_WIDE_CLOSERS}]*+(?:\s++|$|(?<=[{_WIDE_STOPS}{_WIDE_CLOSERS}]))"""
)
_THAI_END = re.compile(r"(?<=[\u0e00-\u0eff])\s+")


def count_unspaced(text: str) -> tuple[int, int]:
    """Ideographs and kana of ``text``, and its characters of Thai and the like: scripts without spaces."""
    if text.isascii():
        return 0, 0
    return len(_NO_IDEOGRAPH.sub("", text)), len(_NO_ABUGIDA.sub("", text))


def count_spaced(text: str) -> int:
    """Words of ``text`` in scripts that set them apart."""
    return len(_UNSPACED.sub(" ", text).split())


def sentence_ends(text: str, start: int) -> tuple[int, int]:
    """How many sentences end in ``text[start:]``, and how many characters follow the last end.

    Closing quotes and white space after a stop belong to its sentence.
    """
    ends = _ascii_ends(text, start) if text.isascii() else _ends(text, start)
    return len(ends), len(text) - max(ends) if ends else 0


def _ascii_ends(text: str, start: int) -> list[int]:
    ends = []
    for stop in _STOPS:
        at = text.find(stop, start)
        while at >= 0:
            after = _AFTER_STOP.match(text, at + 1)
            if after:
                ends.append(after.end())
            at = text.find(stop, at + 1)
    return ends


def _ends(text: str, start: int) -> list[int]:
    ends = [match.end() for match in _ANY_END.finditer(text, start)]
    return ends + [match.end() for match in _THAI_END.finditer(text, start)]
