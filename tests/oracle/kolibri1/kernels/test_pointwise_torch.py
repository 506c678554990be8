"""Norms, exponentials and angles by the kernels, against float64; and no value depends on where in an array it lies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from documented_order import dot, packed
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.kolibri1.kernels import pointwise

ULP = 2.0**-24
"""Half a unit in the last place, relative: what one rounding to float32 costs at most."""

EXTREMES = np.array(
    [0.0, -0.0, 1e-30, -1e-30, 87.0, -87.0, 89.0, -89.0, 104.0, -104.0, 1000.0, -1000.0, 3e38, -3e38], np.float32
)


def normal(seed: int, *shape: int, size: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, size, shape).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_rms_norm_is_float64s_to_four_roundings(rows: int, groups: int, size: float, seed: int) -> None:
    x, weight = normal(seed, rows, 32 * groups, size=size), normal(seed + 1, 32 * groups)
    out = np.empty_like(x)
    pointwise.rms_norm(x, weight, np.float32(1e-6), out)
    wide = x.astype(np.float64)
    expected = weight * wide / np.sqrt((wide**2).mean(1, keepdims=True) + float(np.float32(1e-6)))
    assert (np.abs(out - expected) <= 8 * ULP * np.abs(expected)).all()


def test_rms_norm_adds_squares_in_the_documented_order_and_divides_once() -> None:
    x, weight = normal(1, 7, 96, size=3), normal(2, 96)
    out = np.empty_like(x)
    pointwise.rms_norm(x, weight, np.float32(1e-6), out)
    for row in range(7):
        # The row is taken as if it were packed already, for weights and inputs alike.
        natural = x[row].reshape(-1, 2, 16).transpose(0, 2, 1).reshape(1, -1)
        assert np.array_equal(packed(natural)[0], x[row])
        squares = dot(natural, natural)[0, 0]
        inverse = np.float32(1) / np.sqrt(squares / np.float32(96) + np.float32(1e-6))
        assert np.array_equal(out[row], weight * (x[row] * inverse))


def test_eps_is_inside_the_root() -> None:
    x, weight, out = np.full((1, 32), 1e-3, np.float32), np.ones(32, np.float32), np.empty((1, 32), np.float32)
    pointwise.rms_norm(x, weight, np.float32(1e-6), out)
    assert np.abs(out - 1e-3 / math.sqrt(2e-6)).max() < 1e-6


def test_sigmoid_is_float64s_to_three_roundings() -> None:
    x = np.concatenate([normal(3, 1000, size=10), EXTREMES])
    out = np.empty_like(x)
    pointwise.sigmoid(x, out)
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    shown = expected > 1e-37  # below, float32 has no normal numbers
    assert (np.abs(out - expected)[shown] <= 4 * ULP * expected[shown]).all()
    assert (out[~shown] <= 1e-37).all()
    assert out[x == 0].tolist() == [0.5, 0.5]


def test_swiglu_is_float64s_to_five_roundings_and_comes_packed() -> None:
    gate = np.concatenate([normal(4, 1010, size=8), EXTREMES]).reshape(4, 256)
    up = normal(5, 4, 256)
    out = np.empty_like(gate)
    pointwise.swiglu(gate, up, out)
    with np.errstate(over="ignore", under="ignore"):
        wide = gate.astype(np.float64)
        expected = packed((wide / (1 + np.exp(-wide)) * up).astype(np.float64))
    shown = np.abs(expected) > 1e-36
    assert (np.abs(out - expected)[shown] <= 6 * ULP * np.abs(expected)[shown]).all()
    assert (np.abs(out)[~shown] <= 1e-35).all()


@pytest.mark.parametrize("theta", [10000.0, 500.0])
def test_angles_are_float32_products_and_their_cosines_and_sines_rounded_once(theta: float) -> None:
    positions = np.array([0, 1, 2, 511, 512, 513, 8191, 262_143], dtype=np.int64)
    frequencies = (np.float32(1) / (theta ** (np.arange(0, 128, 2) / 128)).astype(np.float32)).astype(np.float32)
    cos, sin = (np.empty((len(positions), 64), np.float32) for _ in range(2))
    pointwise.rope_angles(positions, frequencies, cos, sin)
    for t, position in enumerate(positions):
        for j, frequency in enumerate(frequencies):
            angle = float(np.float32(position) * frequency)
            assert cos[t, j] == np.float32(math.cos(angle))
            assert sin[t, j] == np.float32(math.sin(angle))
    assert (cos[0] == 1).all()
    assert (sin[0] == 0).all()


def test_a_value_does_not_depend_on_its_neighbours_or_its_place() -> None:
    x, up = normal(6, 100, size=5), normal(7, 3, 64)
    whole, one = np.empty_like(x), np.empty(1, np.float32)
    pointwise.sigmoid(x, whole)
    for i, value in enumerate(x):
        pointwise.sigmoid(np.array([value]), one)
        assert one[0] == whole[i]
    gate, rows, single = normal(8, 3, 64, size=5), np.empty((3, 64), np.float32), np.empty((1, 64), np.float32)
    pointwise.swiglu(gate, up, rows)
    for i in range(3):
        pointwise.swiglu(gate[i : i + 1], up[i : i + 1], single)
        assert np.array_equal(single[0], rows[i])
