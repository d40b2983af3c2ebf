"""What the columns mean: lists, headings, code, JSON, tables, tags, sentences, phrases, loops."""

from __future__ import annotations

import itertools
import math

import pytest

from endcast.predictors.text.line_heads import Kind, line_head
from endcast.predictors.text.output_reader import COLUMNS, OutputReader
from endcast.predictors.text.phrases import GROUPS, PREAMBLES, REFUSALS


def read(text: str) -> dict[str, float]:
    """The features of ``text`` by name; log columns as they are."""
    reader = OutputReader()
    reader.append(text)
    return dict(zip(COLUMNS, reader.features(), strict=True))


def count(features: dict[str, float], column: str) -> int:
    """The count of which a column holds the log."""
    return round(math.expm1(features[column]))


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("1. first", 1), ("12) twelfth", 12), ("(3) third", 3), ("**4. Title**", 4), ("### 5. Title", 5), ("６．六", 6),
        ("⑦ seven", 7), ("第8章 始まり", 8), ("第九步", 9), ("十、总之", 10), ("二十一、最后", 21), ("Step 11: go", 11),
        ("**Day 2:** rest", 2), ("## Chapter 3", 3), ("Шаг 4. Далее", 4), ("4️⃣ four", 4), ("٣. ثالثا", 3), ("  2. inner", 2),
    ],
)  # fmt: skip
def test_numbered_lines(line: str, number: int) -> None:
    head = line_head(line)
    assert head.kind in (Kind.NUMBERED, Kind.HEADING)
    assert head.number == number


@pytest.mark.parametrize(
    "line", ["1.5 million", "12:30 is late", "1984. A year", "Step back", "第一", "3 apples", "day 1.5"]
)
def test_lines_that_are_not_numbered(line: str) -> None:
    assert line_head(line).number == 0 or line == "第一"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("- a", Kind.BULLET), ("* a", Kind.BULLET), ("• a", Kind.BULLET), ("・項目", Kind.BULLET), ("a) b", Kind.BULLET),
        ("**Label:** text", Kind.BULLET), ("**Label**: text", Kind.BULLET), ("# T", Kind.HEADING), ("**Bold**\n", Kind.HEADING),
        ("```py", Kind.FENCE), ("~~~", Kind.FENCE), ("| a |", Kind.TABLE), ("> said", Kind.QUOTE), (" \t\n", Kind.BLANK),
        ("---", Kind.TEXT), ("*emphasis* here", Kind.TEXT), ("#hashtag", Kind.TEXT), ("`code`", Kind.TEXT), ("Text", Kind.TEXT),
    ],
)  # fmt: skip
def test_kinds_of_lines(line: str, kind: Kind) -> None:
    assert line_head(line).kind is kind


def test_list_reached_and_ended() -> None:
    text = "Here are three:\n\n1. One\n   - inner\n   - inner\n2. Two\n3. Thr"
    inside = read(text)
    assert count(inside, "item_reached") == 3
    assert count(inside, "lists") == 1
    assert inside["item_line"] == 1
    assert inside["list_ended"] == 0
    assert math.expm1(inside["nested_mean"]) == pytest.approx(1)  # two bullets under two complete items
    after = read(text + "ee\n\nThese were all of them.")
    assert after["list_ended"] == 1
    assert count(after, "after_list") == len("These were all of them.")
    assert read(text + "ee\n\nThese\n\n4. Four")["list_ended"] == 0
    assert count(read(text + "ee\n\nOthers:\n\n1. Again"), "lists") == 2


def test_items_are_compared_with_those_before() -> None:
    half = read("1. " + "x" * 96 + "\n2. " + "y" * 47)
    assert half["numbered_relative"] == pytest.approx(0.5)
    assert count(half, "numbered_length") == 50
    assert count(half, "numbered_mean") == 100


def test_bullets_in_a_row() -> None:
    features = read("- a\n- b\n- c\n")
    assert count(features, "item_reached") == count(features, "bullets") == 3
    assert count(read("- a\n- b\n\nText.\n\n- c\n"), "bullets") == 1


def test_one_on_every_line_counts_on() -> None:
    assert count(read("1. a\n1. b\n1. c"), "item_reached") == 3


def test_paragraphs_and_lines() -> None:
    features = read("First paragraph here.\n\nSecond one,\ntwo lines.\n\n")
    assert count(features, "log_paragraphs") == 2
    assert count(features, "log_lines") == 3
    assert count(features, "paragraph_lines") == 2
    assert count(features, "trailing_newlines") == 2
    assert features["line_length"] == 0
    assert read("a b c\nd\n\ne\n")["paragraph_lines_left"] == pytest.approx(math.log1p(1))


@pytest.mark.parametrize(
    ("text", "sentences", "words"),
    [
        ("One. Two! Three?", 3, 3), ('He said "no." Then left.', 2, 5), ("3.14 is pi", 0, 3), ("e.g.x", 0, 1), ("Wait...", 1, 1),
        ("你好。我很好！", 2, 5), ("これは本です。", 1, 6), ("안녕하세요. 반갑습니다.", 2, 2), ("كيف حالك؟", 1, 2), ("यह ठीक है।", 1, 3),
        ("สวัสดี ครับ", 1, 2.5), ("1. Item", 0, 2), ("It’s “done.” Yes", 1, 3), ("第1章。Chapter one.", 2, 5),
    ],
)  # fmt: skip
def test_words_and_sentences(text: str, sentences: int, words: float) -> None:
    features = read(text)
    assert count(features, "log_sentences") == sentences
    assert math.expm1(features["log_words"]) == pytest.approx(words)


@pytest.mark.parametrize(
    "text", ["Done.", "Done.  ", 'He said "done."\n\n', "完了しました。", "(Yes!)", "**No.**", "¿Qué?"]
)
def test_sentence_just_ended(text: str) -> None:
    assert read(text)["sentence_ended"] == 1
    assert read(text + "x y")["sentence_ended"] == 0


def test_fences() -> None:
    inside = read("Look:\n```py\ndef f(x):\n    return [x, (")
    assert inside["fence_open"] == 1
    assert count(inside, "fence_length") == len("def f(x):\n    return [x, (")
    assert count(inside, "code_depth") == 2
    assert count(inside, "code_indent") == 4
    closed = read("```py\n1. no item\n\n- none\n```\nThat was it")
    assert closed["fence_open"] == 0
    assert count(closed, "fences_closed") == 1
    assert count(closed, "after_fence") == len("That was it")
    assert count(closed, "item_reached") == 0
    assert count(closed, "log_paragraphs") == 1
    assert read("```md\n~~~\n``` py\n")["fence_open"] == 1


def test_json() -> None:
    assert count(read('{"a": ["}", {"b": "\\"]'), "json_depth") == 3
    assert read('{"a": ["}"]}')["json_closed"] == 1
    assert math.isnan(read("Sure: {")["json_depth"])


def test_tables() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    inside = read(table)
    assert count(inside, "table_rows") == 3
    assert inside["in_table"] == 1
    after = read(table + "\nAs shown")
    assert after["in_table"] == 0
    assert count(after, "after_table") == len("\nAs shown")


def test_tags() -> None:
    assert count(read("<html>\n<body class='x'>\n<br/>\n<p>Hi</p>"), "tag_depth") == 2
    assert read("<svg width='1'><g></g></svg>")["root_closed"] == 1
    assert read("a < b and c > d")["tag_depth"] == 0


@pytest.mark.parametrize(
    ("begins", "ends"),
    [("<think>", "</think>"), ("<|channel|>analysis", "<|channel|>final"), ("[THINK]", "[/THINK]"), ("", "</think>")],
)
def test_thinking(begins: str, ends: str) -> None:
    thoughts = "1. First, I hope this helps.\n" + "y" * 200
    inside = read(begins + thoughts)
    assert inside["thinking_open"] == float(begins != "")
    after = read(begins + thoughts + ends + "\n\nYes")
    assert after["thinking_open"] == 0
    assert count(after, "thinking_closed") == 1
    assert count(after, "thinking_length") == len(thoughts + ends)
    assert count(after, "answer_length") == len("\n\nYes")
    assert count(after, "item_reached") == 0  # the answer's structure is its own
    assert count(after, "log_characters") == len("\n\nYes")


@pytest.mark.parametrize(
    ("begins", "ends"),
    [("<tool_call>", "</tool_call>"), ("<function=f>", "</function>"), ("[TOOL_CALLS]", "<|/tool_call|>")],
)
def test_tool_calls(begins: str, ends: str) -> None:
    assert read(f'{begins}{{"a": 1')["tool_open"] == 1
    closed = read(f'Let me see.\n{begins}{{"a": 1}}{ends}\n')
    assert closed["tool_open"] == 0
    assert count(closed, "tools_closed") == 1
    assert count(closed, "since_tool") == 1
    assert read('{"name": "f"')["tool_open"] == 1


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "answer"])
def test_every_phrase_is_found(group: str) -> None:
    for phrase in GROUPS[group].split("|"):
        assert read(f"So then: {phrase}")[f"{group}_in_paragraph"] == 1, phrase
        assert read(f"{phrase.capitalize()} so.\n\nNew paragraph")[f"{group}_in_paragraph"] == 0


def test_every_announcement_of_an_answer_is_found() -> None:
    for phrase in GROUPS["answer"].split("|"):
        assert count(read(f"So then: {phrase} 4"), "since_answer") == 2, phrase


def test_phrases_begin_words_and_may_be_cut_in_two() -> None:
    assert read("hewing together sincerely")["sign_off_in_paragraph"] == 1
    assert read("insincerely meant")["sign_off_in_paragraph"] == 0
    for before in range(60, 130):  # wherever the pieces of a long line are cut
        text = "z " * (before // 2) + "x" * (before % 2) + " in conclusion all is well " + "word " * 40
        features = read(text)
        assert features["conclusion_in_paragraph"] == 1
        assert count(features, "phrases") == 1
        assert count(features, "since_conclusion") == len(text) - text.index("conclusion") - len("conclusion")


def test_no_phrase_begins_another() -> None:
    for phrases in ["|".join(GROUPS.values()), PREAMBLES, REFUSALS]:
        every = sorted(phrases.casefold().split("|"))
        for one, other in itertools.pairwise(every):
            assert not other.startswith(one), (one, other)


def test_openings() -> None:
    assert read("\n\n**Sure!** Here")["preamble"] == 1
    assert read("I’m sorry, but")["refusal"] == 1
    assert read("当然可以")["preamble"] == 1
    assert read("The sure thing")["preamble"] == 0


def test_loops() -> None:
    line = "The same line over and over again.\n"
    looping = read("Once upon a time there was nothing of the kind.\n" + line * 12)
    assert count(looping, "loop_period") == len(line)
    assert math.expm1(looping["loop_copies"]) == pytest.approx(12, abs=0.1)
    assert count(looping, "repeated_lines") == 11
    assert looping["repeated_share"] == 1
    assert looping["distinct_words"] < 0.5
    assert read("ha" * 400)["loop_period"] == pytest.approx(math.log1p(2))
    fresh = read(" ".join(f"word{number * number}" for number in range(400)))
    assert fresh["loop_period"] == fresh["repeated_share"] == 0
    assert fresh["distinct_words"] > 0.9


def test_a_long_loop_is_seen_by_its_lines() -> None:
    page = "".join(f"Line {number} of a page that is longer than the window.\n" for number in range(40))
    assert read(page)["repeated_lines"] == 0
    assert count(read(page * 3), "repeated_lines") == 80


@pytest.mark.parametrize(
    ("text", "column"),
    [("Is it?", "question_at_end"), ("So:\n", "colon_at_end"), ("One,", "comma_at_end"), ("好吗？", "question_at_end")],
)
def test_last_character(text: str, column: str) -> None:
    assert read(text)[column] == 1
    assert read(text + "x")[column] == 0


@pytest.mark.parametrize(
    ("text", "closing", "column"),
    [
        ('He said "no', '"', "quote_open"),
        ("「はい", "」", "quote_open"),
        ("one (two", ")", "bracket_open"),
        ("so **very", "**", "bold_open"),
    ],
)
def test_open_delimiters(text: str, closing: str, column: str) -> None:
    assert read(text)[column] == 1
    assert read(text + closing)[column] == 0
    assert read(text + "\n\nNew paragraph")[column] == 0
