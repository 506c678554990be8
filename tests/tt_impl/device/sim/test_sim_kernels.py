"""Each op against float64 at real widths, and its rounding where it says it rounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tt_impl.device.protocol import DType
from tt_impl.device.sim import kernels

BF16, FP32 = DType.BFLOAT16, DType.FLOAT32


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def nearest_even(values: np.ndarray) -> np.ndarray:
    """Round float32 to bf16 by its bits: add half of what is cut off, a little less where the kept part is even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).astype(np.uint32).view(np.float32)


def test_rounding_is_to_nearest_even_for_ties_subnormals_and_overflow(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000
    values = np.concatenate([bits, ties, ties + 1, ties - 1]).view(np.float32)
    values = values[~np.isnan(values)]
    assert kernels.rounded(values, BF16).tobytes() == nearest_even(values).tobytes()


def test_float32_is_not_rounded(rng: np.random.Generator) -> None:
    values = normal(rng, 3, 40)
    assert kernels.rounded(values, FP32).tobytes() == values.tobytes()


@pytest.mark.parametrize("width", [128, 2560])
def test_rms_norm(rng: np.random.Generator, width: int) -> None:
    x, weight = normal(rng, 3, width) * np.array([[1], [1e-3], [50]], np.float32), normal(rng, 1, width)
    wide = x.astype(np.float64)
    normalized = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6)
    assert worst(kernels.rms_norm(x, weight, 1e-6, FP32), weight * normalized) < 1e-6
    once = normalized.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.median(np.abs(kernels.rms_norm(x, weight, 1e-6, BF16) - weight * once)) < 1e-7


def test_linear_accumulates_in_float32_and_rows_are_independent(rng: np.random.Generator) -> None:
    x, weight = normal(rng, 3, 2560), normal(rng, 70, 2560)
    found = kernels.linear(x, weight)
    assert worst(found, x.astype(np.float64) @ weight.astype(np.float64).T) < 2e-6
    assert found[1:2].tobytes() == kernels.linear(x[1:2], weight).tobytes()


def test_matmul(rng: np.random.Generator) -> None:
    a, b = normal(rng, 2, 6), normal(rng, 6, 2560)
    assert worst(kernels.matmul(a, b), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


def test_swiglu_takes_silu_of_the_second_half_and_rounds_it(rng: np.random.Generator) -> None:
    x = normal(rng, 2, 1024) * 20
    up, gate = x[:, :512].astype(np.float64), x[:, 512:].astype(np.float64)
    silu = gate / (1 + np.exp(-gate))
    assert worst(kernels.swiglu(x, FP32), up * silu) < 1e-6
    rounded = silu.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.median(np.abs(kernels.swiglu(x, BF16) - up * rounded)) < 1e-7


def test_silu_of_large_values_neither_overflows_nor_warns() -> None:
    x = np.array([[1.0, 1, 1, 1, -200, 200, -60, 0]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert np.allclose(kernels.swiglu(x, FP32), [[0, 200, 0, 0]], atol=1e-20)


def test_rotary_embedding_turns_the_two_halves_against_each_other(rng: np.random.Generator) -> None:
    x, angles = normal(rng, 2, 128), normal(rng, 1, 64)
    cos, sin = (np.tile(f(angles), 2) for f in (np.cos, np.sin))
    found = kernels.rotary_embedding(x, cos, sin, FP32)
    plane = (x[:, :64] + 1j * x[:, 64:]) * np.exp(1j * angles.astype(np.float64))
    assert worst(found, np.concatenate([plane.real, plane.imag], axis=1)) < 1e-6


@pytest.mark.parametrize("length", [1, 33, 513])
def test_attention(rng: np.random.Generator, length: int) -> None:
    q, k, v = normal(rng, 12, 64) * 3, normal(rng, 4, length, 64), normal(rng, 4, length, 64)
    expected = np.empty((12, 64))
    for head in range(12):
        keys, values = k[head // 3].astype(np.float64), v[head // 3].astype(np.float64)
        scores = keys @ q[head].astype(np.float64) / 8
        weights = np.exp(scores - scores.max())
        expected[head] = weights / weights.sum() @ values
    assert worst(kernels.attention(q, k, v, 1 / 8), expected) < 2e-6
