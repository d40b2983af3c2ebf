"""Guards for the layout: real folders at the root, one import name, and nothing loaded that is not needed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys
import tomllib

import grimp
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("predictors", "router", "training", "datasets", "serving")
TRAINING_LIBRARIES = ("torch", "lightgbm", "sklearn", "onnx", "transformers", "torch_npu")


def tracked() -> dict[str, str]:
    """What git holds: mode by path. Outside a checkout there is nothing to guard."""
    listing = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("no git checkout")
    return {path: meta.split()[0] for meta, path in (line.split("\t", 1) for line in listing.stdout.splitlines())}


def run_python(code: str, *, cwd: pathlib.Path = ROOT) -> str:
    """Standard output of a fresh interpreter, as a user would start one."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", FOLDERS)
def test_each_folder_is_linked(name: str) -> None:
    link = ROOT / "src" / "endcast" / name
    assert link.is_symlink() and link.readlink() == pathlib.Path("../..") / name
    assert tracked()[f"src/endcast/{name}"] == "120000", "the link has to be committed as a link"
    assert (ROOT / name / "py.typed").exists()


@pytest.mark.parametrize("name", FOLDERS)
def test_no_folder_is_a_package_of_its_own(name: str) -> None:
    """With an __init__.py, ``python -m`` from the root would take ./datasets for Hugging Face's."""
    assert not (ROOT / name / "__init__.py").exists()


def test_no_foreign_links_are_committed() -> None:
    links = {path for path, mode in tracked().items() if mode == "120000"}
    assert links == {f"src/endcast/{name}" for name in FOLDERS}


def test_only_one_top_level_name_is_installed() -> None:
    names = importlib.metadata.packages_distributions()
    ours = {name for name, owners in names.items() if "endcast" in owners and not name.startswith("__editable__")}
    assert ours <= {"endcast"}


def test_no_file_is_loaded_twice() -> None:
    """Every module of ours that any test loaded goes by its name under endcast."""
    twice = [
        (name, file)
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and any(pathlib.Path(file).resolve().is_relative_to(ROOT / folder) for folder in FOLDERS)
        and not name.startswith("endcast.")
    ]
    assert not twice


def test_the_root_does_not_shadow_hugging_face_datasets(tmp_path: pathlib.Path) -> None:
    """A regular package wins over our folder, even where the root comes first on the path."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("NAME = 'the other one'\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import datasets; print(datasets.NAME)"
    assert run_python(code) == "the other one"


@pytest.mark.parametrize("name", FOLDERS)
def test_import_linter_sees_the_folder(name: str) -> None:
    """It passes over folders without an __init__.py silently, and would then hold contracts about nothing."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    graph = grimp.build_graph(*settings["root_packages"], include_external_packages=True, cache_dir=None)
    files = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / name).rglob("*.py")}
    modules = {"endcast." + ".".join(file.parts).removesuffix(".__init__") for file in files}
    assert modules and modules <= graph.modules


def loaded_by(imports: str) -> set[str]:
    """Names of all modules that are loaded after ``imports``."""
    return set(run_python(f"{imports}\nimport sys\nprint('\\n'.join(sys.modules))").splitlines())


@pytest.mark.parametrize("package", ["serving", "router", "datasets"])
def test_no_training_library_is_loaded(package: str) -> None:
    modules = sorted(
        f"endcast.{package}." + ".".join(path.relative_to(ROOT / package).with_suffix("").parts)
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    )
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert not loaded & set(TRAINING_LIBRARIES)
    assert not any(name.startswith("endcast.training") for name in loaded)


@pytest.mark.parametrize("command", ["forecast", "serve", "trace"])
def test_no_command_loads_a_training_library_for_nothing(command: str) -> None:
    code = (
        "from endcast.cli import COMMANDS\n"
        f"[c.load() for c in COMMANDS if c.name == {command!r}]\n"
    )  # fmt: skip
    assert not loaded_by(code) & set(TRAINING_LIBRARIES)


def test_the_command_line_loads_no_command_for_its_help() -> None:
    code = "from endcast.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    loaded = loaded_by(code)
    assert not loaded & {*TRAINING_LIBRARIES, "onnxruntime", "matplotlib", "fastapi", "pyarrow", "numba", "uvicorn"}
    assert not any(name.startswith(tuple(f"endcast.{folder}." for folder in FOLDERS)) for name in loaded)


def test_importing_endcast_is_quick() -> None:
    loaded = loaded_by("import endcast")
    heavy = {"onnxruntime", "matplotlib", "pyarrow", "numba", "fastapi", "uvicorn", "rich", "typer", "jinja2"}
    assert not loaded & {*TRAINING_LIBRARIES, *heavy}
