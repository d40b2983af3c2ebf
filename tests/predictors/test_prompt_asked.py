"""What prompts ask for, in every language of the table."""

from __future__ import annotations

import math
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.predictors.text.asked import NOTHING_ASKED, asked_for
from endcast.predictors.text.intent import intent_in
from endcast.predictors.text.language import INTENTS
from endcast.predictors.text.languages_script import SCRIPT_LANGUAGES
from endcast.predictors.text.languages_spaced import SPACED_LANGUAGES
from endcast.predictors.text.lexicon import COUNTED, FLAGS, MOST
from endcast.predictors.text.prompt_text import bounded
from endcast.predictors.text.words import folded, tokens_of


def stated(text: str | None) -> dict[str, float | bool]:
    """What is asked, without what is unknown."""
    return {name: value for name, value in asdict(asked_for(text)).items() if value and not math.isnan(value)}


NUMBERS: dict[str, list[tuple[str, str, float | None]]] = {
    "English": [
        ("Name 10 rivers", "items", 10),
        ("give me five more examples", "items", 5),
        ("top 5 movies", "items", 5),
        ("Can you write me a list of 20 names?", "items", 20),
        ("Summarize this in 3 sentences.", "sentences", 3),
        ("a two-sentence summary", "sentences", 2),
        ("in one paragraph", "paragraphs", 1),
        ("Write a short paragraph", "paragraphs", None),
        ("Write a paragraph", "paragraphs", 1),
        ("a five-paragraph essay", "paragraphs", 5),
        ("about 100 words", "words", 100),
        ("at least 1,200 words", "words", 1200),
        ("150-200 words", "words", 200),
        ("under 280 characters", "characters", 280),
        ("a poem of 12 lines", "lines", 12),
        ("Give me a 5 minute speech", "items", None),
        ("the 2nd sentence", "sentences", None),
        ("a few words", "words", None),
        ("It was 2020. Words are hard.", "words", None),
        ("give 7", "items", None),
        ("list 5000 things", "items", 5000),
        ("list 5000 rivers", "items", None),
        ("0 words", "words", None),
        (f"{MOST + 1} words", "words", None),
    ],
    "Spanish": [("Resume en 3 frases", "sentences", 3), ("un párrafo de 150 palabras", "words", 150)],
    "French": [("en trois phrases", "sentences", 3), ("Cite cinq fleuves", "items", 5)],
    "German": [
        ("in drei Sätzen", "sentences", 3),
        ("Schreibe einen Absatz", "paragraphs", 1),
        ("30 Wörter", "words", 30),
    ],
    "Portuguese": [("em duas frases", "sentences", 2), ("Liste 7 dicas", "items", 7)],
    "Italian": [("in tre frasi", "sentences", 3), ("Elenca cinque fiumi", "items", 5)],
    "Dutch": [("in drie zinnen", "sentences", 3)],
    "Polish": [("w trzech zdaniach", "sentences", 3)],
    "Russian": [
        ("в трёх предложениях", "sentences", 3),
        ("Приведи 5 примеров", "items", 5),
        ("200 слов", "words", 200),
    ],
    "Turkish": [("üç cümlede anlat", "sentences", 3), ("100 kelimelik", "words", 100)],
    "Vietnamese": [("trong 3 câu", "sentences", 3)],
    "Indonesian": [("dalam tiga kalimat", "sentences", 3)],
    "Arabic": [("اكتب خمس جمل", "sentences", 5), ("في 100 كلمة", "words", 100)],
    "Hindi": [("3 वाक्यों में लिखिए", "sentences", 3), ("दस शब्द", "words", 10)],
    "Chinese": [
        ("写出十个例子", "items", 10),
        ("用三句话总结", "sentences", 3),
        ("写一篇２００字的文章", "characters", 200),
        ("两段", "paragraphs", 2),
        ("十二个", "items", 12),
        ("写一个故事", "items", None),
        ("三个人走了两个月", "items", None),
        ("第三段", "paragraphs", None),
    ],
    "Japanese": [
        ("例を3つ挙げて", "items", 3),
        ("５個ください", "items", 5),
        ("三文でお願いします", "sentences", 3),
        ("400字以内で", "characters", 400),
        ("3文字で", "sentences", None),
    ],
    "Korean": [
        ("세 문장으로 요약해줘", "sentences", 3),
        ("10개의 예시", "items", 10),
        ("중요한 문장", "sentences", None),
        ("다섯 가지 방법", "items", 5),
    ],
    "Thai": [("เขียน 3 ประโยค", "sentences", 3), ("ห้าคำ", "words", 5)],
}
CASES = [(language, *case) for language, cases in NUMBERS.items() for case in cases]


def test_every_language_has_its_cases() -> None:
    names = [row.name for row in (*SPACED_LANGUAGES, *SCRIPT_LANGUAGES)]
    assert sorted(names) == sorted(NUMBERS)


@pytest.mark.parametrize(("language", "text", "kind", "number"), CASES, ids=[case[1] for case in CASES])
def test_numbers(language: str, text: str, kind: str, number: float | None) -> None:
    assert stated(text).get(kind) == number, language
    assert stated(text.upper()).get(kind) == number or language == "Turkish"


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("Answer yes or no.", "yes_or_no"),
        ("Responde sí o no", "yes_or_no"),
        ("Отвечай да или нет", "yes_or_no"),
        ("回答是或否", "yes_or_no"),
        ("Briefly, what is it?", "brief"),
        ("in short", "brief"),
        ("Kurz bitte", "brief"),
        ("简短回答", "brief"),
        ("簡潔に答えて", "brief"),
        ("Explain step-by-step", "detailed"),
        ("étape par étape", "detailed"),
        ("详细说明", "detailed"),
        ("बताइए विस्तार से", "detailed"),
        ("Write a python function", "code"),
        ("写一个函数", "code"),
        ("as JSON", "structured"),
        ("als Tabelle", "structured"),
        ("用表格", "structured"),
        ("use bullet points", "listed"),
        ("箇条書きで", "listed"),
        ("รายการ", "listed"),
    ],
)
def test_flags(text: str, flag: str) -> None:
    assert stated(text).get(flag) is True
    assert flag not in stated("The cat sat there. 猫がいる。 고양이")


def test_the_first_statement_counts() -> None:
    assert stated("in 3 sentences, no more than 5 sentences") == {"sentences": 3}


def test_a_number_word_counts_units_of_its_own_language_only() -> None:
    assert "words" not in stated("sei words")  # six in Italian
    assert stated("sei parole") == {"words": 6}


@pytest.mark.parametrize("text", [None, "", " ", "\n\n", "The cat sat there.", "\ud800", "👩‍🚀"])
def test_what_asks_nothing(text: str | None) -> None:
    assert asked_for(text) is NOTHING_ASKED


HARD = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["three", "3", "sentences", "a", "in", "个", "三", "句话", "\n", "²", "٣", "1.111", "½", "🦊", "\u0301"]
    )
).map(" ".join)


@given(HARD)
def test_any_text_gives_numbers_from_one_up(text: str) -> None:
    asked = asked_for(text)
    for kind in COUNTED:
        value = getattr(asked, kind)
        assert math.isnan(value) or 1 <= value <= MOST
    assert all(type(getattr(asked, flag)) is bool for flag in FLAGS)


ADVERSARIAL = (
    "1 ",
    "a ",
    "in ",
    "1,111",
    "1" * 10,
    "十",
    "3個",
    "个",
    "세 ",
    "\n",
    "step by ",
    "\u0301",
    "👩‍🚀",
    "\ud800",
)


@pytest.mark.parametrize("unit", ADVERSARIAL)
def test_time_is_bounded(unit: str) -> None:
    """CPU time; some milliseconds, where anything quadratic would take seconds."""
    text = bounded(unit * (500_000 // len(unit)))
    start = time.process_time()
    asked_for(text)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("What is a cat?", "what"),
        ("Please explain how a car works", "explain"),
        ("Is it safe to write on glass?", "polar"),
        ("Can you write a poem?", "write"),
        ("Could I write a poem?", "polar"),
        ("word " * 100 + "Summarize the text above.", "summarize"),
        ("¿Cómo se hace?", "how"),
        ("Напиши стихотворение", "write"),
        ("Übersetze ins Englische", "translate"),
        ("为什么天是蓝的", "why"),
        ("翻訳してください", "translate"),
        ("설명해줘", "explain"),
        ("cat", None),
        ("", None),
    ],
)
def test_intents(text: str, intent: str | None) -> None:
    plain = folded(text)
    assert intent_in(plain, tokens_of(plain)) == intent
    assert intent is None or intent in INTENTS
