"""Tags: HTML and XML depth, thinking sections, tool calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log1p, nan

from endcast.predictors.text.pieces import Piece
from endcast.predictors.text.state import State

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
    rf"(?=[<\[{{◁])(?:(?P<think>{_any_of(THINKING_BEGINS)})|(?P<answer>{_any_of(THINKING_ENDS)})"
    f"|(?P<call>{_any_of(TOOL_BEGINS)})|(?P<called>{_any_of(TOOL_ENDS)}))"
)
_TAG = re.compile(r"<(?P<closes>/?)(?P<name>[A-Za-z][\w.:-]{0,30})[\s/>]|(?P<empty>/>)")


def has_markers(text: str) -> bool:
    """Whether there can be a tag or marker in ``text``: a cheap test that most text fails."""
    return "<" in text or ">" in text or "{" in text or "[" in text or "◁" in text


@dataclass(slots=True)
class Tags(State):
    """Depth of HTML and XML elements."""

    depth: int = 0
    closed: int = 0
    root: str = ""
    last_closed: str = ""

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
            log1p(self.depth),
            log1p(self.closed),
            float(self.root != "" and self.root == self.last_closed),
        )


@dataclass(slots=True)
class Sections(State):
    """Thinking sections and tool calls. The text before a closing tag that nothing opened was thinking."""

    characters: int = 0
    thinking: bool = False
    thoughts: int = 0  #: complete thinking sections
    thinking_from: int = 0
    thought: int = 0
    answer_from: int = 0
    tool: bool = False
    tools: int = 0
    tool_at: int = -1

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
            log1p(self.thoughts),
            log1p(self.thought + (since - self.thinking_from if self.thinking else 0)),
            log1p(since - self.answer_from) if self.thoughts and not self.thinking else nan,
            float(self.tool),
            log1p(self.tools),
            nan if self.tool_at < 0 else log1p(since - self.tool_at),
        )
