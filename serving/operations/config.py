"""Settings from a file, the environment and flags: a flag wins over the environment, that over the file, that over defaults.

One name everywhere: ``max_requests`` in the TOML file, ``ENDCAST_MAX_REQUESTS`` in the environment, ``--set
max_requests=…`` as a flag. Where a value came from is kept, so that an error and ``--print-config`` can say it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from endcast.errors import EndcastError, InputError
from endcast.serving.operations.config_values import from_text, from_toml, to_toml
from endcast.serving.operations.settings import DECLARED, TYPES, Settings
from endcast.types import shown

PREFIX = "ENDCAST_"
#: Names the file, where no flag does.
FILE_VARIABLE = "ENDCAST_CONFIG"
DEFAULT = "default"
MASKED = "(secret)"
#: What Kubernetes puts into the environment of every pod beside a Service named endcast.
_SERVICE_LINK = re.compile(r"ENDCAST_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://.*")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A setting's value and where it came from, in words."""

    value: Any
    source: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """Checked settings, and the source of each by name."""

    settings: Settings
    sources: Mapping[str, str]


def load_config(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Value] | None = None,
) -> Config:
    """All settings; ``EndcastError`` names the file and line, the variable or the flag that is wrong.

    ``file`` wins over the one that ``ENDCAST_CONFIG`` names. ``flags`` hold what was given on the command line, typed.
    """
    variables = dict(environment or {})
    named = variables.pop(FILE_VARIABLE, "")
    path = file if file is not None else Path(named) if named else None
    given = {
        **(_of_file(path) if path is not None else {}),
        **dict(_of_environment(variables)),
        **(flags or {}),
    }
    try:
        settings = Settings(**{name: each.value for name, each in given.items()})
    except InputError as error:
        source = given[error.field].source if error.field in given else error.field
        raise InputError(source, error.message.removeprefix(f"{error.field}: "), hint=error.hint) from None
    sources = {name: given[name].source if name in given else DEFAULT for name in DECLARED}
    return Config(settings=settings, sources=MappingProxyType(sources))


def of_assignments(assignments: Sequence[str]) -> dict[str, Value]:
    """What ``--set NAME=VALUE`` gave; the last of a name counts."""
    out = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError("--set", f"must be NAME=VALUE, not {shown(assignment)}")
        _check_known(name, f"--set {name:.60}", tuple(DECLARED))
        out[name] = Value(value=_parsed(name, text, f"--set {name}"), source=f"--set {name}")
    return out


def printed(config: Config) -> str:
    """The settings as a TOML file that gives them again, secrets masked, with each one's source beside it."""
    lines = []
    for name, declared in DECLARED.items():
        value = getattr(config.settings, name)
        if value is None:
            assignment = f"# {name} is not set"
        else:
            assignment = f"{name} = {to_toml(_masked(value) if declared.secret else value)}"
        lines.append(f"{assignment:<44}  # {config.sources[name]}: {declared.about}")
    return "\n".join(lines) + "\n"


def printed_json(config: Config) -> dict[str, dict[str, Any]]:
    """The same for machines: value and source by name."""
    out = {}
    for name, declared in DECLARED.items():
        value = getattr(config.settings, name)
        plain = str(value) if isinstance(value, Path) else value
        out[name] = {"value": _masked(value) if declared.secret else plain, "source": config.sources[name]}
    return out


def _masked(value: Any) -> Any:
    return tuple(MASKED for _ in value) if isinstance(value, tuple) else MASKED


def _of_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Value]]:
    known = tuple(f"{PREFIX}{name.upper()}" for name in DECLARED)
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or _is_service_link(variable, text, known):
            continue
        _check_known(variable, variable, (*known, FILE_VARIABLE))
        name = variable.removeprefix(PREFIX).lower()
        yield name, Value(value=_parsed(name, text, variable), source=variable)


def _is_service_link(variable: str, text: str, known: Sequence[str]) -> bool:
    """``ENDCAST_PORT=tcp://10.0.0.1:80`` is no port of ours, and ``ENDCAST_SERVICE_HOST`` is not meant for us."""
    looks_so = _SERVICE_LINK.fullmatch(variable) is not None
    return looks_so and (variable not in known or _LINK_VALUE.fullmatch(text) is not None)


def _parsed(name: str, text: str, source: str) -> Any:
    try:
        return from_text(text, TYPES[name])
    except ValueError as error:
        told = "" if DECLARED[name].secret else f", not {shown(text)}"
        raise InputError(source, f"{error}{told}") from None


def _of_file(path: Path) -> dict[str, Value]:
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EndcastError(f"{path} is no TOML: {error}") from None
    out = {}
    for name, value in document.items():
        where = f"{path} line {_line_of(name, text)}, {name:.60}"
        _check_known(name, where, tuple(DECLARED))
        try:
            out[name] = Value(value=from_toml(value, TYPES[name], path.parent), source=where)
        except ValueError as error:
            told = "" if DECLARED[name].secret else f", not {shown(value)}"
            raise InputError(where, f"{error}{told}") from None
    return out


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise EndcastError(f"cannot read the settings in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EndcastError(f"cannot read the settings in {path}: it is no UTF-8") from None


def _line_of(name: str, text: str) -> int:
    """The line (from 1) on which a key or table of that name first stands, else 1."""
    key = rf"[\"']?{re.escape(name)}[\"']?"
    found = re.search(rf"^[ \t]*(\[+[ \t]*)?{key}[ \t]*[=.\]]", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _check_known(name: str, source: str, known: Sequence[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else "endcast serve --print-config BUNDLE lists the settings"
    raise InputError(source, "is no setting of the service", hint=hint)
