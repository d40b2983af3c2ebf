"""The tree of errors: one base, one sentence, one hint."""

from __future__ import annotations

import pytest

from endcast import errors
from endcast.errors import EndcastError, InputError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EndcastError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_says_what_is_wrong_and_what_to_do(kind: type[EndcastError]) -> None:
    given = ("field", "it is wrong") if kind is InputError else ("it is wrong",)
    error = kind(*given, hint="Do that")
    assert str(error).endswith("it is wrong. Do that")
    assert error.hint == "Do that" and error.message.endswith("it is wrong")
    assert str(kind(*given)).endswith("it is wrong")


def test_an_input_error_is_a_value_error_that_names_its_field() -> None:
    error = InputError("horizon", "must be positive")
    assert isinstance(error, ValueError) and error.field == "horizon" and str(error) == "horizon: must be positive"
