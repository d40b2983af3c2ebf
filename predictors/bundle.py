"""Bundles: a folder with a graph, tables and a manifest that lists each file with its digest. No code, no pickle.

A bundle's id is the digest of its manifest, so it names every byte; it lies beside the manifest. Writing is atomic: a new folder appears whole or
not at all. Loading refuses an unknown schema, a missing or changed file, a table out of bounds, a graph that does not
give back its golden output.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from endcast.errors import BundleError
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.learned import Tables, decode_learned
from endcast.predictors.text.encoder_files import GOLDEN, SCORER, TOKENIZER

SCHEMA_VERSION = 2
MANIFEST, MANIFEST_DIGEST = "manifest.json", "manifest.sha256"
FILES = (
    "model.onnx",
    "edges.npy",
    "base.npy",
    "kaplan_meier.npy",
    "golden_features.npy",
    "golden_hazards.npy",
    "history.msgpack",
    "learned.msgpack",
    "fingerprints.npy",
)
#: What a bundle that reads outputs has beside them.
OUTPUT_FILES = (
    "output_model.onnx",
    "output_edges.npy",
    "output_base.npy",
    "output_golden_features.npy",
    "output_golden_hazards.npy",
)
#: What a bundle with a text encoder has beside them: of these, those that its manifest names.
ENCODER_FILES = (TOKENIZER, SCORER, GOLDEN)
#: A manifest or file larger than this is refused before it is read.
MOST_BYTES = 2 << 30


class OutputManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle says of its second model, which reads the output so far."""

    every: int  #: tokens between two landmarks in training
    columns: list[str]
    interval_columns: list[str]
    intervals: int
    landmarks: int  #: that trained
    slope: float
    metrics: dict[str, Any]  #: on the validation part
    card: dict[str, Any]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle says of itself."""

    schema_version: int
    model: str
    feature_groups: list[str]
    columns: list[str]  #: (f,)
    interval_columns: list[str]  #: (c,)
    intervals: int  #: K
    abort_hazard: float  #: chance a token that the client leaves, pooled
    slope: float  #: of calibration, in log-odds
    output: OutputManifest | None  #: of the model that reads the output so far
    training: dict[str, Any]  #: window, split, counts, seed, data digest
    metrics: dict[str, Any]  #: on the validation part
    card: dict[str, Any]  #: what the family chose
    versions: dict[str, str]
    files: dict[str, str]  #: name → ``sha256:…``
    encoder: list[str] = []  #: files of the text encoder, if there is one


@dataclass(frozen=True, eq=False)
class Graph:
    """One model of a bundle: its graph, the grid that its hazards are on, and a golden pair."""

    model: bytes
    grid: IntervalGrid
    golden_features: npt.NDArray[np.float32]
    golden_hazards: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle in memory, checked."""

    id: str
    manifest: Manifest
    admission: Graph  #: the forecast at admission
    output: Graph | None  #: its correction by the output so far
    kaplan_meier: npt.NDArray[np.float64]  #: (T+1,) log survival of the training part, unshrunk
    history: bytes
    learned: Mapping[str, Tables]  #: tables that feature groups learned
    encoder: Mapping[str, bytes]  #: files of the text encoder; none if there is none
    fingerprints: npt.NDArray[np.uint64]  #: of some training requests, to notice an overlap


def digest(data: bytes) -> str:
    """``sha256:…`` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def array_bytes(array: npt.NDArray[Any]) -> bytes:
    """An array as a ``.npy`` file."""
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=False)
    return sink.getvalue()


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as JSON, keys in order, the same bytes for the same content."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2) + b"\n"


def files_of(manifest: Manifest) -> tuple[str, ...]:
    """Names of the files that its manifest must list."""
    unknown = [name for name in manifest.encoder if name not in ENCODER_FILES]
    if unknown:
        raise BundleError(f"the manifest names {unknown[0]!r:.60}, which no text encoder has", hint="Train it again")
    return (*FILES, *(() if manifest.output is None else OUTPUT_FILES), *manifest.encoder)


def write_bundle(path: Path, manifest: Manifest, contents: Mapping[str, bytes], *, replace: bool = False) -> str:
    """Write a bundle to the folder ``path``; its id. An existing folder is replaced only if asked, and only a bundle."""
    names = files_of(manifest)
    if set(contents) != set(names):
        raise BundleError(f"this bundle holds exactly {', '.join(names)}")
    if path.exists() and not replace:
        raise BundleError(f"{path} exists already", hint="Choose another folder, or replace it with --force")
    if path.exists() and not (path / MANIFEST).is_file():
        raise BundleError(f"{path} exists and is no bundle", hint="Choose another folder")
    whole = msgspec.structs.replace(manifest, files={name: digest(contents[name]) for name in sorted(contents)})
    text = manifest_bytes(whole)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name, data in {**contents, MANIFEST: text, MANIFEST_DIGEST: f"{digest(text)}\n".encode()}.items():
            _write_synced(staging / name, data)
        staging.chmod(0o755)
        _swap(staging, path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return digest(text)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _swap(staging: Path, path: Path) -> None:
    """Put ``staging`` at ``path``; a bundle that was there goes only when the new one stands."""
    old = staging.with_name(f"{staging.name}.old")
    if path.exists():
        path.rename(old)
    try:
        staging.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_bundle(path: Path | str) -> Bundle:
    """Read and check a bundle but for its golden pair (which needs the graph run); ``BundleError`` says what is wrong."""
    folder = Path(path)
    text = _read(folder / MANIFEST, folder)
    manifest = _manifest(text, folder)
    if _read(folder / MANIFEST_DIGEST, folder) != f"{digest(text)}\n".encode():
        raise BundleError(f"{folder / MANIFEST} or {MANIFEST_DIGEST} is not the file that was written (digests differ)")
    contents = {}
    for name in files_of(manifest):
        listed = manifest.files.get(name)
        if listed is None:
            raise BundleError(f"{folder}: the manifest lists no {name}", hint="Train the bundle again")
        contents[name] = _read(folder / name, folder)
        if digest(contents[name]) != listed:
            raise BundleError(f"{folder / name} is not the file that the manifest lists (its digest differs)")
    kaplan_meier = _array(contents, "kaplan_meier.npy", folder)
    if not _is_log_survival(kaplan_meier) or not 0.0 <= manifest.abort_hazard < 1.0:
        raise BundleError(
            f"{folder}: the Kaplan-Meier curve or the abort hazard is out of bounds", hint="Train the bundle again"
        )
    output = manifest.output
    return Bundle(
        id=digest(text),
        manifest=manifest,
        admission=_graph(contents, "", manifest.intervals, folder),
        output=None if output is None else _graph(contents, "output_", output.intervals, folder),
        kaplan_meier=kaplan_meier,
        history=contents["history.msgpack"],
        learned=decode_learned(contents["learned.msgpack"]),
        encoder={name: contents[name] for name in manifest.encoder},
        fingerprints=_array(contents, "fingerprints.npy", folder),
    )


def _graph(contents: Mapping[str, bytes], prefix: str, intervals: int, folder: Path) -> Graph:
    grid = IntervalGrid(_array(contents, f"{prefix}edges.npy", folder), _array(contents, f"{prefix}base.npy", folder))
    _check_grid(grid, intervals, f"{folder}: {prefix}edges.npy or {prefix}base.npy")
    return Graph(
        contents[f"{prefix}model.onnx"],
        grid,
        _array(contents, f"{prefix}golden_features.npy", folder),
        _array(contents, f"{prefix}golden_hazards.npy", folder),
    )


def _read(path: Path, folder: Path) -> bytes:
    if not _is_folder(folder):
        raise BundleError(
            f"{str(folder)[:200]} is no folder", hint="A bundle is the folder that 'endcast train --out' wrote"
        )
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BundleError(f"{path} is too large to be part of a bundle")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"cannot read {path}: {error.strerror}", hint="The bundle is not whole; copy it anew"
        ) from None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no folder can have: too long, or with a null byte
        return False


def _manifest(text: bytes, folder: Path) -> Manifest:
    try:
        version = msgspec.json.decode(text, type=dict[str, Any]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"{folder}: bundle schema {version!r:.40} is unknown to this endcast, which reads {SCHEMA_VERSION}",
                hint="Upgrade endcast, or train the bundle with this version",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(f"{folder / MANIFEST} is damaged: {error}") from None


def _array(contents: Mapping[str, bytes], name: str, folder: Path) -> npt.NDArray[Any]:
    """The numbers of a ``.npy`` file. It may be none: whoever wrote the digests may have meant harm."""
    try:
        array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(contents[name]), allow_pickle=False)
    except (ValueError, OSError, EOFError, OverflowError, MemoryError) as error:  # a header may claim any size
        raise BundleError(f"{folder / name} is damaged: {error}") from None
    if array.dtype.kind not in "fiu":
        raise BundleError(f"{folder / name} holds no numbers")
    if not np.isfinite(array).all() and not name.endswith("golden_features.npy"):
        raise BundleError(f"{folder / name} holds numbers that are not finite")
    return array


def _check_grid(grid: IntervalGrid, intervals: int, where: str) -> None:
    edges, base = grid.edges, grid.base
    fits = (
        edges.dtype == np.int64
        and edges.ndim == 1
        and _is_log_survival(base)
        and len(edges) == intervals + 1
        and len(edges) > 1
        and edges[0] == 0
        and bool((np.diff(edges) > 0).all())
        and len(base) == edges[-1] + 1
    )
    if not fits:
        raise BundleError(f"{where} is out of bounds", hint="Train the bundle again")


def _is_log_survival(table: npt.NDArray[Any]) -> bool:
    """Whether it is (T+1,), T ≥ 1, non-increasing from 0."""
    is_vector = table.dtype == np.float64 and table.ndim == 1 and len(table) > 1
    return is_vector and table[0] == 0.0 and bool((np.diff(table) <= 0.0).all())
