"""``--model auto``: the best on the validation part that is quick enough."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from endcast.datasets.synth import SynthLog
from endcast.errors import InputError, TrainingError
from endcast.training import choose as choosing
from endcast.training.choose import TOLERANCE, Tried, choose
from endcast.training.train import Settings, train


class Family:
    """Only its name is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float]]:
    """Loss and cost of each family as a test says."""
    figures: dict[str, tuple[float, float]] = {}

    def attempt(_data: object, family: Any) -> Tried:
        loss, cost = figures[family.name]
        return Tried(family, None, 1.0, {"log_loss_a_request": loss}, cost)  # type: ignore[arg-type]

    families: Mapping[str, Any] = {name: (lambda name=name: Family(name)) for name in "abc"}
    monkeypatch.setattr(choosing, "_try", attempt)
    monkeypatch.setattr(choosing, "MODELS", families)
    return figures


@pytest.mark.parametrize(
    ("figures", "budget", "taken"),
    [
        ({"a": (3.0, 1.0), "b": (2.5, 5.0), "c": (2.0, 50.0)}, None, "c"),
        ({"a": (3.0, 1.0), "b": (2.5, 5.0), "c": (2.0, 50.0)}, 10.0, "b"),
        ({"a": (3.0, 1.0), "b": (2.5, 5.0), "c": (2.0, 50.0)}, 1.0, "a"),
        ({"a": (3.0, 1.0), "b": (2.0 + TOLERANCE / 2, 5.0), "c": (2.0, 50.0)}, None, "b"),
        ({"a": (3.0, 1.0), "b": (2.0 + TOLERANCE * 2, 5.0), "c": (2.0, 50.0)}, None, "c"),
    ],
)
def test_the_best_within_the_budget_is_taken(
    measured: dict[str, tuple[float, float]], figures: dict[str, tuple[float, float]], budget: float | None, taken: str
) -> None:
    measured.update(figures)
    choice = choose(None, list("abc"), budget)  # type: ignore[arg-type]
    assert choice.taken.family.name == taken and choice.why.startswith(f"{taken}: ")
    assert choice.figures["log_loss_a_request"] == {name: loss for name, (loss, _) in figures.items()}


def test_a_budget_that_nothing_keeps_is_refused(measured: dict[str, tuple[float, float]]) -> None:
    measured.update({"a": (3.0, 4.0), "b": (2.5, 5.0), "c": (2.0, 50.0)})
    with pytest.raises(TrainingError, match=r"the quickest takes 4\.0"):
        choose(None, list("abc"), 3.0)  # type: ignore[arg-type]


def test_a_bundle_says_what_was_tried(small_log: SynthLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "CANDIDATES", ("kaplan_meier", "regression"))
    made = train(small_log.trace, Settings(model="auto", intervals=12, read_outputs=False), tmp_path / "bundle")
    losses = made.manifest.card["chosen"]["log_loss_a_request"]
    assert set(losses) == {"kaplan_meier", "regression"} and made.manifest.model == min(losses, key=losses.__getitem__)


def test_auto_takes_no_options() -> None:
    with pytest.raises(InputError, match="auto takes none"):
        train(None, Settings(model="auto", options={"rounds": 3}), Path("unused"))  # type: ignore[arg-type]


def test_a_budget_must_be_above_zero() -> None:
    with pytest.raises(InputError, match="above 0"):
        Settings(budget_us=0.0)
