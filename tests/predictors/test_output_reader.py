"""The reader of an output: the same answer whatever the chunks, bounded, and never at a loss."""

from __future__ import annotations

import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from endcast.predictors.text.asked import Asked
from endcast.predictors.text.output_reader import OutputReader

FRAGMENTS = (
    "\n", "\r\n", "\r", "\n\n", " ", "\t", "1. ", "2) ", "(3) ", "- ", "* ", "**Note:** ", "# Title\n", "Step 2: ", "第三", "①", "```", "```py\n",
    "~~~\n", "| a | b |\n", "<think>", "</think>", "<|channel|>", "analysis", "final", "<tool_call>", "</tool_call>",
    '{"name": "f", "a": ["\\"]"]}', "<div class='x'>", "</div>", "<br/>", "In conclusion, ", "in conclusio", "n, ",
    "I hope this helps!", "The answer is 4.", "\\boxed{4}", "3.14", "e.g. ", "“quoted” ", "(", ")", "**", '"',
    "你好。希望这对你有帮助！", "まとめると、", "สวัสดี ครับ", "안녕하세요. ", "مرحبا؟ ", "नमस्ते। ", "Привет! ", "İstanbul ß Σ",
    "e\u0301", "\U0001f469\u200d\U0001f680", "\ud83d", "\ude80", "\ufffd", "\x00", "word " * 30, "x" * 140, "哈" * 130,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=12), max_size=30).map("".join)
ASKED = Asked(items=5, sentences=3, words=100, paragraphs=2, lines=4, characters=300)


def read(text: str, cuts: list[int], asked: Asked = ASKED) -> OutputReader:
    """A reader that has been given ``text`` cut at ``cuts``, and asked for features on the way."""
    reader = OutputReader(asked)
    bounds = [0, *sorted(cuts), len(text)]
    for start, stop in itertools.pairwise(bounds):
        reader.append(text[start:stop])
        if stop % 3 == 0:
            reader.features()
    return reader


def seen(reader: OutputReader) -> tuple[bytes, str, str]:
    """Everything a reader tells, bit for bit."""
    features = reader.features()
    return struct.pack(f"{len(features)}d", *features), reader.tail(), reader.line_head()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, data=st.data())
def test_chunks_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert seen(read(text, cuts)) == seen(read(text, []))


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_one_character_at_a_time(text: str) -> None:
    assert seen(read(text, list(range(len(text))))) == seen(read(text, []))
