"""The shared values check themselves, and say which field is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast import Completion, EndReason, InputError, Landmark, Request
from endcast.types import MAX_TOKENS, shown

NOT_COUNTS: list[Any] = [-1, MAX_TOKENS + 1, 10**6000, 1.0, math.nan, math.inf, 1e309, True, "3", [3], np.int64(3)]
NOT_SECONDS: list[Any] = [math.nan, math.inf, -math.inf, 1e309, 1.1e12, 10**6000, True, "3", [3]]


def make(field: str, value: Any) -> object:
    """A value of the type that has ``field``, with that one set."""
    if field == "generated_tokens":
        return Landmark(request=Request(request_id="r"), generated_tokens=value)
    if field in ("output_tokens", "finished_s"):
        return Completion(**{"request": Request(request_id="r"), "output_tokens": 1, field: value})
    return Request(**{"request_id": "r", field: value})


@pytest.mark.parametrize("value", NOT_COUNTS, ids=lambda v: f"{type(v).__name__}{shown(v)[:20]}")
@pytest.mark.parametrize("field", ["prompt_tokens", "max_tokens", "context_limit", "generated_tokens", "output_tokens"])
def test_a_count_out_of_bounds_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        make(field, value)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: must ") and len(str(caught.value)) < 200


@pytest.mark.parametrize("value", NOT_SECONDS, ids=lambda v: f"{type(v).__name__}{shown(v)[:20]}")
@pytest.mark.parametrize("field", ["arrival_s", "finished_s"])
def test_seconds_out_of_bounds_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        make(field, value)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["max_tokens", "context_limit"])
def test_a_cap_of_no_tokens_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: must lie between 1 and"):
        make(field, 0)


@pytest.mark.parametrize("value", [0, 1, -1.5, 1_700_000_000.25, 1e12])
def test_seconds_may_be_whole_or_not(value: float) -> None:
    assert Request(request_id="r", arrival_s=value).arrival_s == value


@given(
    max_tokens=st.none() | st.integers(1, MAX_TOKENS),
    context_limit=st.none() | st.integers(1, MAX_TOKENS),
    prompt_tokens=st.none() | st.integers(0, MAX_TOKENS),
)
def test_cap_is_the_smallest_that_applies(
    max_tokens: int | None, context_limit: int | None, prompt_tokens: int | None
) -> None:
    cap = Request(request_id="r", max_tokens=max_tokens, context_limit=context_limit, prompt_tokens=prompt_tokens).cap
    known = [] if max_tokens is None else [max_tokens]
    if context_limit is not None and prompt_tokens is not None:
        known.append(context_limit - prompt_tokens if context_limit > prompt_tokens else 1)
    assert cap == min(known, default=None)
    assert cap is None or cap >= 1


def test_what_is_not_given_is_unknown() -> None:
    request = Request(request_id="r")
    unknown = (request.arrival_s, request.prompt_tokens, request.model, request.tenant, request.cap)
    assert unknown == (None, None, None, None, None)
    assert Landmark(request=request).generated_tokens == 0 and Landmark(request=request).output is None


def test_values_are_frozen_and_keyword_only() -> None:
    request = Request(request_id="r")
    with pytest.raises(AttributeError):
        request.prompt_tokens = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Request("r")  # type: ignore[call-arg]


def test_an_end_may_be_given_by_name() -> None:
    completion = Completion(request=Request(request_id="r"), output_tokens=3, end="abort")  # type: ignore[arg-type]
    assert completion.end is EndReason.ABORT


def test_an_unknown_end_lists_the_known() -> None:
    with pytest.raises(InputError, match="end: must be one of stop, length, abort, error, unfinished, not 'eos'"):
        Completion(request=Request(request_id="r"), output_tokens=3, end="eos")  # type: ignore[arg-type]


def test_output_tokens_must_be_given() -> None:
    with pytest.raises(InputError, match="output_tokens: must be given"):
        Completion(request=Request(request_id="r"), output_tokens=None)  # type: ignore[arg-type]


def test_defaults_are_not_shared() -> None:
    first, second = Request(request_id="a"), Request(request_id="b")
    assert first.parameters == {} and first.parameters is not second.parameters
