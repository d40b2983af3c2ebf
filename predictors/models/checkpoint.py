"""Where an interrupted training of a network goes on: a file of plain arrays, replaced whole after each epoch.

A bundle takes several trainings (of parts, of everything, of folds): each has a file of its own in one folder.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from endcast.errors import TrainingError

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """``identity``: a digest of what is trained on what; it names the file in ``folder``."""

    folder: Path
    identity: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.identity[:16]}.npz"

    def save(
        self,
        net: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        losses: list[float],
        kept: State,
    ) -> None:
        """All that the next epoch depends on; the file before stays until the new one is whole."""
        arrays = {
            "identity": np.array(self.identity),
            "losses": np.array(losses),
            "order": generator.get_state().numpy(),
            "chance": torch.get_rng_state().numpy(),
            **{f"net.{name}": tensor.detach().cpu().numpy() for name, tensor in net.state_dict().items()},
            **{f"kept.{name}": tensor.cpu().numpy() for name, tensor in kept.items()},
        }
        for number, state in optimizer.state_dict()["state"].items():
            arrays |= {f"adam.{number}.{name}": np.asarray(value.cpu()) for name, value in state.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_bytes(buffer.getvalue())
        beside.replace(self.path)

    def load(
        self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
    ) -> tuple[list[float], State] | None:
        """Losses so far and the best state, everything else put back in place; ``None`` if there is no file."""
        if not self.path.exists():
            return None
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (BadZipFile, EOFError, ValueError, OSError) as error:
            raise TrainingError(
                f"{self.path} is no checkpoint: {error!s:.100}", hint="Remove it to begin anew"
            ) from None
        if str(arrays.get("identity")) != self.identity:
            raise TrainingError(f"{self.path} is the checkpoint of another training", hint="Remove it")
        net.load_state_dict(_part(arrays, "net."))
        optimizer.load_state_dict({**optimizer.state_dict(), "state": _moments(arrays)})
        generator.set_state(torch.from_numpy(arrays["order"]))
        torch.set_rng_state(torch.from_numpy(arrays["chance"]))
        return arrays["losses"].tolist(), _part(arrays, "kept.")


def _part(arrays: Mapping[str, Any], prefix: str) -> State:
    return {n.removeprefix(prefix): torch.from_numpy(a) for n, a in arrays.items() if n.startswith(prefix)}


def _moments(arrays: Mapping[str, Any]) -> dict[int, State]:
    state: dict[int, State] = {}
    for name, array in _part(arrays, "adam.").items():
        number, _, moment = name.partition(".")
        state.setdefault(int(number), {})[moment] = array
    return state
