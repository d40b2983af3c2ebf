"""What a student is shown beside the log: rows mixed of logged ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.predictors.features.protocol import Columns
from endcast.predictors.grid import IntervalGrid
from endcast.predictors.models import distilled
from endcast.predictors.models.distilled import DistilledHazard, Student, mixed
from endcast.predictors.models.protocol import TrainingData


@given(rows=st.integers(1, 30), values=st.integers(0, 4), each=st.integers(0, 3), seed=st.integers(0, 99))
def test_mixed_rows_are_of_logged_columns(rows: int, values: int, each: int, seed: int) -> None:
    intervals = 5
    column = np.concatenate([np.arange(values), values + np.tile(np.arange(each), intervals)])
    row = np.arange(rows, dtype=np.float32)[:, None]
    vectors = np.repeat(row, len(column), axis=1)  # each number says which row it is of
    made = mixed(vectors, column, np.random.default_rng(seed))
    assert made.shape == vectors.shape
    assert np.isin(made, row).all()
    for one in np.unique(column):
        assert (made[:, column == one] == made[:, column == one][:, :1]).all()  # a curve stays one request's
    assert (made == mixed(vectors, column, np.random.default_rng(seed))).all()
    exchanged = [set(found) - {own} for found, own in zip(made.tolist(), row[:, 0].tolist(), strict=True)]
    assert all(len(others) <= 1 for others in exchanged)  # of one other row


def test_mixed_rows_are_new_and_near() -> None:
    column, rng = np.arange(40), np.random.default_rng(1)
    vectors = np.repeat(np.arange(2000, dtype=np.float32)[:, None], 40, axis=1)
    share = (mixed(vectors, column, rng) != vectors).mean(axis=1)
    assert 0.25 < share.mean() < 0.35
    assert share.max() < 0.9


def logged(rows: int) -> TrainingData:
    """Lengths that hang on a few of ten columns, with steps where trees find them."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(rows, 10)).astype(np.float32)
    hazard = np.where(values[:, 0] > 0, 0.01, 0.04) * np.where(values[:, 1] * values[:, 2] > 0, 1.0, 3.0)
    lengths = rng.geometric(hazard).astype(np.int64)
    order, grid = np.arange(rows), IntervalGrid.fit(lengths, np.ones(rows, dtype=bool), 12)
    return TrainingData(
        grid=grid,
        columns=tuple(f"c{i}" for i in range(10)),
        interval_columns=(),
        features=Columns(values, np.empty((rows, len(grid), 0), dtype=np.float32)),
        lengths=lengths,
        ended=np.ones(rows, dtype=bool),
        fit=order[: rows // 2],
        validation=order[rows // 2 :],
        block=order,
        options={"hidden": 32, "epochs": 40, "teacher_rounds": 60},
        device="cpu",
    )


def test_mixed_rows_bring_a_student_nearer_to_its_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    data = logged(2000)
    vectors = data.vectors(data.validation)

    def distance() -> float:
        student = DistilledHazard().fit(data)
        assert isinstance(student, Student)
        return float(np.square(student.logits(vectors) - student.teacher.logits(vectors)).mean())

    with_mixed = distance()
    monkeypatch.setattr(distilled, "_MOST_TIMES", 0)
    assert with_mixed < 0.7 * distance()
