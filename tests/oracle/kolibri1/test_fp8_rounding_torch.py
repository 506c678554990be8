"""Rounding to e4m3 and quantizing activations, against ml_dtypes and a model in numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oracle.kolibri1.fp8 import E4M3FN, quantize_activations, to_e4m3fn

CODES = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""The 127 finite values from 0 up to 448."""


def rounded(x: np.ndarray) -> np.ndarray:
    """By ml_dtypes, which makes NaN of what is too large: cut to 448 before."""
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal values of equal sign, zeros too."""
    return np.array_equal(a, b) and np.array_equal(np.signbit(a), np.signbit(b))


def edges() -> np.ndarray:
    """Every value, every tie between two, and the numbers just beside; both signs, both zeros, and what saturates."""
    ties = (CODES[1:].astype(np.float64) + CODES[:-1]) / 2
    exact = np.concatenate(
        [CODES, ties.astype(np.float32), np.array([449, 464, 465, 480, 1e4, 3e38, np.inf, 1e-45], np.float32)]
    )
    beside = np.concatenate([np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])
    return np.concatenate([exact, -exact, beside, -beside])


def test_every_tie_and_edge_is_rounded_as_ml_dtypes_rounds() -> None:
    assert same(to_e4m3fn(torch.from_numpy(edges())).numpy(), rounded(edges()))


@given(arrays.arrays(np.float32, 40, elements=st.floats(width=32, allow_nan=False)))
def test_any_values_are_rounded_as_ml_dtypes_rounds(x: np.ndarray) -> None:
    assert same(to_e4m3fn(torch.from_numpy(x)).numpy(), rounded(x))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (17.0, 16.0),  # a tie between 16 and 18: to the even code
        (19.0, 20.0),
        (2.0**-10, 0.0),  # half of the smallest subnormal
        (2.0**-10 * 1.01, 2.0**-9),
        (3 * 2.0**-10, 2.0**-8),
        (448.1, 448.0),
        (-1e9, -448.0),
        (float("inf"), 448.0),
    ],
)
def test_ties_go_to_even_subnormals_stay_and_large_values_saturate(value: float, expected: float) -> None:
    assert to_e4m3fn(torch.tensor([value])).tolist() == [expected]


def test_a_nan_stays_one_and_a_negative_zero_keeps_its_sign() -> None:
    assert to_e4m3fn(torch.tensor([float("nan")])).isnan().all()
    assert torch.signbit(to_e4m3fn(torch.tensor([-0.0, -1e-9]))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_on_the_grid_stay_in_their_dtype(dtype: torch.dtype) -> None:
    finite = E4M3FN[E4M3FN.isfinite()].to(dtype)
    got = to_e4m3fn(finite)
    assert got.dtype == dtype
    assert torch.equal(got, finite)


def quantized(x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The facts' rule, section 4, one token and group at a time."""
    values, scales = np.empty_like(x), np.empty((len(x), x.shape[1] // width), np.float32)
    for token, group in np.ndindex(scales.shape):
        part = x[token, group * width : (group + 1) * width]
        scales[token, group] = max(np.abs(part).max(), np.float32(1e-10)) / np.float32(448)
        values[token, group * width : (group + 1) * width] = rounded(part / scales[token, group])
    return values, scales


@settings(max_examples=50)
@given(
    tokens=st.integers(1, 4),
    groups=st.integers(1, 3),
    width=st.sampled_from([32, 128]),
    size=st.floats(1e-12, 1e6),
    seed=st.integers(0, 2**32 - 1),
)
def test_activations_are_quantized_by_token_and_group(tokens: int, groups: int, width: int, size: float, seed: int) -> None:
    x = np.random.default_rng(seed).normal(0, size, (tokens, groups * width)).astype(np.float32)
    x[0, :width] = 0
    values, scales = (part.numpy() for part in quantize_activations(torch.from_numpy(x), width))
    expected_values, expected_scales = quantized(x, width)
    assert np.array_equal(scales, expected_scales)
    assert same(values, expected_values)


def test_the_largest_activation_of_a_group_becomes_448_and_a_group_of_zeros_stays_zero() -> None:
    x = torch.zeros(2, 64)
    x[1, 5], x[1, 40] = -3.0, 0.25
    values, scales = quantize_activations(x, 32)
    assert values[1, 5] == -448
    assert values[1, 40] == 448
    assert values[0].abs().max() == 0
    assert scales.tolist()[0] == [float(np.float32(1e-10) / np.float32(448))] * 2
