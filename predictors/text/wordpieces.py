"""Texts as numbers of word pieces: what a text encoder reads. Cut by the ``tokenizers`` library, from a bundle's own file.

The library is an extra (``endcast[wordpieces]``): only bundles with an encoder need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from endcast.errors import BundleError
from endcast.predictors.features.protocol import Float32Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Word pieces of a prompt that are read, and how many of them from its beginning (of a longer one; the others from its
#: end); word pieces of an output's tail.
PROMPT_PIECES, FROM_BEGINNING, TAIL_PIECES = 64, 48, 40
#: Characters that are cut for each piece wanted: more than any language needs on average.
_CHARACTERS = 12


class Wordpieces:
    """A vocabulary (``tokenizer.json``) at work.

    ``first`` is the number of what stands before every text; a text's own numbers are followed by the end's.
    """

    def __init__(self, file: bytes) -> None:
        self.file = file
        self._tokenizer = _tokenizer(file)
        alone = self._tokenizer.encode("").ids
        if len(alone) != 2:
            raise BundleError(
                "the tokenizer does not put one piece before a text and one after it",
                hint="Use an encoder of BERT's kind",
            )
        self.first, self._end = alone

    @property
    def size(self) -> int:
        """Word pieces in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def row(self, text: str, most: int, beginning: int) -> Float32Array:
        """(most,), the numbers of a text's pieces and of its end; NaN where nothing is left.

        Of a longer text the first ``beginning`` pieces and as many of its last ones as there is room for.
        """
        kept = most * _CHARACTERS
        if len(text) > 2 * kept:
            text = f"{text[:kept]}\n{text[-kept:]}"
        # half a character (a lone surrogate) has no place in UTF-8, which the library wants
        ids = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        if len(ids) >= most:
            ids = (
                [*ids[:beginning], *ids[len(ids) - (most - 1 - beginning) :]]
                if beginning < most - 1
                else ids[: most - 1]
            )
        row = np.full(most, np.nan, dtype=np.float32)
        row[: len(ids)] = ids
        row[len(ids)] = self._end
        return row

    def prompt(self, text: str) -> Float32Array:
        """(PROMPT_PIECES,), of a prompt."""
        return self.row(text, PROMPT_PIECES, FROM_BEGINNING)

    def tail(self, text: str) -> Float32Array:
        """(TAIL_PIECES,), of an output's tail: its end is what counts."""
        return self.row(text, TAIL_PIECES, 0)


def _tokenizer(file: bytes) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BundleError(
            "this bundle reads texts with an encoder, and the package tokenizers is not installed",
            hint="pip install 'endcast[wordpieces]'",
        ) from None
    try:
        tokenizer = Tokenizer.from_str(file.decode())
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise BundleError(f"the tokenizer is damaged: {error!s:.200}", hint="Train the bundle again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
