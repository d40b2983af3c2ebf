"""Why a generation ended, out of the words that engines, APIs and logs use for it."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from endcast.datasets.report import Tally
from endcast.datasets.trace import IntArray
from endcast.types import EndReason

#: Lower-case word → reason. A content filter cuts an answer from outside, so it censors.
WORDS = MappingProxyType(
    {
        EndReason.STOP: "stop eos eos_token end_turn stop_sequence stop_token tool_calls tool_call tool_use "
        "function_call finished completed complete success ok",
        EndReason.LENGTH: "length max_tokens max_output_tokens model_length max_length context_length incomplete",
        EndReason.ABORT: "abort aborted cancel cancelled canceled client_disconnect disconnected",
        EndReason.ERROR: "error failed failure timeout timed_out content_filter safety recitation exception",
        EndReason.UNFINISHED: "unfinished running in_progress streaming",
    }
)
_REASON_OF = MappingProxyType({word: reason for reason, words in WORDS.items() for word in words.split()})
#: Stands for "the log does not tell".
UNTOLD = ""


def end_reason(word: str) -> EndReason | None:
    """The reason that ``word`` names, in any case; ``None`` if nobody uses it."""
    return _REASON_OF.get(word.strip().lower())


def end_reasons(words: pa.Array, lines: IntArray, tally: Tally) -> pa.Array:
    """(n,) strings: an ``EndReason`` each, ``UNTOLD`` for null and blank. Unknown words censor, and are counted."""
    told = pc.dictionary_encode(pc.fill_null(words, ""))
    table = []
    for code, word in enumerate(told.dictionary.to_pylist()):
        reason = end_reason(word)
        if reason is None and word.strip().lower() not in ("", "null", "none", "nan"):
            where = lines[np.asarray(told.indices) == code]
            tally.repair(f"the end reason {word!r:.40} is not known, so the request is censored there", where)
            reason = EndReason.ERROR
        table.append(UNTOLD if reason is None else reason.value)
    return pa.array(table, pa.string()).take(told.indices)
