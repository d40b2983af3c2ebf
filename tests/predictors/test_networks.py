"""Networks: what they see, where they train, and how an interrupted training goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from endcast.errors import TrainingError
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.models import network
from endcast.predictors.models.dense import BOUND, Encoding
from endcast.predictors.models.device import ImportModule, choose_device
from endcast.predictors.models.network import Lesson, Recipe, Trainer

RECIPE = Recipe(hidden=16, batch=64, epochs=6, patience=6)


def lesson(rows: int = 400, seed: int = 0) -> Lesson:
    """Two columns, of which the first doubles or halves the odds of all five intervals."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, 2)).astype(np.float32)
    odds = np.exp(-1.0 + 0.7 * np.sign(inputs[:, :1])) * np.ones((1, 5))
    hazard = (rng.random((rows, 5)) < odds / (1.0 + odds)).astype(np.float32)
    return Lesson(inputs, np.full((1, 5), -1.0, np.float32), hazard, np.ones_like(hazard))


def trainer(folder: Path | None = None, recipe: Recipe = RECIPE, told: list[str] | None = None) -> Trainer:
    return Trainer(recipe, 3, 1, (told if told is not None else []).append, "cpu", folder)


def weights(net: torch.nn.Module) -> Float32Array:
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=False)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=NUMBERS),
    arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=NUMBERS),
)
def test_whatever_comes_is_encoded_within_bounds(seen: Float32Array, asked: Float32Array) -> None:
    with np.errstate(over="ignore"):
        encoding = Encoding.fit(seen)
        encoded = encoding(asked)
    assert encoded.shape == (len(asked), encoding.width) and encoded.dtype == np.float32
    assert np.isfinite(encoded).all() and (np.abs(encoded) <= BOUND).all()


def test_encoding_standardizes_tells_what_is_missing_and_drops_constants() -> None:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(100.0, 5.0, 5000), np.full(5000, 7.0), rng.normal(size=5000)], axis=1).astype(
        np.float32
    )
    rows[::4, 2] = np.nan
    encoding = Encoding.fit(rows)
    encoded = encoding(rows)
    assert encoding.absent.tolist() == [2]
    assert abs(encoded[:, 0].mean()) < 0.05 and abs(encoded[:, 0].std() - 1.0) < 0.1
    assert (encoded[:, 1] == 0.0).all()
    np.testing.assert_array_equal(encoded[:, 3], np.isnan(rows[:, 2]))
    assert (encoded[::4, 2] == 0.0).all()


def test_a_network_learns_what_is_there() -> None:
    net, best, losses = trainer(recipe=replace(RECIPE, epochs=30)).train(lesson(4000), lesson(2000, seed=1), 30)
    with torch.no_grad():
        corrections = net(torch.tensor([[1.5, 0.0], [-1.5, 0.0]])).numpy()
    assert losses[best - 1] == min(losses) and best >= 1
    np.testing.assert_allclose(corrections, [[0.7] * 5, [-0.7] * 5], atol=0.3)


def test_mixed_precision_learns_the_same_with_whole_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU, which can do it too, in the place of the devices that do it."""
    whole, _, _ = trainer().train(lesson(2000), None, 6)
    monkeypatch.setattr(network, "MIXED", ("cpu",))
    mixed, _, _ = trainer().train(lesson(2000), None, 6)
    assert all(parameter.dtype == torch.float32 for parameter in mixed.parameters())
    far = float(np.abs(weights(mixed) - weights(whole)).max())
    assert 0.0 < far < 0.1
    with torch.no_grad():
        left, right = (net(torch.tensor([[1.0, 0.0]])).numpy() for net in (mixed, whole))
    np.testing.assert_allclose(left, right, atol=0.05)


def test_training_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Killed after the second epoch: the weights at the end are the same, bit by bit."""
    whole, _, _ = trainer().train(lesson(), lesson(seed=1), 6)

    class Killed(Exception):
        pass

    def kill(text: str) -> None:
        if text.startswith("epoch 3"):
            raise Killed

    with pytest.raises(Killed):
        replace(trainer(tmp_path), tell=kill).train(lesson(), lesson(seed=1), 6)
    told: list[str] = []
    again, _, losses = trainer(tmp_path, told=told).train(lesson(), lesson(seed=1), 6)
    assert "goes on after epoch 2" in told[0] and len(losses) == 6
    np.testing.assert_array_equal(weights(again), weights(whole))


def test_another_training_does_not_take_the_checkpoint(tmp_path: Path) -> None:
    trainer(tmp_path).train(lesson(), None, 2)
    told: list[str] = []
    trainer(tmp_path, told=told).train(lesson(seed=5), None, 2)
    assert not any("goes on" in text for text in told) and len(list(tmp_path.glob("*.npz"))) == 2


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: b"x" * 99])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    trainer(tmp_path).train(lesson(), None, 1)
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(TrainingError, match="is no checkpoint"):
        trainer(tmp_path).train(lesson(), None, 1)


def stand_in(available: bool) -> ImportModule:
    """What ``import torch_npu`` gives on a machine with its driver."""

    def import_module(name: str) -> SimpleNamespace:
        assert name == "torch_npu"
        return SimpleNamespace(npu=SimpleNamespace(is_available=lambda: available))

    return import_module


def without_driver(name: str) -> ModuleType:
    raise OSError("libascend_hal.so: cannot open shared object file")


def without_package(name: str) -> ModuleType:
    raise ModuleNotFoundError(f"No module named {name!r}")


def test_an_npu_is_used_where_there_is_one() -> None:
    assert choose_device("npu", stand_in(True)) == "npu"
    if not torch.cuda.is_available():
        assert choose_device("auto", stand_in(True)) == "npu"


@pytest.mark.parametrize(
    ("import_module", "why"),
    [(stand_in(False), "sees no NPU"), (without_driver, "no Ascend driver"), (without_package, "cannot be imported")],
)
def test_an_npu_that_is_not_there_is_said_or_done_without(import_module: ImportModule, why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        choose_device("npu", import_module)
    if not torch.cuda.is_available():
        assert choose_device("auto", import_module) == "cpu"


def test_the_cpu_asks_nobody() -> None:
    def refuse(name: str) -> ModuleType:
        raise AssertionError("imported")

    assert choose_device("cpu", refuse) == "cpu"


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TrainingError, match="no device 'tpu'"):
        choose_device("tpu")
