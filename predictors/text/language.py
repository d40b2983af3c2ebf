"""What prompts in each language call things: a row a language. A new language is a new row, in
``languages_spaced`` or ``languages_script``.

Words are separated by blanks, phrases by commas, all lower case. ``numbers`` begin at one and go on by one; ``word=12`` names
any other. A unit that ends in ``*`` stands for every word that begins so.

Where words are written without blanks or grow endings (rows with a ``script``: Chinese, Japanese, Korean, Thai), everything
is looked for inside the text, and a number counts only straight before its unit. Of such rows the first applies whose
script the text has; all others apply to every text.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What a prompt wants done, by the word that says so.
INTENTS = (
    "what",
    "how",
    "why",
    "who",
    "when",
    "where",
    "which",
    "polar",  # a question that yes or no answers
    "list",
    "give",
    "write",
    "create",
    "explain",
    "describe",
    "compare",
    "summarize",
    "translate",
    "rewrite",
    "classify",
    "solve",
)


@dataclass(frozen=True, kw_only=True)
class Language:
    """One row."""

    name: str
    script: str = ""  #: character class, for languages that are not looked up word by word
    numbers: str = ""
    not_before: str = ""  #: with a script: what does not stand straight before a number word (a character class)
    counters: str = ""  #: with a script: may stand between number and unit
    articles: str = ""  #: mean one, straight before a unit other than items
    items: str = ""
    sentences: str = ""
    words: str = ""
    paragraphs: str = ""
    lines: str = ""
    characters: str = ""
    asks: str = ""  #: a number soon after one of these counts items, whatever they are called
    not_items: str = ""  #: but not of these
    yes_or_no: str = ""
    brief: str = ""
    detailed: str = ""
    code: str = ""
    structured: str = ""
    listed: str = ""
    intents: str = ""  #: "write: compose draft; explain: …", names from ``INTENTS``
