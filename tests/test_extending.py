"""``docs/extending.md`` is true: its examples, put where it says, go through the conformance suites."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = r"^`([\w./]+)`, {kind}:\n\n```(?:python|text)\n(.*?)^```$"
NEW_FILES = dict(re.findall(BLOCK.format(kind="a new file"), PAGE, re.MULTILINE | re.DOTALL))
NEW_LINES = dict(re.findall(BLOCK.format(kind="one line more"), PAGE, re.MULTILINE | re.DOTALL))
#: The line after which a line more goes: the last of its kind.
LAST_ENTRY = {"__init__.py": r"^        \(\"\w+\", .*\),\n", "test_formats_conformance.py": r"^GOLDEN: .*\n"}


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the source with all three examples."""
    copy = tmp_path_factory.mktemp("extended")
    without = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
    for folder in ("src", "predictors", "training", "datasets", "router", "serving", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name, text in NEW_FILES.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text, encoding="utf-8")
    for name, line in NEW_LINES.items():
        text = (copy / name).read_text(encoding="utf-8")
        *_, last = re.finditer(LAST_ENTRY[pathlib.Path(name).name], text, re.MULTILINE)
        (copy / name).write_text(text[: last.end()] + line + text[last.end() :], encoding="utf-8")
    return copy


def run(folder: pathlib.Path, *command: str) -> str:
    """Output of ``python -m command`` in the copy, which is imported instead of the original."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_three_examples() -> None:
    folders = sorted(str(pathlib.Path(name).parent) for name in NEW_FILES)
    assert folders == ["datasets/formats", "predictors/features", "predictors/models"]
    assert len(NEW_LINES) == 4


@pytest.mark.parametrize(
    ("name", "suites"),
    [
        ("prompt_slope", ["test_model_conformance", "test_graph_parity", "test_uncorrelated_lengths"]),
        ("asked", ["test_feature_conformance"]),
        ("gateway", ["test_formats_conformance"]),
    ],
)
def test_an_example_goes_through_its_suites(extended: pathlib.Path, name: str, suites: list[str]) -> None:
    files = [str(path) for suite in suites for path in (extended / "tests").rglob(f"{suite}.py")]
    assert len(files) == len(suites)
    told = run(extended, "pytest", "-q", "-p", "no:cacheprovider", "-k", name, *files)
    passed = re.search(r"(\d+) passed", told)
    assert passed and int(passed[1]) >= 10 and "skipped" not in told


def test_examples_keep_the_style_and_the_imports_apart(extended: pathlib.Path) -> None:
    run(extended, "ruff", "check", "--no-cache", *NEW_FILES)
    run(extended, "ruff", "format", "--no-cache", "--check", *NEW_FILES)
    code = (
        "import sys, endcast.predictors.models as m, endcast.predictors.features, endcast.datasets.formats; "
        f"assert m.__file__.startswith({str(extended / 'src')!r}), m.__file__; assert 'prompt_slope' in m.MODELS; "
        "assert not {'onnx', 'lightgbm', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(extended / "src")}, check=True)


def test_the_example_format_is_detected_and_trained_on(extended: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """All three together, on the command line: a log of the new format trains the new model on the new group."""
    lines = [
        f'{{"t": {i * 9.5}, "in": {100 + i * 37 % 900}, "out": {20 + (i * 37 % 900) // 9}, "why": "eos", "who": "a"}}'
        for i in range(300)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    told = run(
        extended, "endcast", "train", str(tmp_path / "log.jsonl"), "--model", "prompt_slope", "--json",
        "--out", str(tmp_path / "bundle"),
    )  # fmt: skip
    assert '"model": "prompt_slope"' in told or '"model":"prompt_slope"' in told
    slope = float(re.search(r'"slope":\s*(-?[\d.e-]+)', told.split('"card"')[1])[1])  # type: ignore[index]
    assert slope < -0.3  # longer prompts, longer answers
