"""Arithmetic for judging: as exact as the library's, and the same bits whatever library is below."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.golden.portable import exp, log, quantiles

finite = st.floats(allow_nan=False, allow_infinity=False)


def ulps(got: float, expected: float) -> float:
    return abs(got - expected) / math.ulp(expected)


@given(st.floats(min_value=-744.0, max_value=709.0))
def test_exp_is_within_two_ulp(x: float) -> None:
    assert ulps(float(exp(x)), math.exp(x)) <= 2


@pytest.mark.parametrize(("x", "expected"), [(0.0, 1.0), (-1e4, 0.0), (1e4, math.inf), (-745.2, 0.0), (710.0, math.inf)])
def test_exp_at_its_ends(x: float, expected: float) -> None:
    assert float(exp(x)) == expected


def test_numbers_that_are_none_stay_so_and_warn_of_nothing() -> None:
    """A run may claim them: it must turn red, not crash."""
    assert np.isnan([exp(np.nan), log(np.nan)]).all()
    assert exp([-np.inf, np.inf]).tolist() == [0.0, np.inf]


@given(st.floats(min_value=5e-324, max_value=1e308))
def test_log_is_within_two_ulp_or_1e_16(x: float) -> None:
    expected = math.log(x)
    assert abs(float(log(x)) - expected) <= max(2 * math.ulp(expected), 1e-16)


def test_log_of_one_is_zero() -> None:
    assert float(log(1.0)) == 0.0


def test_exp_and_log_keep_their_bits() -> None:
    """Pinned: a change of the polynomials would change every stored document."""
    x = np.linspace(-40, 1, 4001)
    assert [v.hex() for v in exp([-1.0, -29.7, 0.3]).tolist()] == EXP
    assert [v.hex() for v in log([1e-12, 0.3, 7.5]).tolist()] == LOG
    assert np.abs(log(exp(x)) - x).max() < 1e-14


EXP = ["0x1.78b56362cef38p-2", "0x1.1c6f773a68421p-43", "0x1.599058c8c1a96p+0"]
LOG = ["-0x1.ba18a998fffa0p+4", "-0x1.34378fcbda721p+0", "0x1.01e85798eb9a3p+1"]


@given(st.lists(finite.filter(lambda v: abs(v) < 1e100), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_numpys_but_for_rounding(values: list[float], share: float) -> None:
    got, expected = quantiles(np.array(values), [share])[0], np.quantile(values, share)
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-12 * max(map(abs, values)))


def test_quantiles_are_taken_by_column() -> None:
    table = np.array([[4.0, 1.0], [2.0, 3.0], [0.0, 2.0], [6.0, 0.0], [8.0, 4.0]])
    assert quantiles(table, [0.5, 0.9]).tolist() == [[4.0, 2.0], [pytest.approx(7.2), pytest.approx(3.6)]]


def test_one_nan_makes_every_quantile_nan() -> None:
    """A gate fires on what is not within its limit, so a NaN must not be sorted away behind the median."""
    assert np.isnan(quantiles(np.array([0.0, 1.0, 2.0, np.nan]), [0.1, 0.5])).all()


def test_no_values_have_no_quantile() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantiles(np.zeros(0), [0.5])
