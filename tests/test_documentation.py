"""Documentation is executed: what README.md and docs/*.md show as run, runs.

A fenced ``bash`` or ``python`` block counts when the line before its fence is ``<!-- run -->``. The blocks of one file
run in order in one empty folder, each as a process of its own; the first line that fails is named with its file.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = "<!-- run -->"
INTERPRETERS = {"bash": ["bash", "-euo", "pipefail", "-E"], "python": [sys.executable, "-W", "error"]}
#: Seconds that one block may take.
PATIENCE_S = 300


class Block(NamedTuple):
    """A block to run: ``line`` is the number of its first line of code in its file."""

    language: str
    line: int
    code: str


def blocks_of(text: str) -> list[Block]:
    """The marked blocks, in order; a mark before anything else than such a block is an error."""
    lines = text.splitlines()
    blocks = []
    for at, line in enumerate(lines):
        if line.strip() != MARK:
            continue
        fence = re.fullmatch(r"```(bash|python)", lines[at + 1].rstrip()) if at + 1 < len(lines) else None
        if fence is None:
            raise ValueError(f"line {at + 1}: {MARK} must stand on the line before a bash or python block")
        end = lines.index("```", at + 2)
        blocks.append(Block(fence[1], at + 3, "\n".join(lines[at + 2 : end]) + "\n"))
    return blocks


def run_blocks(name: str, blocks: list[Block], folder: pathlib.Path) -> None:
    """Run all; ``AssertionError`` names the file and line that failed, with what it printed."""
    scripts = folder.parent / f"{folder.name}-scripts"
    scripts.mkdir()
    trap = scripts / "trap"
    trap.write_text("trap 'echo \"line $LINENO\" >&2' ERR\n")
    bin_first = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bin_first, "BASH_ENV": str(trap), "NO_COLOR": "1"}
    for block in blocks:
        script = scripts / f"{block.line}"
        script.write_text("\n" * (block.line - 1) + block.code, encoding="utf-8")  # so that line numbers agree
        command = [*INTERPRETERS[block.language], str(script)]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        if done.returncode:
            line = line_that_failed(block, done.stderr)
            raise AssertionError(f"{name}:{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def line_that_failed(block: Block, stderr: str) -> int:
    """The last line of the block that its interpreter spoke of; else its first."""
    told = [int(number) for number in re.findall(r"\bline (\d+)", stderr)]
    inside = [line for line in told if block.line <= line < block.line + block.code.count("\n")]
    return inside[-1] if inside else block.line


@pytest.mark.slow
@pytest.mark.parametrize("file", [f for f in FILES if f.exists() and MARK in f.read_text()], ids=lambda f: f.name)
def test_what_is_shown_runs(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run_blocks(file.name, blocks_of(file.read_text(encoding="utf-8")), folder)


def test_links_between_documents_lead_somewhere() -> None:
    dead = [
        f"{file.name}: {target}"
        for file in FILES
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", file.read_text(encoding="utf-8"))
        if not (file.parent / target).exists()
    ]
    assert not dead


GOOD = f"""text
{MARK}
```bash
echo seven > number
```
not run:
```bash
false
```
{MARK}
```python
assert open("number").read() == "seven\\n"
```
"""


def test_blocks_run_in_order_in_one_folder(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    blocks = blocks_of(GOOD)
    assert [(block.language, block.line) for block in blocks] == [("bash", 4), ("python", 12)]
    run_blocks("GOOD.md", blocks, folder)
    assert (folder / "number").read_text() == "seven\n"


@pytest.mark.parametrize(
    ("language", "code", "line"),
    [
        ("bash", "true\nfalse\ntrue\n", 12),
        ("bash", "true\nno-such-command\n", 12),
        ("bash", "true\n\nfalse | cat\n", 13),
        ("bash", "f() {\n  false\n}\nf\n", 12),
        ("bash", "echo $undefined\n", 11),
        ("python", "x = 1\n\nassert x == 2\n", 13),
        ("python", "def f():\n    raise ValueError\n\nf()\n", 12),
        ("python", "x = 1\nx = = 2\n", 12),
        ("python", "import warnings\nwarnings.warn('old')\n", 12),
    ],
)
def test_the_line_that_fails_is_named(language: str, code: str, line: int, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(AssertionError, match=rf"^BAD\.md:{line}: exit code"):
        run_blocks("BAD.md", [Block(language, 11, code)], folder)


@pytest.mark.parametrize("text", [MARK, f"{MARK}\n```text\n```\n", f"{MARK}\n\n```bash\n```\n"])
def test_a_mark_without_a_block_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        blocks_of(text)
