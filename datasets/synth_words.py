"""Words for synthetic prompts and outputs, language by language."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """``ask``: kind of task → template with ``{n}`` and ``{topic}``. ``space`` stands between words, ``stop`` ends a
    sentence."""

    space: str
    stop: str
    topics: tuple[str, ...]
    words: tuple[str, ...]
    ask: dict[str, str]
    intro: str
    closing: str
    context: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ENGLISH = Language(
    space=" ",
    stop=".",
    topics=_words("gardens bridges rivers markets trains bread winter music trade whales deserts clocks"),
    words=_words(
        "the a of and to in with for on by from as is was are can will often rarely people water light work "
        "time city road small large early late simple careful common local public modern older change growth "
        "value method reason result effect sign part place group house field stone paper voice season teacher "
        "farmer builder"
    ),
    ask={
        "list": "List {n} ideas about {topic}.",
        "sentences": "Explain {topic} in {n} sentences.",
        "brief": "Answer in one word: what comes after {topic}?",
        "code": "Write a Python function that counts {topic}.",
        "json": "Extract the fields about {topic} as JSON.",
        "open": "Tell me everything about {topic}.",
    },
    intro="Here are some thoughts on this:",
    closing="I hope this helps!",
    context="Context:",
)
SPANISH = Language(
    space=" ",
    stop=".",
    topics=_words("jardines puentes ríos mercados trenes pan invierno música comercio ballenas desiertos"),
    words=_words(
        "el la de y en con para por desde como es era son puede siempre gente agua luz trabajo tiempo ciudad "
        "camino pequeño grande temprano tarde sencillo común público moderno cambio valor método razón "
        "resultado efecto parte lugar grupo casa campo piedra papel voz estación"
    ),
    ask={
        "list": "Enumera {n} ideas sobre {topic}.",
        "sentences": "Explica {topic} en {n} frases.",
        "brief": "Responde con una palabra: ¿qué viene después de {topic}?",
        "code": "Escribe una función de Python que cuente {topic}.",
        "json": "Extrae los campos sobre {topic} como JSON.",
        "open": "Cuéntame todo sobre {topic}.",
    },
    intro="Aquí van algunas ideas:",
    closing="¡Espero que te sirva!",
    context="Contexto:",
)
GERMAN = Language(
    space=" ",
    stop=".",
    topics=_words("Gärten Brücken Flüsse Märkte Züge Brot Winter Musik Handel Wale Wüsten Uhren"),
    words=_words(
        "der die das und von mit für auf aus als ist war sind kann wird oft selten Menschen Wasser Licht "
        "Arbeit Zeit Stadt Straße klein groß früh spät einfach üblich örtlich modern Wandel Wert Weg Grund "
        "Ergebnis Wirkung Teil Ort Gruppe Haus Feld Stein Papier Stimme Jahreszeit"
    ),
    ask={
        "list": "Nenne {n} Ideen zu {topic}.",
        "sentences": "Erkläre {topic} in {n} Sätzen.",
        "brief": "Antworte mit einem Wort: Was kommt nach {topic}?",
        "code": "Schreibe eine Python-Funktion, die {topic} zählt.",
        "json": "Gib die Felder zu {topic} als JSON aus.",
        "open": "Erzähle mir alles über {topic}.",
    },
    intro="Hier sind einige Gedanken dazu:",
    closing="Ich hoffe, das hilft!",
    context="Zusammenhang:",
)
CHINESE = Language(
    space="",
    stop="。",
    topics=_words("花园 桥梁 河流 市场 火车 面包 冬天 音乐 贸易 鲸鱼 沙漠 钟表"),
    words=_words(
        "我们 可以 这个 因为 所以 但是 人们 水 光 工作 时间 城市 道路 小 大 早 晚 简单 常见 当地 公共 现代 变化 增长 价值 方法 原因 结果 影响 部分 地方 房子 田野 石头 纸 声音 "
        "季节 老师 农民"
    ),
    ask={
        "list": "请列出{n}个关于{topic}的想法。",
        "sentences": "请用{n}句话解释{topic}。",
        "brief": "请用一个词回答：{topic}之后是什么？",
        "code": "写一个统计{topic}的Python函数。",
        "json": "以JSON格式提取关于{topic}的字段。",
        "open": "请详细介绍{topic}。",
    },
    intro="以下是一些想法：",
    closing="希望对你有帮助！",
    context="背景：",
)
LANGUAGES = {"en": ENGLISH, "es": SPANISH, "de": GERMAN, "zh": CHINESE}
CODE_WORDS = _words(
    "def count items total += 1 for item in rows: if item is not None: return total value = "
    "table.get(key) while left: left -= 1 result.append(value) print(result)"
)
