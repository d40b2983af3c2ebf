"""Phrases by which answers open and close, in the languages that chats are mostly held in.

Texts are casefolded before they are looked at. No phrase begins another, of any group, so that none is counted twice.
"""

from __future__ import annotations

import re
from math import log1p, nan
from typing import NamedTuple

from endcast.predictors.text.pieces import Piece

CONCLUSIONS = (
    "in conclusion|to conclude|in summary|to summarize|to summarise|to sum up|summing up|overall,|ultimately,|in short,|"
    "in essence,|in closing|to wrap up|in the end,|taken together|by following these|"
    "en resumen|en conclusi|en definitiva|para concluir|en résumé|pour conclure|en somme|zusammenfassend|insgesamt |"
    "abschließend|fazit|in sintesi|in definitiva|em resumo|em conclusão|concluindo|podsumowując|"
    "kortom|samenvattend|sammanfattningsvis|sonuç olarak|özetle|tóm lại|nhìn chung|kesimpulannya|secara keseluruhan|"
    "в заключение|в итоге|таким образом|подводя итог|в целом,|отже,|підсумовуючи|总之|总的来说|综上|总而言之|總之|總的來說|綜上|"
    "以上が|以上の|結論として|まとめ|요약하|결론|전반적으로|وفي الختام|في الختام|في النهاية|باختصار|"
    "לסיכום|निष्कर्ष|संक्षेप में|कुल मिलाकर|โดยสรุป|สรุป"
)
OFFERS = (
    "hope this helps|hope that helps|hope you find|hope you enjoy|hope these|let me know|feel free|please don't hesitate|"
    "please do not hesitate|don't hesitate|happy to help|glad to help|have any questions|any further|anything else|if you'd like|"
    "if you would like|do you have|is there anything|good luck|enjoy!|enjoy your|"
    "bon appétit|have fun|best of luck|happy cooking|you're welcome|espero que|si necesitas|si tienes|no dudes|"
    "¡buena suerte|j'espère que|n'hésitez|si vous avez|bonne chance|ich hoffe|wenn du noch|wenn sie weitere|viel erfolg|"
    "viel spaß|lass mich wissen|spero che|se hai bisogno|se hai altre|buona fortuna|se precisar|se tiver|boa sorte|"
    "mam nadzieję|daj mi znać|ik hoop|umarım|hy vọng|semoga|надеюсь|если у вас|дайте знать|удачи|希望这|希望以|希望对|"
    "希望能|希望這|如果您|如果你|如有|祝你|祝您|お役に立て|ご質問|ご不明|ください。|参考になれば|도움이 되|궁금한|필요하|언제든|"
    "أتمنى|آمل|إذا كان لديك|לעזור|आशा है|यदि आप|अगर आप|หวังว่า|หากคุณ"
)
SIGN_OFFS = (
    "sincerely|best regards|kind regards|warm regards|warmest regards|yours truly|yours faithfully|best wishes|"
    "with gratitude|[your name]|thanks again|looking forward to|cheers,|"
    "atentamente|saludos|cordialement|bien à vous|mit freundlichen grüßen|viele grüße|cordiali saluti|atenciosamente|"
    "с уважением|此致|敬上|敬具|よろしくお願い|감사합니다|مع التحية|fin."
)
CAVEATS = (
    "remember|keep in mind|please note|note that|note:|it is important to|it's important to|disclaimer|"
    "finally,|lastly,|recuerda|ten en cuenta|no olvides|n'oubliez|"
    "il est important|denken sie daran|bitte beachten|beachte|ricorda|lembre-se|помните|обратите внимание|важно |"
    "请注意|需要注意|最后|最後|请记住|注意|また、|なお、|마지막으로|참고|تذكر|يرجى|अंत में|สุดท้าย"
)
ANSWERS = (
    "answer is|answer:|final answer|\\boxed|therefore,|thus,|hence,|correct answer|答案|正解|答えは|정답|la respuesta|"
    "la réponse|die antwort|a resposta|ответ:|الإجابة"
)
GROUPS = {
    "conclusion": CONCLUSIONS,
    "offer": OFFERS,
    "sign_off": SIGN_OFFS,
    "caveat": CAVEATS,
    "answer": ANSWERS,
}
PREAMBLES = (
    "sure|certainly|of course|absolutely|here are|here is|here's|okay|ok,|great|thank|i'd be happy|i'd be glad|"
    "below |the following|yes,|as requested|"
    "claro|por supuesto|aquí|bien sûr|voici|natürlich|gerne|hier sind|hier ist|certo|ecco|com certeza|aqui|oczywiście|"
    "конечно|вот |当然|好的|以下|當然|もちろん|はい|네,|물론|다음은|بالتأكيد|بالطبع|بكل سرور|ज़रूर|แน่นอน"
)
REFUSALS = (
    "i'm sorry|i am sorry|sorry|i apologize|my apologies|i cannot|i can't|i'm unable|i am unable|i'm not able|"
    "i do not|i don't|as an ai|as a language|unfortunately|lo siento|je suis désolé|désolé|es tut mir leid|"
    "entschuldigung|mi dispiace|desculpe|sinto muito|извините|к сожалению|抱歉|对不起|很抱歉|作为一个|申し訳|すみません|죄송|عذر|آسف"
)

_IN_PARAGRAPH = ("conclusion", "offer", "sign_off", "caveat")
COLUMNS = (
    *(f"{group}_in_paragraph" for group in _IN_PARAGRAPH),
    "phrases",  # log of the closing phrases so far
    "since_conclusion",  # log of the characters since the last conclusion, offer or sign-off; NaN without one
    "since_answer",  # log of the characters since an answer was announced; NaN without one
    "preamble",  # it opened with one
    "refusal",  # it opened with one
)
#: Words too common to tell that a phrase may be there.
_COMMON = frozenset(
    ["that", "have", "these", "help", "would", "all", "need", "find", "with", "what", "for", "you", "if"]
)
_NONE_FOUND = (0.0,) * len(_IN_PARAGRAPH)
_MARKS = ",.:;!?"
_CLOSING = ("conclusion", "offer", "sign_off")
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")


def _alternatives(phrases: list[str]) -> str:
    """A pattern for any of ``phrases`` that tests the letters which they begin with in common once."""
    by_letter: dict[str, list[str]] = {}
    for phrase in phrases:
        by_letter.setdefault(phrase[0], []).append(phrase[1:])
    branches = []
    for letter, rests in by_letter.items():
        branches.append(re.escape(letter) + (_alternatives(rests) if all(rests) else ""))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _unspaced_finder() -> re.Pattern[str]:
    """Finds the phrases of the scripts written without spaces."""
    groups = []
    for name, phrases in GROUPS.items():
        chosen = [phrase for phrase in phrases.casefold().split("|") if _UNSPACED.search(phrase)]
        groups.append(f"(?P<{name}>{_alternatives(chosen)})")
    return re.compile("|".join(groups))


def _by_telling_word() -> dict[str, tuple[tuple[str, str], ...]]:
    """The other phrases and their groups, by their longest rare word with each mark that may follow it.

    A text that holds none of these words holds no phrase: most text.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for group, phrases in GROUPS.items():
        for phrase in phrases.casefold().split("|"):
            if _UNSPACED.search(phrase):
                continue
            words = phrase.split()
            telling = max([word for word in words if word not in _COMMON] or words, key=len)
            bare = telling.rstrip(_MARKS)
            for word in {telling, bare, *(bare + mark for mark in _MARKS)}:
                found.setdefault(word, []).append((phrase, group))
    return {word: tuple(phrases) for word, phrases in found.items()}


_TELLING = _by_telling_word()
_TELLING_WORDS = frozenset(_TELLING)
_UNSPACED_PHRASE = _unspaced_finder()
_PREAMBLE = re.compile(_alternatives(PREAMBLES.casefold().split("|")))
_REFUSAL = re.compile(_alternatives(REFUSALS.casefold().split("|")))


def _spaced_phrases(piece: Piece) -> list[tuple[str, int]]:
    """The groups of the phrases in a piece and its context, and where in the text they end, in this order."""
    context = piece.context.casefold()
    folded = context + piece.text.casefold()
    offset = piece.start - len(context)
    found = set()
    for word in _TELLING_WORDS.intersection(piece.words) | _TELLING_WORDS.intersection(context.split()):
        for phrase, group in _TELLING[word]:
            at = folded.rfind(phrase)
            if at >= 0 and not folded[at - 1 : at].isalnum():
                found.add((at + len(phrase) + offset, group))
    return [(group, at) for at, group in sorted(found)]


def _unspaced_phrases(piece: Piece) -> list[tuple[str, int]]:
    """The same for scripts written without spaces."""
    context = piece.context.casefold()
    offset = piece.start - len(context)
    matches = _UNSPACED_PHRASE.finditer(context + piece.text.casefold())
    return [(match.lastgroup or "", match.end() + offset) for match in matches]


class Phrases(NamedTuple):
    """Which phrases the current paragraph holds, and where the last ones end."""

    opened: bool = False
    preamble: bool = False
    refusal: bool = False
    found: frozenset[str] = frozenset()  #: groups with a phrase in the paragraph
    telling: bool = False  #: the piece before, in this line, holds a telling word
    closing: int = 0
    closed_at: int = -1
    answered_at: int = -1

    def read(self, piece: Piece) -> Phrases:
        """After one more piece; itself where there is nothing to find, which is mostly."""
        now = self if self.opened else self._opened(piece.text)
        if now.found and piece.starts_paragraph:
            now = now._replace(found=frozenset())
        telling = not _TELLING_WORDS.isdisjoint(piece.words)
        if telling or now.telling:
            now = now._with(_spaced_phrases(piece), piece)
            carried = telling and not piece.ends_line  # the phrase may end in the next piece
            now = now if now.telling == carried else now._replace(telling=carried)
        if not piece.text.isascii() and _UNSPACED.search(piece.text):
            now = now._with(_unspaced_phrases(piece), piece)
        return now

    def _opened(self, text: str) -> Phrases:
        opening = text.casefold().lstrip(" \n\r\t*#\"“'").replace("’", "'")
        return Phrases(True, _PREAMBLE.match(opening) is not None, _REFUSAL.match(opening) is not None)

    def _with(self, phrases: list[tuple[str, int]], piece: Piece) -> Phrases:
        now = self
        for group, at in phrases:
            if at <= piece.start:
                continue  # it was found in the piece before
            now = now._replace(found=now.found | {group})
            if group in _CLOSING:
                now = now._replace(closing=now.closing + 1, closed_at=at)
            elif group == "answer":
                now = now._replace(answered_at=at)
        return now

    def values(self, at: int) -> tuple[float, ...]:
        """Values of ``COLUMNS`` for a text of ``at`` characters."""
        found = self.found
        return (
            *(_NONE_FOUND if not found else [float(group in found) for group in _IN_PARAGRAPH]),
            log1p(self.closing),
            nan if self.closed_at < 0 else log1p(max(at - self.closed_at, 0)),
            nan if self.answered_at < 0 else log1p(max(at - self.answered_at, 0)),
            float(self.preamble),
            float(self.refusal),
        )
