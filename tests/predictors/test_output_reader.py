"""The reader of an output: the same answer whatever the chunks, bounded, and never at a loss."""

from __future__ import annotations

import gc
import itertools
import math
import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from endcast.predictors.text.asked import NOTHING_ASKED, Asked
from endcast.predictors.text.output_reader import COLUMNS, LINE_HEAD, TAIL_BYTES, OutputReader
from endcast.predictors.text.pieces import PIECE, split_pieces

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
@example(text="a\r\n\r\n```py\r\nx\r\n```\r\n")
@example(text="\ud83d\ude80\ud83d\n\U0001f469\u200d\U0001f680e\u0301")
@example(text="x" * 127 + "\r\n" + "y " * 63 + "zz\n" + "<|channel|>final" + " " * 300 + "\n")
@example(text="")
def test_one_character_at_a_time(text: str) -> None:
    assert seen(read(text, list(range(len(text))))) == seen(read(text, []))


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS | st.sampled_from(["", "\n" * 400, "\x00", "1. " * 500, "((((" * 200, "[" * 500, "!" * 999, "<a>" * 200])
)
def test_features_are_bounded_and_asking_changes_nothing(text: str) -> None:
    reader = read(text, [])
    features = reader.features()
    assert len(features) == len(COLUMNS)
    assert all(type(value) is float for value in features)
    assert all(math.isnan(value) or abs(value) <= 200 for value in features)
    assert seen(reader) == seen(reader)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_tail_and_line_head(text: str) -> None:
    reader = read(text, [len(text) // 2])
    tail = reader.tail()
    assert text.endswith(tail)
    assert len(tail.encode("utf-8", "surrogatepass")) <= TAIL_BYTES
    longer = text[len(text) - len(tail) - 1 :] if len(tail) < len(text) else ""
    assert not longer or len(longer.encode("utf-8", "surrogatepass")) > TAIL_BYTES
    assert reader.line_head() == text.rpartition("\n")[2][:LINE_HEAD]


@given(text=TEXTS)
def test_pieces_are_short_and_make_up_the_text(text: str) -> None:
    pieces, rest = split_pieces(text)
    assert "".join(pieces) + rest == text
    assert all(0 < len(piece.rstrip("\n")) <= PIECE or piece == "\n" for piece in pieces)
    assert all("\n" not in piece[:-1] for piece in pieces)
    assert len(rest) < PIECE
    assert len(pieces) <= 2 * len(text) / PIECE + text.count("\n")


@pytest.mark.parametrize("unit", ["x", "word ", "哈", "line of text\n", "<", '"', "```\n", "- item\n"])
def test_memory_is_bounded(unit: str) -> None:
    """Ten times the text takes no more memory."""

    def kept(text: str) -> int:
        reader = OutputReader()
        reader.append(text)  # what is made once stays out of the count
        tracemalloc.start()
        reader = OutputReader()
        for at in range(0, len(text), 1000):
            reader.append(text[at : at + 1000])
        reader.features()
        gc.collect()  # whatever other tests have set the collector to
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/predictors/text/*")])
        tracemalloc.stop()  # threads that other tests have left allocate as well
        return sum(found.size for found in own.statistics("filename"))

    short = kept(unit * (5_000 // len(unit)))
    assert 500 < short < 32_000
    assert kept(unit * (50_000 // len(unit))) < short + 10_000  # a byte a character more would be 45,000


def test_columns() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert OutputReader().features() == pytest.approx(OutputReader(NOTHING_ASKED).features(), nan_ok=True)


def test_what_is_left_of_what_was_asked() -> None:
    asked = Asked(items=5, words=10, sentences=2, paragraphs=3, lines=4, characters=40)
    features = named(OutputReader(asked), "1. One thing.\n2. Two of them")
    assert features["items_left"] == 3
    assert features["words_left"] == pytest.approx(math.log1p(3))
    assert features["sentences_left"] == 1
    assert features["paragraphs_left"] == 2
    assert features["lines_left"] == 2
    assert features["characters_left"] == pytest.approx(math.log1p(12))
    beyond = named(OutputReader(Asked(words=2)), "one two three four")
    assert beyond["words_left"] == pytest.approx(-math.log1p(2))
    assert math.isnan(beyond["items_left"])


def named(reader: OutputReader, text: str) -> dict[str, float]:
    reader.append(text)
    return dict(zip(COLUMNS, reader.features(), strict=True))
