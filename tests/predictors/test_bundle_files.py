"""Bundles on disk: whatever is damaged, foreign or made to harm is refused, and nothing is left half-written."""

from __future__ import annotations

import io
import json
import os
import pickle  # noqa: TID251 (to show that none is read)
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import endcast
from endcast import BundleError, EndcastError
from endcast.predictors import bundle as bundle_module
from endcast.predictors.bundle import (
    FILES,
    MANIFEST,
    MANIFEST_DIGEST,
    Manifest,
    array_bytes,
    digest,
    read_bundle,
    write_bundle,
)
from endcast.predictors.onnx_forecaster import load_forecaster
from endcast.training.train import Trained

SOME = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Edit = Callable[[bytes], bytes]


@pytest.fixture
def folder(boosted: Trained, tmp_path: Path) -> Path:
    """A copy of the default family's bundle, to be damaged."""
    return Path(shutil.copytree(boosted.path, tmp_path / "bundle"))


def contents_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def rewrite(folder: Path, name: str, edit: Edit) -> None:
    """Change a file and make all digests fit again, as someone who means harm would."""
    (folder / name).write_bytes(edit((folder / name).read_bytes()))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {file: digest((folder / file).read_bytes()) for file in FILES}
    text = json.dumps(manifest).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_DIGEST).write_text(f"{digest(text)}\n")


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    manifest = {**json.loads((folder / MANIFEST).read_bytes()), **changes}
    (folder / MANIFEST).write_bytes(json.dumps(manifest).encode())
    rewrite(folder, "model.onnx", lambda data: data)


def with_array(edit: Callable[[np.ndarray], np.ndarray]) -> Edit:
    return lambda data: array_bytes(edit(np.load(io.BytesIO(data))))


def test_what_was_written_is_read(boosted: Trained, folder: Path) -> None:
    bundle = read_bundle(folder)
    assert bundle.id == boosted.id == digest((folder / MANIFEST).read_bytes())
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, MANIFEST, MANIFEST_DIGEST])
    assert bundle.manifest.files == {name: digest(data) for name, data in contents_of(folder).items()}
    assert not any(data[:1] == b"\x80" for data in contents_of(folder).values())  # no pickle


def test_the_same_contents_have_the_same_id(boosted: Trained, folder: Path, tmp_path: Path) -> None:
    manifest, contents = read_bundle(folder).manifest, contents_of(folder)
    backwards = dict(reversed(contents.items()))
    assert write_bundle(tmp_path / "again", manifest, backwards) == boosted.id
    other = msgspec.structs.replace(manifest, abort_hazard=manifest.abort_hazard * 2)
    assert write_bundle(tmp_path / "other", other, contents) != boosted.id


@SOME
@given(data=st.data())
@pytest.mark.parametrize("name", [*FILES, MANIFEST, MANIFEST_DIGEST])
def test_one_byte_changed_is_refused_and_the_file_named(folder: Path, name: str, data: st.DataObject) -> None:
    whole = (folder / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    try:
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
        with pytest.raises(BundleError) as refused:
            load_forecaster(folder)
        assert name in str(refused.value) or "bundle schema" in str(refused.value)
    finally:
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize("name", [*FILES, MANIFEST, MANIFEST_DIGEST])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "long", "folder"])
def test_a_file_that_is_not_whole_is_refused_and_named(folder: Path, name: str, damage: str) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage == "folder":
        (folder / name).mkdir()
    elif damage != "missing":
        (folder / name).write_bytes({"empty": b"", "short": whole[:-1], "long": whole + b"\n"}[damage])
    with pytest.raises(BundleError, match=name):
        load_forecaster(folder)


@SOME
@given(text=st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")))
def test_a_garbage_manifest_is_refused(folder: Path, text: bytes) -> None:
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_DIGEST).write_text(f"{digest(text)}\n")
    with pytest.raises(BundleError):
        load_forecaster(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"schema_version": 1}',
        b'{"schema_version": "1"}',
        b'{"schema_version": 1, "model": 5}',
        b'{"schema_version": 1e400}',
        b'{"a": ' + b"[" * 200_000,
        b'{"schema_version": 1, "model": "\xff"}',
    ],
)
def test_a_manifest_of_another_shape_is_refused(folder: Path, text: bytes) -> None:
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_DIGEST).write_text(f"{digest(text)}\n")
    with pytest.raises(BundleError, match=r"manifest\.json|bundle schema"):
        load_forecaster(folder)


@pytest.mark.parametrize("version", [0, 1, 99, None, "2"])
def test_a_schema_of_another_time_is_refused(folder: Path, version: object) -> None:
    rewrite_manifest(folder, schema_version=version)
    with pytest.raises(BundleError, match=rf"bundle schema {version!r} is unknown to this endcast.*Upgrade endcast"):
        load_forecaster(folder)


def test_a_manifest_that_lists_too_little_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["files"]["base.npy"]
    text = json.dumps(manifest).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / MANIFEST_DIGEST).write_text(f"{digest(text)}\n")
    with pytest.raises(BundleError, match=r"lists no base\.npy"):
        read_bundle(folder)


HARM: list[tuple[str, Edit, str]] = [
    ("golden_hazards.npy", with_array(lambda a: a + np.float32(2e-5)), "off its golden output"),
    ("golden_hazards.npy", with_array(lambda a: a[:-1]), "another shape than its golden output"),
    ("golden_hazards.npy", with_array(lambda a: a * np.nan), "golden_hazards.npy holds numbers that are not finite"),
    ("golden_features.npy", with_array(lambda a: a[:, 1:]), "other feature columns"),
    ("golden_features.npy", with_array(lambda a: a.astype(np.float64)), "other feature columns"),
    ("golden_features.npy", with_array(lambda a: a * 0 + 1), "off its golden output"),
    ("model.onnx", lambda data: b"", "graph"),
    ("model.onnx", lambda data: data[: len(data) // 2], "graph"),
    ("model.onnx", lambda data: b"not a graph", "graph"),
    ("edges.npy", with_array(lambda a: a[::-1]), "out of bounds"),
    ("edges.npy", with_array(lambda a: a[:-1]), "out of bounds"),
    ("edges.npy", with_array(lambda a: a + 1), "out of bounds"),
    ("edges.npy", with_array(lambda a: a.astype(np.float64)), "out of bounds"),
    ("edges.npy", with_array(lambda a: a[None, :]), "out of bounds"),
    ("base.npy", with_array(lambda a: -a), "out of bounds"),
    ("base.npy", with_array(lambda a: a[:-1]), "out of bounds"),
    ("base.npy", with_array(lambda a: np.where(a < a[5], np.nan, a)), "not finite"),
    ("kaplan_meier.npy", with_array(lambda a: a[None, :]), "out of bounds"),
    ("kaplan_meier.npy", with_array(lambda a: a[:1]), "out of bounds"),
    ("kaplan_meier.npy", with_array(lambda a: np.array(["a", "b"])), "holds no numbers"),
    ("fingerprints.npy", lambda data: data[:40], "fingerprints.npy is damaged"),
    ("history.msgpack", lambda data: b"", "memory of finished requests is damaged"),
    ("history.msgpack", lambda data: data[:-9], "memory of finished requests is damaged"),
    ("history.msgpack", lambda data: b"\x82\xa8observed\x01\xa6groups\x80", "other feature groups"),
]


@pytest.mark.parametrize(("name", "edit", "told"), HARM)
def test_harm_with_digests_that_fit_is_refused(folder: Path, name: str, edit: Edit, told: str) -> None:
    rewrite(folder, name, edit)
    with pytest.raises(BundleError, match=told):
        load_forecaster(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"columns": []}, "other feature columns"),
        ({"feature_groups": []}, "other feature columns"),
        ({"feature_groups": ["no such group"]}, "unknown feature group 'no such group'"),
        ({"intervals": 3}, "out of bounds"),
        ({"abort_hazard": 1.0}, "out of bounds"),
        ({"abort_hazard": -0.1}, "out of bounds"),
    ],
)
def test_a_manifest_at_odds_with_its_files_is_refused(folder: Path, changes: dict[str, Any], told: str) -> None:
    rewrite_manifest(folder, **changes)
    with pytest.raises(BundleError, match=told):
        load_forecaster(folder)


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.at),))


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".npy")])
def test_a_pickle_is_refused_and_not_run(folder: Path, tmp_path: Path, name: str) -> None:
    objects = np.empty(1, dtype=object)
    objects[0] = Harmful(tmp_path / "harmed")
    sink = io.BytesIO()
    np.save(sink, objects, allow_pickle=True)
    for harm in (sink.getvalue(), pickle.dumps(Harmful(tmp_path / "harmed"))):
        rewrite(folder, name, lambda _, harm=harm: harm)  # type: ignore[misc]
        with pytest.raises(BundleError, match=f"{name} is damaged"):
            load_forecaster(folder)
        assert not (tmp_path / "harmed").exists()


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for place in ("file", "nowhere"):
        with pytest.raises(BundleError, match=f"{place} is no folder.*endcast train"):
            endcast.load_forecaster(tmp_path / place)
    with pytest.raises(BundleError, match=r"cannot read .*manifest\.json: No such file"):
        endcast.load_forecaster(str(tmp_path / "empty"))


def test_a_huge_file_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MOST_BYTES", (folder / "model.onnx").stat().st_size - 1)
    with pytest.raises(BundleError, match=r"model\.onnx is too large"):
        load_forecaster(folder)


# Writing


@pytest.fixture
def made(folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    return read_bundle(folder).manifest, contents_of(folder)


def everything_in(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_only_a_bundle_is_replaced_and_only_if_asked(made: tuple[Manifest, dict[str, bytes]], tmp_path: Path) -> None:
    place = tmp_path / "deep" / "down"
    first = write_bundle(place, *made)
    assert place.stat().st_mode & 0o777 == 0o755
    manifest = msgspec.structs.replace(made[0], abort_hazard=0.25)
    with pytest.raises(BundleError, match=r"exists already.*--force"):
        write_bundle(place, manifest, made[1])
    assert read_bundle(place).id == first
    (place / "notes.txt").write_text("of the old one")
    second = write_bundle(place, manifest, made[1], replace=True)
    assert read_bundle(place).id == second != first and not (place / "notes.txt").exists()
    assert [path.name for path in place.parent.iterdir()] == ["down"]


def test_nothing_else_is_replaced(made: tuple[Manifest, dict[str, bytes]], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    before = everything_in(tmp_path)
    for place in ("empty", "file", "home"):
        with pytest.raises(BundleError, match="exists and is no bundle"):
            write_bundle(tmp_path / place, *made, replace=True)
    assert everything_in(tmp_path) == before


def test_a_bundle_holds_exactly_its_files(made: tuple[Manifest, dict[str, bytes]], tmp_path: Path) -> None:
    manifest, contents = made
    for wrong in ({**contents, "more": b""}, {name: contents[name] for name in FILES[1:]}):
        with pytest.raises(BundleError, match="holds exactly"):
            write_bundle(tmp_path / "new", manifest, wrong)
    assert not (tmp_path / "new").exists()


def failing(at: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, but its call number ``at`` raises ``error``."""
    calls: Iterator[int] = iter(range(1_000_000))

    def call(*given: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise error
        return real(*given, **named)

    return call


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("where", "name", "at", "old"),
    [
        *((os, "fsync", at, old) for at in (0, 5, len(FILES)) for old in (False, True)),
        *((Path, "chmod", 0, old) for old in (False, True)),
        (Path, "rename", 0, False),
        (Path, "rename", 0, True),  # the old one aside
        (Path, "rename", 1, True),  # the new one in its place
    ],
)
def test_a_failure_leaves_nothing_behind(
    made: tuple[Manifest, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    at: int,
    old: bool,
    error: BaseException,
) -> None:
    """Disk full or interrupted at any step: the old bundle stays, or there is none, and no other file."""
    manifest, contents = made
    place = tmp_path / "place" / "bundle"
    place.parent.mkdir()
    if old:
        write_bundle(place, manifest, contents)
    before = everything_in(tmp_path / "place")
    new = msgspec.structs.replace(manifest, abort_hazard=0.25)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, failing(at, error, getattr(where, name)))
        with pytest.raises(type(error)):
            write_bundle(place, new, contents, replace=True)
    assert everything_in(tmp_path / "place") == before
    assert write_bundle(place, new, contents, replace=True) == read_bundle(place).id


def test_a_forecaster_keeps_its_bundle_when_the_folder_changes(folder: Path) -> None:
    """Whoever serves it has read all of it: nothing is read later."""
    forecaster = load_forecaster(folder)
    shutil.rmtree(folder)
    landmark = endcast.Landmark(request=endcast.Request(request_id="a"))
    assert forecaster.forecast([landmark])[0].bundle == forecaster.bundle
    with pytest.raises(EndcastError):
        load_forecaster(folder)
