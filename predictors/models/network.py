"""A network with a head of K hazards: one pass gives the whole curve.

It sees the encoded features and gives corrections (n, K) to the log-odds at hand, which start at 0: an untrained network
*is* the curve that it corrects. Training minimizes the censored likelihood of the intervals that each request reached,
or, for a student, the distance to a teacher's hazards. On the CPU equal seeds give equal bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from endcast.predictors.features.pipeline import split
from endcast.predictors.features.protocol import Float32Array
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models.checkpoint import Checkpoint
from endcast.predictors.models.dense import ENCODED, Encoding
from endcast.predictors.models.device import choose_device
from endcast.predictors.models.graph import BASE, LOGITS, LogitGraph, constant, node, pooled_base
from endcast.predictors.models.harmless import offset_nodes
from endcast.predictors.models.protocol import TrainingData
from endcast.survival import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is built and trained: ``layers`` of ``hidden`` units, ``dropout`` between them; ``epochs`` at most,
    ``patience`` of them without gain on the validation part."""

    hidden: int = 128
    layers: int = 2
    dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    batch: int = 512
    epochs: int = 40
    patience: int = 5

    @classmethod
    def of(cls, options: Mapping[str, Any], **defaults: Any) -> Recipe:
        """With what the options set; whole numbers stay whole."""
        made = replace(cls(**defaults), **options)
        whole = {name: max(int(getattr(made, name)), 1) for name in ("hidden", "layers", "batch", "epochs", "patience")}
        return replace(made, **whole)


OPTIONS = tuple(Recipe.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What n rows teach: ``inputs`` (n, E) encoded, ``base`` (n, K) or (1, K) log-odds to correct, ``hazard`` (n, K) to
    be met, ``weight`` (n, K) ≥ 0: how much each interval counts."""

    inputs: Float32Array
    base: Float32Array
    hazard: Float32Array
    weight: Float32Array

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: IntArray) -> Lesson:
        """Some rows."""
        base = self.base if len(self.base) == 1 else self.base[index]
        return Lesson(self.inputs[index], base, self.hazard[index], self.weight[index])


def observed(data: TrainingData, index: IntArray) -> tuple[Float32Array, Float32Array]:
    """``hazard`` and ``weight`` (len(index), K) of what these requests did: 1 in the interval of an event, else 0; intervals
    that were not reached do not count."""
    rows = data.rows(index)
    hazard, weight = np.zeros((2, len(index), len(data.grid)), dtype=np.float32)
    starts = np.flatnonzero(np.diff(rows.request, prepend=-1) != 0)
    position = np.repeat(np.arange(len(index)), np.diff([*starts.tolist(), len(rows)]))
    hazard[position, rows.interval], weight[position, rows.interval] = rows.event, rows.weight
    return hazard, weight


class _Net(nn.Module):
    def __init__(self, inputs: int, outputs: int, recipe: Recipe) -> None:
        super().__init__()
        sizes = [inputs, *[recipe.hidden] * recipe.layers]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], outputs)
        self.dropout = nn.Dropout(recipe.dropout)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            x = self.dropout(torch.relu(layer(x)))
        corrections: torch.Tensor = self.head(x)
        return corrections


@dataclass(frozen=True, eq=False)
class HazardNetwork:
    """A trained network. ``layers`` of (weight (in, out), bias (out,)), float32, the last one the head's."""

    encoding: Encoding
    layers: tuple[tuple[Float32Array, Float32Array], ...]
    grid: IntervalGrid
    values: int  #: f
    width: int  #: F
    card: Mapping[str, Any]
    offset: int | None = None

    def logits(self, features: Float32Array) -> FloatArray:
        """(n, K)."""
        x = self.encoding(features)
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, np.float32(0.0))
        weight, bias = self.layers[-1]
        logits: FloatArray = self._base(features) + (x @ weight + bias).astype(np.float64)
        return logits

    def _base(self, features: Float32Array) -> FloatArray:
        if self.offset is None:
            return self.grid.base_logit[None, :]
        return split(features, self.values, len(self.grid)).intervals[:, :, self.offset].astype(np.float64)

    def graph(self) -> LogitGraph:
        """Matrix products, a few."""
        nodes, constants = self.encoding.nodes()
        if self.offset is None:
            constants.append(pooled_base(self.grid.base_logit))
        else:
            own_nodes, own_constants = offset_nodes(self.width, self.values, len(self.grid), self.offset)
            nodes += own_nodes
            constants += own_constants
        x, last = ENCODED, len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            constants += [constant(f"weight_{i}", weight, np.float32), constant(f"bias_{i}", bias, np.float32)]
            nodes.append(node("Gemm", [x, f"weight_{i}", f"bias_{i}"], f"sum_{i}"))
            x = f"sum_{i}"
            if i < last:
                nodes.append(node("Relu", [x], f"hidden_{i}"))
                x = f"hidden_{i}"
        nodes.append(node("Add", [x, BASE], LOGITS))
        return LogitGraph(tuple(nodes), tuple(constants), self.width, len(self.grid))


#: Devices on which products are taken in bfloat16; weights, losses and steps stay float32.
MIXED: tuple[str, ...] = ("cuda", "npu")
#: Makes a network for so many inputs and outputs.
Make = Callable[[int, int, Recipe], nn.Module]


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains networks on lessons; ``wanted`` device, ``checkpoint`` the folder in which an
    interrupted training is found again, if there is one; ``make`` the network."""

    recipe: Recipe
    seed: int
    threads: int
    tell: Callable[[str], None]
    wanted: str = "auto"
    checkpoint: Path | None = None
    make: Make = _Net
    groups: Callable[[Any], list[dict[str, Any]]] = lambda net: [{"params": list(net.parameters())}]

    def train(self, lesson: Lesson, held_out: Lesson | None, epochs: int) -> tuple[nn.Module, int, list[float]]:
        """The network, the epoch (from 1) at which it is taken and the held-out losses; with nothing held out, the last."""
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        device = torch.device(choose_device(self.wanted))
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._epochs(lesson, held_out, epochs, device, generator)

    def _epochs(
        self, lesson: Lesson, held_out: Lesson | None, epochs: int, device: torch.device, generator: torch.Generator
    ) -> tuple[nn.Module, int, list[float]]:
        recipe = self.recipe
        net = self.make(lesson.inputs.shape[1], lesson.hazard.shape[1], recipe).to(device)
        optimizer = torch.optim.AdamW(self.groups(net), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        best, kept, losses = 0, _state(net), list[float]()
        saved = None if self.checkpoint is None else Checkpoint(self.checkpoint, _identity(lesson, recipe, self.seed))
        if saved is not None and (found := saved.load(net, optimizer, generator)) is not None:
            losses, kept = found
            best = int(np.argmin(losses)) + 1 if held_out is not None else len(losses)
            self.tell(f"goes on after epoch {len(losses)} of an interrupted training")
        for epoch in range(len(losses) + 1, epochs + 1):
            if held_out is not None and epoch - best > recipe.patience:
                break
            net.train()
            for batch in self._batches(len(lesson), generator):
                optimizer.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type in MIXED):
                    corrections = net(_tensor(lesson.inputs[batch], device))
                loss = _loss(corrections.float(), lesson.take(batch), device)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            losses.append(float("nan") if held_out is None else self._mean_loss(net, held_out, device))
            if held_out is None or losses[-1] <= min(losses):
                best, kept = epoch, _state(net)
            self.tell(f"epoch {epoch} of at most {epochs}" + ("" if held_out is None else f", loss {losses[-1]:.4f}"))
            if saved is not None:
                saved.save(net, optimizer, generator, losses, kept)
        net.load_state_dict(kept)
        return net.cpu().eval(), best, losses

    def _batches(self, rows: int, generator: torch.Generator) -> Iterator[IntArray]:
        order = torch.randperm(rows, generator=generator).numpy()
        for start in range(0, rows, self.recipe.batch):
            yield order[start : start + self.recipe.batch]

    def _mean_loss(self, net: nn.Module, lesson: Lesson, device: torch.device) -> float:
        net.eval()
        total = 0.0
        with torch.no_grad():
            for index in np.array_split(np.arange(len(lesson)), len(lesson) // 8192 + 1):
                part = lesson.take(index)
                total += float(_loss(net(_tensor(part.inputs, device)), part, device)) * len(index)
        return total / len(lesson)


def network(data: TrainingData, encoding: Encoding, net: nn.Module, card: Mapping[str, Any]) -> HazardNetwork:
    """What was trained, without torch."""
    assert isinstance(net, _Net)
    layers = tuple(
        (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
        for layer in [*net.hidden, net.head]
        if isinstance(layer, nn.Linear)
    )
    values = data.features.values.shape[1]
    return HazardNetwork(encoding, layers, data.grid, values, data.width, card, data.offset)


def base_rows(data: TrainingData, features: Float32Array) -> Float32Array:
    """(n, K) or (1, K) log-odds to correct."""
    return data.base_of(features).astype(np.float32)


def _loss(corrections: torch.Tensor, lesson: Lesson, device: torch.device) -> torch.Tensor:
    """Mean cross entropy a row, summed over its intervals by weight."""
    logits = corrections + _tensor(lesson.base, device)
    each = nn.functional.binary_cross_entropy_with_logits(
        logits, _tensor(lesson.hazard, device), weight=_tensor(lesson.weight, device), reduction="none"
    )
    return each.sum() / len(lesson)


def _tensor(array: npt.NDArray[np.float32], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _state(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def _identity(lesson: Lesson, recipe: Recipe, seed: int) -> str:
    """What a checkpoint must have been made from."""
    digest = hashlib.sha256(f"{recipe} {seed} {lesson.inputs.shape}".encode())
    for part in (lesson.inputs, lesson.base, lesson.hazard, lesson.weight):
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
