"""Tags: HTML and XML depth, thinking sections, tool calls."""

from __future__ import annotations

import re
from math import log1p, nan

from endcast.predictors.text.pieces import Piece

#: What begins and ends a thinking section, as reasoning models and their chat templates write it.
THINKING_BEGINS = (
    "<think>", "<thinking>", "<thought>", "<reasoning>", "<reflection>", "<scratchpad>", "<analysis>", "<seed:think>",
    "<|channel|>analysis", "<|begin_of_thought|>", "<|START_THINKING|>", "[THINK]", "◁think▷",
)  # fmt: skip
THINKING_ENDS = (
    "</think>", "</thinking>", "</thought>", "</reasoning>", "</reflection>", "</scratchpad>", "</analysis>",
    "</seed:think>", "<|channel|>final", "<|end_of_thought|>", "<|END_THINKING|>", "[/THINK]", "◁/think▷",
)  # fmt: skip
#: The same for tool calls; the first JSON object of a text or line with a name is one too.
TOOL_BEGINS = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<function=", "<invoke ", "[TOOL_CALLS]",
    "<|python_tag|>", "<|tool_call|>", "<|tool_calls_section_begin|>", "<|action_start|>", "<|START_ACTION|>",
    "<｜tool▁calls▁begin｜>", "<|channel|>commentary to=", '{"name":', '{"name" :', '{"function":', '{"tool_calls":',
)  # fmt: skip
TOOL_ENDS = (
    "</tool_call>", "</tool_calls>", "</function_call>", "</function_calls>", "</function>", "</invoke>",
    "<|/tool_call|>", "<|tool_calls_section_end|>", "<|action_end|>", "<|END_ACTION|>", "<｜tool▁calls▁end｜>",
    "<|call|>",
)  # fmt: skip
#: HTML elements that have no closing tag.
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)
#: No deeper nesting, and no more tool calls, are told apart.
MOST_DEEP = 50

COLUMNS = (
    "tag_depth",
    "tags_closed",  # log
    "root_closed",  # the tag that closed last is the one that opened first
    "thinking_open",
    "thinking_closed",
    "thinking_length",  # log of the characters in the thinking sections
    "answer_length",  # log of the characters since the last one closed; NaN without one, or inside one
    "tool_open",
    "tools_closed",
    "since_tool",  # log of the characters since a tool call last began or ended; NaN without one
)


def _any_of(markers: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, markers))


_MARKER = re.compile(
    f"(?P<think>{_any_of(THINKING_BEGINS)})|(?P<answer>{_any_of(THINKING_ENDS)})"
    f"|(?P<call>{_any_of(TOOL_BEGINS)})|(?P<called>{_any_of(TOOL_ENDS)})"
)
_TAG = re.compile(r"<(?P<closes>/?)(?P<name>[A-Za-z][\w.:-]{0,30})[\s/>]|(?P<empty>/>)")


def has_markers(text: str) -> bool:
    """Whether there can be a tag or marker in ``text``: a cheap test that most text fails."""
    return "<" in text or ">" in text or "{" in text or "[" in text or "◁" in text


class Tags:
    """Depth of HTML and XML elements."""

    def __init__(self) -> None:
        self.depth = 0
        self.closed = 0
        self.root = ""
        self.last_closed = ""

    def copy(self) -> Tags:
        other = Tags.__new__(Tags)
        other.__dict__.update(self.__dict__)
        return other

    def read(self, piece: Piece) -> None:
        if "<" not in piece.text and ">" not in piece.text:
            return
        for match in _TAG.finditer(piece.context + piece.text):
            if match.end() > len(piece.context):
                self._read_tag(match["name"] or "", bool(match["closes"] or match["empty"]))

    def _read_tag(self, name: str, closes: bool) -> None:
        if name.lower() in _VOID:
            return
        if not closes:
            self.root = self.root or name
            self.depth += 1
        elif self.depth:
            self.depth -= 1
            self.closed += 1
            self.last_closed = name or self.last_closed

    def values(self) -> tuple[float, ...]:
        return (
            min(self.depth, MOST_DEEP),
            log1p(self.closed),
            float(self.root != "" and self.root == self.last_closed),
        )


class Sections:
    """Thinking sections and tool calls. The text before a closing tag that nothing opened was thinking."""

    def __init__(self) -> None:
        self.characters = 0
        self.thinking = False
        self.thoughts = 0  #: complete thinking sections
        self.thinking_from = 0
        self.thought = 0
        self.answer_from = 0
        self.tool = False
        self.tools = 0
        self.tool_at = -1

    def copy(self) -> Sections:
        other = Sections.__new__(Sections)
        other.__dict__.update(self.__dict__)
        return other

    def read(self, text: str, context: str) -> int:
        """Read a piece; the index in ``text`` after the last thinking section that closed in it, or 0."""
        start = self.characters
        self.characters += len(text)
        if not has_markers(text):
            return 0
        answer = 0
        for match in _MARKER.finditer(context + text):
            end = match.end() - len(context)
            if end > 0:
                self._read_marker(match.lastgroup or "", start + end)
                answer = end if match.lastgroup == "answer" else answer
        return answer

    def _read_marker(self, group: str, at: int) -> None:
        if group == "think" and not self.thinking:
            self.thinking, self.thinking_from = True, at
        elif group == "answer":
            self.thought += at - (self.thinking_from if self.thinking else self.answer_from)
            self.thinking, self.answer_from = False, at
            self.thoughts += 1
        elif group in ("call", "called"):
            self.tools += group == "called" and self.tool
            self.tool = group == "call"
            self.tool_at = at

    def values(self) -> tuple[float, ...]:
        since = self.characters
        return (
            float(self.thinking),
            min(self.thoughts, MOST_DEEP),
            log1p(self.thought + (since - self.thinking_from if self.thinking else 0)),
            log1p(since - self.answer_from) if self.thoughts and not self.thinking else nan,
            float(self.tool),
            min(self.tools, MOST_DEEP),
            nan if self.tool_at < 0 else log1p(since - self.tool_at),
        )
