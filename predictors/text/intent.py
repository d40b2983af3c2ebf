"""What a prompt wants done: explain, list, translate, answer a what or a why."""

from __future__ import annotations

from collections.abc import Sequence

from endcast.predictors.text.lexicon import SPACED, script_of

#: Words, or characters where words are not apart, at the beginning and at the end that are looked at.
LOOKED_AT = 24
#: What "can you …" and "is she …" are told apart by.
_ASKED_OF_YOU = frozenset(("you", "u", "ya"))


def intent_in(plain: str, tokens: Sequence[str]) -> str | None:
    """The intent, a name of ``INTENTS``, of a folded text and its tokens: the first that the beginning shows, else the
    first at the end. A question that begins with a verb is ``polar``, unless it asks *you* to do something."""
    script = script_of(plain)
    if script is not None:
        found = script.intent(plain[: 4 * LOOKED_AT] + "\n" + plain[-4 * LOOKED_AT :])
        if found is not None:
            return found
    if len(tokens) > 1 and SPACED.intents.get(tokens[0]) == "polar" and tokens[1] not in _ASKED_OF_YOU:
        return "polar"
    return _first(tokens[:LOOKED_AT]) or _first(tokens[-LOOKED_AT:])


def _first(tokens: Sequence[str]) -> str | None:
    found = (SPACED.intents[token] for token in tokens if token in SPACED.intents)
    return next((intent for intent in found if intent != "polar"), None)
