"""The product-limit estimator against a textbook, and against a slow, obvious one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import endcast
from endcast import Landmark, Request
from endcast.errors import TrainingError
from endcast.predictors.product_limit import at_risk_and_events, product_limit, table_of

OBSERVATIONS = st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60)

#: Weeks in remission of 21 patients who were given 6-mercaptopurine; False where censored. Freireich et al., "The effect
#: of 6-mercaptopurine on the duration of steroid-induced remissions in acute leukemia", Blood 21 (1963) 699 to 716.
WEEKS = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
RELAPSE = [week in (7, 13, 16, 22, 23) for week in WEEKS]
RELAPSE[:3], RELAPSE[6] = [True] * 3, True  # three of the four at 6, one of the two at 10
#: S(t) of that group, to three digits, as in Kleinbaum and Klein, "Survival Analysis", chapter 2.
TEXTBOOK = {5: 1.0, 6: 0.857, 7: 0.807, 9: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448, 35: 0.448}


def slow(observations: list[tuple[int, bool]]) -> list[float]:
    """S(0), S(1), …: at each t the share of those who reached t that did not end there."""
    survival = [1.0]
    for t in range(1, max(length for length, _ in observations) + 1):
        reached = sum(1 for length, _ in observations if length >= t)
        ended = sum(1 for length, event in observations if length == t and event)
        survival.append(survival[-1] * (1 - ended / reached))
    return survival


def test_the_textbook() -> None:
    survival = np.exp(product_limit(WEEKS, RELAPSE))
    assert {t: round(float(survival[t]), 3) for t in TEXTBOOK} == TEXTBOOK
    at_risk, events = at_risk_and_events(WEEKS, RELAPSE)
    assert at_risk[[6, 7, 10, 13, 16, 22, 23]].tolist() == [21, 17, 15, 12, 11, 7, 6]
    assert events.sum() == 9 and events[6] == 3


@given(OBSERVATIONS)
def test_the_slow_way(observations: list[tuple[int, bool]]) -> None:
    lengths, ended = zip(*observations, strict=True)
    log_survival = product_limit(lengths, ended)
    assert log_survival.shape == (max(lengths) + 1,) and log_survival[0] == 0.0
    assert np.isfinite(log_survival).all() and (np.diff(log_survival) <= 0.0).all()
    np.testing.assert_allclose(np.exp(log_survival), slow(observations), rtol=1e-9, atol=1e-11)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_without_censoring_it_is_the_share_that_ran_longer(lengths: list[int]) -> None:
    survival = np.exp(product_limit(lengths))
    expected = [(np.array(lengths) > t).mean() for t in range(max(lengths) + 1)]
    np.testing.assert_allclose(survival, expected, atol=1e-11)


@given(OBSERVATIONS)
def test_shrinking_leaves_some_alive(observations: list[tuple[int, bool]]) -> None:
    """Half a request more at risk at each token: hazards are lower, the last one below 1."""
    lengths, ended = zip(*observations, strict=True)
    at_risk, events = at_risk_and_events(lengths, ended)
    hazard = -np.expm1(np.diff(product_limit(lengths, ended, shrink=0.5)))
    np.testing.assert_allclose(hazard, events[1:] / (at_risk[1:] + 0.5), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lengths", [[], [0, 5], [-1]])
def test_lengths_must_be_lengths(lengths: list[int]) -> None:
    with pytest.raises(TrainingError, match="at least one token"):
        product_limit(lengths)


@given(OBSERVATIONS)
def test_beyond_the_last_length_the_mean_hazard_goes_on(observations: list[tuple[int, bool]]) -> None:
    lengths, ended = zip(*observations, strict=True)
    log_survival = product_limit(lengths, ended)
    table = table_of(log_survival)
    last = len(log_survival) - 1
    zero = np.zeros(1, dtype=np.int64)
    for t in (0, last // 2, last):
        assert table.log_survival_at(zero, np.array([t]))[0] == pytest.approx(log_survival[t])
    slope = min(log_survival[-1] / last, np.log1p(-1e-9))
    assert table.log_survival_at(zero, np.array([3 * last]))[0] == pytest.approx(log_survival[-1] + 2 * last * slope)


@given(OBSERVATIONS)
def test_the_public_forecaster_reads_the_curve_off(observations: list[tuple[int, bool]]) -> None:
    lengths, ended = zip(*observations, strict=True)
    survival = slow(observations)
    forecaster = endcast.kaplan_meier(lengths, ended)
    for generated in range(0, max(lengths), 7):
        (forecast,) = forecaster.forecast([Landmark(request=Request(request_id="r"), generated_tokens=generated)])
        if survival[generated] < 1e-6:
            continue
        for h in range(max(lengths) - generated):
            assert forecast.survival(h) == pytest.approx(survival[generated + h] / survival[generated], abs=1e-6)


def test_the_prior_is_wide_and_flagged() -> None:
    (forecast,) = endcast.cold_start().forecast([Landmark(request=Request(request_id="r"))])
    assert forecast.known["prior"] and forecast.bundle == "cold_start"
    assert forecast.quantile(0.5) == pytest.approx(200, abs=1) and 900 < forecast.quantile(0.9) < 1_100
    assert 0.0 < forecast.survival(100_000) < 0.01
