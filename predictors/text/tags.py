"""Tags: HTML and XML depth, thinking sections, tool calls."""

from __future__ import annotations

import re
from math import log1p, nan
from typing import NamedTuple

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
TAG_COLUMNS = (
    "tag_depth",  # log
    "tags_closed",  # log
    "root_closed",  # the tag that closed last is the one that opened first
)
SECTION_COLUMNS = (
    "thinking_open",
    "thinking_closed",  # log of how often
    "thinking_length",  # log of the characters in the thinking sections
    "answer_length",  # log of the characters since the last one closed; NaN without one, or inside one
    "tool_open",
    "tools_closed",  # log
    "since_tool",  # log of the characters since a tool call last began or ended; NaN without one
)


COLUMNS = (*TAG_COLUMNS, *SECTION_COLUMNS)


def _any_of(markers: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, markers))


_MARKER = re.compile(
    rf"(?=[<\[{{◁])(?:(?P<think>{_any_of(THINKING_BEGINS)})|(?P<answer>{_any_of(THINKING_ENDS)})"
    f"|(?P<call>{_any_of(TOOL_BEGINS)})|(?P<called>{_any_of(TOOL_ENDS)}))"
)
_TAG = re.compile(r"<(?P<closes>/?)(?P<name>[A-Za-z][\w.:-]{0,30})[\s/>]|(?P<empty>/>)")


def has_markers(text: str) -> bool:
    """Whether there can be a tag or marker in ``text``: a cheap test that most text fails."""
    return "<" in text or ">" in text or "{" in text or "[" in text or "◁" in text


class Tags(NamedTuple):
    """Depth of HTML and XML elements."""

    depth: int = 0
    closed: int = 0
    root: str = ""
    last_closed: str = ""

    def read(self, piece: Piece) -> Tags:
        """After one more piece; itself where there is no tag."""
        if "<" not in piece.text and ">" not in piece.text:
            return self
        now = self
        for match in _TAG.finditer(piece.context + piece.text):
            if match.end() > len(piece.context):
                now = now._after(match["name"] or "", bool(match["closes"] or match["empty"]))
        return now

    def _after(self, name: str, closes: bool) -> Tags:
        if name.lower() in _VOID:
            return self
        if not closes:
            return self._replace(depth=self.depth + 1, root=self.root or name)
        if not self.depth:
            return self
        return self._replace(depth=self.depth - 1, closed=self.closed + 1, last_closed=name or self.last_closed)

    def values(self) -> tuple[float, ...]:
        """Values of ``TAG_COLUMNS``."""
        return (log1p(self.depth), log1p(self.closed), float(self.root != "" and self.root == self.last_closed))


class Sections(NamedTuple):
    """Thinking sections and tool calls. The text before a closing tag that nothing opened was thinking."""

    thinking: bool = False
    thinking_from: int = 0
    thoughts: int = 0  #: complete thinking sections
    thought: int = 0  #: characters in them
    answer_from: int = 0
    tool: bool = False
    tools: int = 0  #: complete tool calls
    tool_at: int = -1

    def read(self, text: str, context: str, start: int) -> tuple[Sections, int]:
        """After a piece at ``start``, and the index in ``text`` after the last thinking section that closed, or 0."""
        if not has_markers(text):
            return self, 0
        now, answer = self, 0
        for match in _MARKER.finditer(context + text):
            end = match.end() - len(context)
            if end > 0:
                now = now._after(match.lastgroup or "", start + end)
                answer = end if match.lastgroup == "answer" else answer
        return now, answer

    def _after(self, marker: str, at: int) -> Sections:
        if marker == "think":
            return self if self.thinking else self._replace(thinking=True, thinking_from=at)
        if marker == "answer":
            thought = at - (self.thinking_from if self.thinking else self.answer_from)
            total = self.thought + thought
            return self._replace(thinking=False, thoughts=self.thoughts + 1, thought=total, answer_from=at)
        complete = marker == "called" and self.tool
        return self._replace(tool=marker == "call", tools=self.tools + complete, tool_at=at)

    def values(self, at: int) -> tuple[float, ...]:
        """Values of ``SECTION_COLUMNS`` for a text of ``at`` characters."""
        return (
            float(self.thinking),
            log1p(self.thoughts),
            log1p(self.thought + (at - self.thinking_from if self.thinking else 0)),
            log1p(at - self.answer_from) if self.thoughts and not self.thinking else nan,
            float(self.tool),
            log1p(self.tools),
            nan if self.tool_at < 0 else log1p(at - self.tool_at),
        )
