"""From text or TOML to a setting's type, and back to TOML for ``--print-config``. Pure; knows no source."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}


def from_text(text: str, kind: Any) -> Any:
    """``text`` (an environment variable, a flag) as ``kind``; ``ValueError`` says what it must be.

    An empty text is "none" where the setting has that, and the empty list for lists, whose parts are separated by commas.
    """
    inner, optional = _unwrapped(kind)
    if optional and text == "":
        return None
    if get_origin(inner) is tuple:
        part = get_args(inner)[0]
        return tuple(_scalar_of_text(each.strip(), part, "a list, separated by commas, each ") for each in _parts(text))
    return _scalar_of_text(text.strip(), inner, "")


def from_toml(value: object, kind: Any, folder: Path) -> Any:
    """A TOML value as ``kind``; a relative path is taken from ``folder``. ``ValueError`` says what it must be."""
    inner, _ = _unwrapped(kind)
    if get_origin(inner) is tuple:
        part = get_args(inner)[0]
        if not isinstance(value, list):
            raise ValueError(f"must be a list, each {_KINDS[part]}")
        return tuple(_scalar_of_toml(each, part, folder, "a list, each ") for each in value)
    return _scalar_of_toml(value, inner, folder, "")


def to_toml(value: object) -> str:
    """A setting's value in TOML's notation; texts as TOML's basic strings, which JSON's are."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case tuple():
            return f"[{', '.join(to_toml(each) for each in value)}]"
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _unwrapped(kind: Any) -> tuple[Any, bool]:
    """``X | None`` as (X, true), any other as it is."""
    if isinstance(kind, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return inner, True
    return kind, False


def _parts(text: str) -> list[str]:
    return text.split(",") if text.strip() else []


def _scalar_of_text(text: str, kind: Any, what: str) -> Any:
    if kind is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise ValueError(f"must be {what}{_KINDS[bool]}")
    if kind in (Path, str) and not text:
        raise ValueError(f"must be {what}{_KINDS[kind]} that is not empty")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"must be {what}{_KINDS[kind]}") from None


def _scalar_of_toml(value: object, kind: Any, folder: Path, what: str) -> Any:
    if value == "":
        raise ValueError(f"must be {what}{_KINDS[kind]} that is not empty")
    if kind is Path and isinstance(value, str):
        return folder / value
    if kind is float and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if type(value) is kind:
        return value
    raise ValueError(f"must be {what}{_KINDS[kind]}")
