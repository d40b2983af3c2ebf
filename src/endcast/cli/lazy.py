"""Sub-commands that are imported when they are called, so that ``endcast --help`` imports none."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class LazyCommand(NamedTuple):
    """A sub-command: its name, ``"module:object"``, and the line that ``endcast --help`` shows."""

    name: str
    target: str
    summary: str

    def load(self) -> TyperCommand | TyperGroup:
        """Import the target: a ``typer.Typer`` stays a group, a function becomes one command."""
        module, _, attribute = self.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        settings = {"help_option_names": ["-h", "--help"]}
        if isinstance(target, typer.Typer):
            group = typer.main.get_group(target)
            group.context_settings.update(settings)
            group.name = self.name
            return group
        app = typer.Typer(add_completion=False, context_settings=settings)
        app.command(self.name)(target)
        command: Any = typer.main.get_command(app)
        command.context_settings.update(settings)
        loaded: TyperCommand = command
        return loaded


def lazy_group(commands: Sequence[LazyCommand]) -> type[TyperGroup]:
    """A click group of ``commands``: it lists placeholders, and imports the one that is called."""
    table = {command.name: command for command in commands}
    if len(table) != len(commands):
        raise ValueError("a sub-command is registered twice")

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands.update({c.name: TyperCommand(c.name, help=c.summary) for c in commands})

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, found, rest = super().resolve_command(ctx, args)
            return name, table[name].load() if name in table else found, rest

    return LazyGroup
