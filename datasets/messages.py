"""Chat messages in the shapes that logs have: content as one text, or as a list of parts."""

from __future__ import annotations


def text_of(content: object) -> str:
    """The text in a message's ``content``: the content itself, or its text parts joined; images and the like are left
    out."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list | tuple):
        return ""
    return "".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""
