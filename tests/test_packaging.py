"""The wheel and the source distribution hold everything that git holds of the package, and nothing beside it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("predictors", "router", "training", "datasets", "serving")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of what git knows, links kept: a fresh clone with the working tree's changes."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("no git checkout")
    copy = tmp_path_factory.mktemp("source")
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def build(source: pathlib.Path, kind: str, out: pathlib.Path) -> pathlib.Path:
    """Build through the PEP 517 hooks, as pip does."""
    out.mkdir(exist_ok=True)
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


def in_wheel(wheel: pathlib.Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def expected(source: pathlib.Path) -> set[str]:
    """Every file below src/endcast, through its links, by its path in the wheel."""
    package = source / "src" / "endcast"
    files = {f"endcast/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    for folder in FOLDERS:  # rglob does not follow links
        files |= {f"endcast/{path.relative_to(source)}" for path in (source / folder).rglob("*") if path.is_file()}
    return {name for name in files if "__pycache__" not in name and not name.endswith(".md")}


def test_the_wheel_is_complete_and_clean(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    names = in_wheel(build(source, "wheel", tmp_path / "wheel"))
    assert names == expected(source)
    assert {f"endcast/{folder}/py.typed" for folder in FOLDERS} <= names
    assert {name.split("/")[0] for name in names} == {"endcast"}, "a bare `datasets` would overwrite Hugging Face's"


def test_a_wheel_built_from_the_source_distribution_is_the_same(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    archive = build(source, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert in_wheel(build(unpacked, "wheel", tmp_path / "wheel")) == expected(source)


def test_the_licence_and_the_command_are_declared(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(build(source, "wheel", tmp_path / "wheel")) as wheel:
        info = {name.split(".dist-info/")[1]: name for name in wheel.namelist() if ".dist-info/" in name}
        assert b"endcast = endcast.cli:main" in wheel.read(info["entry_points.txt"])
        metadata = wheel.read(info["METADATA"]).decode()
    assert "License-Expression: Apache-2.0" in metadata and "licenses/LICENSE" in info
    plain = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert plain and not any(name in line for line in plain for name in ("torch", "lightgbm", "scikit-learn", "onnx>"))
