"""The help texts are pinned: ``python tests/test_cli_help.py > tests/data/cli_help.txt`` writes them anew."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from endcast.cli import COMMANDS, main

ROOT = pathlib.Path(__file__).resolve().parents[1]
PINNED = ROOT / "tests" / "data" / "cli_help.txt"


def command_paths() -> Iterator[tuple[str, ...]]:
    """Every command: the whole, each sub-command, and those inside a group."""
    yield ()
    for lazy in COMMANDS:
        yield (lazy.name,)
        yield from ((lazy.name, name) for name in getattr(lazy.load(), "commands", {}))


def print_all() -> None:
    for path in command_paths():
        print("$", "endcast", *path, "--help", flush=True)
        try:
            main([*path, "--help"])
        except SystemExit as done:
            assert not done.code, done.code


def test_help_is_pinned() -> None:
    typer = importlib.metadata.version("typer")
    if f"typer=={typer}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip(f"typer {typer} lays help out in its own way")
    decided_by_ci = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS", "TERMINAL_WIDTH")
    environment = {name: value for name, value in os.environ.items() if name not in decided_by_ci}
    environment |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    hint = "if the change is meant: COLUMNS=100 python tests/test_cli_help.py > tests/data/cli_help.txt"
    assert done.stdout == PINNED.read_text(encoding="utf-8"), hint


if __name__ == "__main__":
    print_all()
